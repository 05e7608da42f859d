"""Run a script of examples/ as the command line does, on a tiny encoder."""

import json
import sys
from pathlib import Path

import torch
from tiny_tokenizers import make_bert_tokenizer
from transformers import BertConfig, BertForMaskedLM

# The encoder of the quickstart: 4 layers, 256 wide.
DEMO_ENCODER = Path(__file__).parents[2] / "examples" / "quickstart_data" / "encoder"


def save_tiny_bert(folder, sentences, hidden_size=32):
    """Save a random BERT whose tokenizer knows the words of the sentences."""
    torch.manual_seed(0)
    tokenizer = make_bert_tokenizer(sentences)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,
        initializer_range=0.1,  # so small a model learns in a few steps only from larger weights
        hidden_dropout_prob=0.0,
    )
    tokenizer.model_max_length = 128
    BertForMaskedLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def write_jsonl(path, rows):
    """Write rows; the lines of other splits end in spaces, because a copy of the training file is refused."""
    end = " " * (1 * ("validation" in Path(path).stem) + 2 * ("test" in Path(path).stem)) + "\n"
    Path(path).write_text("".join(json.dumps(row) + end for row in rows), encoding="utf-8")
    return str(path)


def read_losses(folder):
    """Return the loss of each step of a run with `--logging_steps 1`, by its number."""
    log = json.loads(Path(folder, "trainer_state.json").read_text())["log_history"]
    return {line["step"]: line["loss"] for line in log if "loss" in line}


def call_main(main, monkeypatch, *arguments, **flags):
    """Call main() with a command line; a flag that is None is left out."""
    argv = ["script.py", *map(str, arguments)]
    for name, value in flags.items():
        if value is not None:
            argv += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    monkeypatch.setattr(sys, "argv", argv)
    main()


def run_script(main, monkeypatch, output_dir, **flags):
    """Call main() with flags; returns all_results.json."""
    defaults = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "save_strategy": "no", "seed": 1}
    if "resume_from_checkpoint" not in flags:
        defaults["overwrite_output_dir"] = True  # a test may run several times into one folder
    call_main(main, monkeypatch, output_dir=output_dir, **(defaults | flags))
    return json.loads(Path(output_dir, "all_results.json").read_text())

import json
from unittest.mock import patch

import pytest
import torch
from script_runs import save_tiny_bert
from tiny_tokenizers import SENTENCES
from transformers import AutoModelForMaskedLM, AutoTokenizer

from hf_domain.examples.run_trim_vocab import main


def run(output, files, **options):
    arguments = {"output_dir": output, **options}
    flags = [str(part) for name, value in arguments.items() for part in (f"--{name}", value)]
    with patch("sys.argv", ["run_trim_vocab.py", *flags, "--train_file", *map(str, files)]):
        main()


def test_the_script_writes_a_smaller_encoder(tmp_path, capsys):
    """It counts the words of every file, and computes on them what the encoder did."""
    base = tmp_path / "encoder"
    save_tiny_bert(base, SENTENCES)
    (tmp_path / "corpus.txt").write_text(SENTENCES[0], encoding="utf-8")
    (tmp_path / "task.jsonl").write_text(json.dumps({"text": SENTENCES[1], "label": "a"}), encoding="utf-8")
    (tmp_path / "heldout.txt").write_text("\n".join(SENTENCES[2:]), encoding="utf-8")
    files = (tmp_path / "corpus.txt", tmp_path / "task.jsonl")
    run(tmp_path / "small", files, model_name_or_path=base, validation_file=tmp_path / "heldout.txt")
    old, new = (
        [AutoTokenizer.from_pretrained(folder), AutoModelForMaskedLM.from_pretrained(folder)]
        for folder in (base, tmp_path / "small")
    )
    assert len(new[0]) == new[1].config.vocab_size < len(old[0])
    with torch.no_grad():
        states = [
            model.base_model(**tokenizer(SENTENCES[:2], padding=True, return_tensors="pt")).last_hidden_state
            for tokenizer, model in (old, new)
        ]
    assert torch.equal(*states)
    shown = capsys.readouterr().out
    assert f"Vocabulary: {len(old[0])} entries before, {len(new[0])} now.\n" in shown
    assert f"Parameters: {old[1].num_parameters():,} before, {new[1].num_parameters():,} now.\n" in shown
    counts = [[len(tokenizer.tokenize(text)) for text in SENTENCES[2:]] for tokenizer, _ in (old, new)]
    more, longer = sum(counts[1]) / sum(counts[0]) - 1, sum(map(int.__lt__, *counts)) / len(counts[0])
    assert more > 0.01 and f"heldout.txt: {more:.1%} more tokens; {longer:.1%} of the texts have more.\n" in shown
    with pytest.raises(FileNotFoundError, match=r"must match .*missing\.txt"):
        run(tmp_path / "other", files, model_name_or_path=base, validation_file=tmp_path / "missing.txt")
    assert not (tmp_path / "other" / "config.json").exists()

"""Measure size and speed of domain encoders for serving (Table 5 of AdaLM), side by side in one run.

    python benchmarks/inference.py --tokenizer bert-base-uncased --expanded_vocabulary <folder of run_expand_vocab.py> \
        --texts chemprot/test.jsonl --output inference.json

The encoders have the paper's shapes and random weights, which change neither size nor speed. Each reads the texts one
by one through its own tokenizer. The encoders take turns on every text, so that a busy machine slows all of them; the
fastest repetition counts.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch
import transformers
from transformers import AutoTokenizer, BertConfig, BertModel

from hf_domain.environment import describe_environment
from hf_domain.export import QUANTIZED, export_model
from hf_domain.safe_io import write_json

SHAPES = {
    "base": {},
    "small": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
}
# Name, shape, whether the vocabulary is expanded, whether it runs as ONNX int8.
ENCODERS = (
    ("BERT base", "base", False, False),
    ("BERT base, expanded (AdaLM large)", "base", True, False),
    ("L6-H384", "small", False, False),
    ("L6-H384, expanded", "small", True, False),
    ("L6-H384, expanded, ONNX int8", "small", True, True),
)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", required=True, help="tokenizer of BERT base, a name or a folder")
    parser.add_argument("--expanded_vocabulary", required=True, help="folder with the expanded tokenizer")
    parser.add_argument("--texts", type=Path, required=True, help="JSON lines with a column text")
    parser.add_argument("--num_texts", type=int, default=100)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, default=None, help="JSON file; default prints")
    return parser.parse_args()


def load_exported(file: Path, threads: int):
    """Load an ONNX program that uses `threads` threads."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(file, options)
    return lambda **inputs: session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})


def main() -> None:
    """Measure, print, and write the JSON file."""
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    transformers.utils.logging.set_verbosity_error()
    with args.texts.open(encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in file][: args.num_texts]

    rows, runs = {}, {}
    for name, shape, is_expanded, is_exported in ENCODERS:
        tokenizer = AutoTokenizer.from_pretrained(args.expanded_vocabulary if is_expanded else args.tokenizer)
        model = BertModel(BertConfig(vocab_size=len(tokenizer), **SHAPES[shape]), add_pooling_layer=False).eval()
        parameters = model.num_parameters()
        with tempfile.TemporaryDirectory() as folder:
            if is_exported:
                # The cosine of random weights is meaningless for trained ones.
                report = export_model(model, tokenizer, folder, int8=True, texts=texts, min_cosine=0.0)
                size = report.file_bytes[QUANTIZED]
                model = load_exported(Path(folder, QUANTIZED), args.threads)
            else:
                model.save_pretrained(folder)
                size = Path(folder, "model.safetensors").stat().st_size
        inputs = [dict(tokenizer(text, truncation=True, max_length=512, return_tensors="pt")) for text in texts]
        tokens = sum(batch["input_ids"].numel() for batch in inputs) / len(inputs)
        rows[name] = {"parameters": parameters, "megabytes": size / 1e6, "tokens_per_text": tokens}
        runs[name] = (model, inputs)

    milliseconds = dict.fromkeys(rows, 0.0)
    with torch.inference_mode():
        for model, inputs in runs.values():
            model(**inputs[0])  # the first call warms up
        for index in range(len(texts)):
            fastest = dict.fromkeys(rows, float("inf"))
            for _ in range(args.repetitions):
                for name, (model, inputs) in runs.items():
                    start = time.perf_counter()
                    model(**inputs[index])
                    fastest[name] = min(fastest[name], 1e3 * (time.perf_counter() - start))
            for name in rows:
                milliseconds[name] += fastest[name] / len(texts)
    base = rows["BERT base"]
    for name, row in rows.items():
        row["milliseconds_per_text"] = milliseconds[name]
        row["times_faster"] = milliseconds["BERT base"] / milliseconds[name]
        row["times_fewer_parameters"] = base["parameters"] / row["parameters"]
        row["times_smaller_on_disk"] = base["megabytes"] / row["megabytes"]
    result = {
        "arguments": {name: str(value) for name, value in vars(args).items()},
        "environment": describe_environment(),
        "encoders": rows,
    }
    print(json.dumps(result, indent=2))
    if args.output:
        write_json(args.output, result)


if __name__ == "__main__":
    main()

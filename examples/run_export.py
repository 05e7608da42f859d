"""Export an encoder or a fine-tuned model to ONNX, with free batch size and length.

    python examples/run_export.py --model_name_or_path classifier --output_dir classifier-onnx

The output is `onnx/model.onnx`, the configuration, the tokenizer, and `export_report.json` with file sizes and
differences from the model. onnxruntime and transformers.js load the folder. In Python:

    from onnxruntime import InferenceSession
    from transformers import AutoTokenizer

    session = InferenceSession("classifier-onnx/onnx/model.onnx")
    tokenizer = AutoTokenizer.from_pretrained("classifier-onnx")
    (logits,) = session.run(["logits"], dict(tokenizer(["A text."], return_tensors="np")))
"""

from dataclasses import dataclass, field
from typing import Literal

from hf_domain.export import check_exporters, export_model, load_trained
from hf_domain.training.arguments import parse_arguments
from hf_domain.training.run_folder import run_in_folder


@dataclass
class ExportArguments:
    """The model and the folder of its export."""

    model_name_or_path: str = field(metadata={"help": "Model: a folder or a name on the Hub."})
    tokenizer_name: str | None = field(default=None, metadata={"help": "Tokenizer to use instead of the model's."})
    cache_dir: str | None = field(default=None, metadata={"help": "Folder for downloads."})
    model_revision: str = field(default="main", metadata={"help": "Branch, tag or commit of the model."})
    token: str | None = field(default=None, metadata={"help": "Hub token to use instead of the stored one."})
    trust_remote_code: bool = field(default=False, metadata={"help": "Run code that comes with the model."})
    output_dir: str = field(default="exported", metadata={"help": "Folder of the export."})
    head: Literal[
        "auto", "encoder", "masked_lm", "sequence_classification", "token_classification", "question_answering"
    ] = field(default="auto", metadata={"help": "Head to export. Default: the saved one."})
    max_seq_length: int | None = field(
        default=None, metadata={"help": "Number of tokens of the longest text to serve. Default: the encoder's limit."}
    )


def main() -> None:
    run_in_folder(run, *parse_arguments(ExportArguments, description=__doc__))


def run(args: ExportArguments) -> None:
    check_exporters()
    hub_options = {"cache_dir": args.cache_dir, "revision": args.model_revision, "token": args.token}
    hub_options["trust_remote_code"] = args.trust_remote_code
    model, tokenizer = load_trained(args.model_name_or_path, args.tokenizer_name, args.head, **hub_options)
    report = export_model(model, tokenizer, args.output_dir, max_seq_length=args.max_seq_length)
    print(f"{report['model']}, {report['parameters']:,} parameters, {report['max_length']} tokens -> {args.output_dir}")
    for name, size in report["file_bytes"].items():
        print(f"{name}: {size / 1e6:.1f} MB")
    print(f"Outputs within {max(report['differences'].values()):.1g} of the model's")


if __name__ == "__main__":
    main()

"""Export an encoder or a fine-tuned model for serving, with free batch size and length.

    python examples/run_export.py --model_name_or_path classifier --output_dir classifier-onnx --int8

The output is `onnx/model.onnx`, with --int8 also `onnx/model_quantized.onnx`, the configuration, the tokenizer, and
`export_report.json` with file sizes and differences from the model. onnxruntime and transformers.js load the folder. In
Python:

    from onnxruntime import InferenceSession
    from transformers import AutoTokenizer

    session = InferenceSession("classifier-onnx/onnx/model_quantized.onnx")
    tokenizer = AutoTokenizer.from_pretrained("classifier-onnx")
    (logits,) = session.run(["logits"], dict(tokenizer(["A text."], return_tensors="np")))
"""

from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Literal

from hf_domain.data.corpora import read_texts
from hf_domain.export import NUM_TEXTS, check_exporters, export_model, load_trained
from hf_domain.training.arguments import parse_arguments
from hf_domain.training.run_folder import run_in_folder

DEMO_TEXTS = Path(__file__).parent / "quickstart_data" / "corpus.txt.gz"


@dataclass
class ExportArguments:
    """The model and the format of the export."""

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
    export_format: Literal["onnx", "dynamo"] = field(
        default="onnx", metadata={"help": "onnx for ONNX Runtime, dynamo for torch.export."}
    )
    int8: bool = field(
        default=False, metadata={"help": "Add a program for CPUs with 8-bit weights and arithmetic; ONNX only."}
    )
    validation_file: list[str] = field(
        default_factory=list,
        metadata={"help": "Texts on which int8 is compared with float32. Default: computer-science papers."},
    )
    min_cosine: float = field(
        default=0.99, metadata={"help": "Minimum cosine between int8 and float32 outputs on every text."}
    )
    max_seq_length: int | None = field(
        default=None, metadata={"help": "Number of tokens of the longest text to serve. Default: the encoder's limit."}
    )


def main() -> None:
    run_in_folder(run, *parse_arguments(ExportArguments, description=__doc__))


def run(args: ExportArguments) -> None:
    check_exporters(args.export_format)
    hub_options = {"cache_dir": args.cache_dir, "revision": args.model_revision, "token": args.token}
    hub_options["trust_remote_code"] = args.trust_remote_code
    model, tokenizer = load_trained(args.model_name_or_path, args.tokenizer_name, args.head, **hub_options)
    files = args.validation_file or [str(DEMO_TEXTS)]
    texts = list(islice(filter(str.strip, chain.from_iterable(map(read_texts, files))), NUM_TEXTS)) if args.int8 else []
    report = export_model(
        model,
        tokenizer,
        args.output_dir,
        export_format=args.export_format,
        int8=args.int8,
        texts=texts,
        min_cosine=args.min_cosine,
        max_seq_length=args.max_seq_length,
    )
    print(f"{report.model}, {report.parameters:,} parameters, {report.max_length} tokens -> {args.output_dir}")
    for name, size in report.file_bytes.items():
        print(f"{name}: {size / 1e6:.1f} MB")
    print(f"float32: outputs within {max(report.differences.values()):.1g} of the model's")
    if report.quantization:
        print(report.quantization)


if __name__ == "__main__":
    main()

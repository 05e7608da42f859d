# /// script
# requires-python = ">=3.11"
# dependencies = ["hf-domain[onnx]"]
# ///
"""Export an encoder or a fine-tuned model for serving, with free batch size and length.

    python examples/run_export.py --model_name_or_path classifier --output_dir classifier-onnx --int8

The output directory holds the program, its configuration, the tokenizer, and `export_report.json` with parameters, file
size and the largest difference from the model at two shapes. To serve it:

    import hf_domain  # for the configuration of a VarMAE or an exBERT
    from transformers import AutoTokenizer
    from transformers.exporters import ExportedModel

    model = ExportedModel.from_pretrained("classifier-onnx")
    tokenizer = AutoTokenizer.from_pretrained("classifier-onnx")
    logits = model(**tokenizer(["A text."], return_tensors="pt")).logits
"""

from dataclasses import dataclass, field
from typing import Literal

import transformers
from transformers import MODEL_FOR_MASKED_LM_MAPPING, AutoConfig, AutoTokenizer

from hf_domain.export import check_exporters, export_model
from hf_domain.training.arguments import parse_arguments
from hf_domain.training.finiteness import check_weights
from hf_domain.training.run_folders import run_in_folder

# Which class loads a checkpoint, by the end of its architecture's name.
HEADS = {
    "encoder": ("Model", "AutoModel"),
    "masked_lm": ("ForMaskedLM", "AutoModelForMaskedLM"),
    "sequence_classification": ("ForSequenceClassification", "AutoModelForSequenceClassification"),
    "token_classification": ("ForTokenClassification", "AutoModelForTokenClassification"),
    "question_answering": ("ForQuestionAnswering", "AutoModelForQuestionAnswering"),
}


@dataclass
class ExportArguments:
    """What is exported, and how."""

    model_name_or_path: str = field(metadata={"help": "Model: a folder or a name on the Hub."})
    tokenizer_name: str | None = field(default=None, metadata={"help": "Tokenizer, if not that of the model."})
    cache_dir: str | None = field(default=None, metadata={"help": "Where downloads are kept."})
    model_revision: str = field(default="main", metadata={"help": "Branch, tag or commit of the model."})
    token: str | None = field(default=None, metadata={"help": "Token of the Hub, if not the stored one."})
    trust_remote_code: bool = field(default=False, metadata={"help": "Run code that comes with the model."})
    output_dir: str = field(default="exported", metadata={"help": "Folder of the export."})
    head: Literal[
        "auto", "encoder", "masked_lm", "sequence_classification", "token_classification", "question_answering"
    ] = field(default="auto", metadata={"help": "Head to export. Default: the one that was saved."})
    export_format: Literal["onnx", "dynamo"] = field(
        default="onnx", metadata={"help": "onnx for ONNX Runtime, dynamo for torch.export."}
    )
    int8: bool = field(
        default=False, metadata={"help": "Quantize weights and arithmetic to 8 bits for CPU; ONNX only."}
    )


def load_trained(auto_class, name: str, **options):
    """Load a model whose weights are all in the checkpoint: new ones are random, and another model each time."""
    model, info = auto_class.from_pretrained(name, dtype="float32", output_loading_info=True, **options)
    missing = {key.partition(".")[0] for key in info["missing_keys"]}
    if missing == {"pooler"}:
        model.pooler = None  # a masked LM has none: what it would give is noise
    elif missing:
        raise ValueError(
            f"an export needs a trained model, but {name} has no weights of {', '.join(sorted(missing))}. "
            "Fine-tune it first, or name another --head."
        )
    check_weights(model, name)
    return model


def find_auto_class(head: str, config):
    """Find the Auto class of a head; auto takes that of the saved architecture."""
    architecture = (config.architectures or ["none"])[0]
    for name, (suffix, auto_class) in HEADS.items():
        if name == head or (head == "auto" and architecture.endswith(suffix)):
            return getattr(transformers, auto_class)
    raise ValueError(f"the checkpoint was saved as {architecture}, which cannot be exported. Choose another --head.")


def main() -> None:
    run_in_folder(run, *parse_arguments(ExportArguments, description=__doc__))


def run(args: ExportArguments) -> None:
    check_exporters(args.export_format)
    options = {"cache_dir": args.cache_dir, "revision": args.model_revision, "token": args.token}
    options["trust_remote_code"] = args.trust_remote_code
    config = AutoConfig.from_pretrained(args.model_name_or_path, **options)
    if type(config) not in MODEL_FOR_MASKED_LM_MAPPING and not args.trust_remote_code:
        raise ValueError(f"the model must be an encoder such as BERT, but is a {config.model_type}")
    model = load_trained(find_auto_class(args.head, config), args.model_name_or_path, **options)
    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer_name or args.model_name_or_path, **options)
    report = export_model(model, tokenizer, args.output_dir, export_format=args.export_format, int8=args.int8)
    largest = max(report.differences.values())
    print(
        f"{type(model).__name__}, {report.parameters:,} parameters -> {args.output_dir}: "
        f"{report.file_bytes / 1e6:.1f} MB, outputs within {largest:.1g} of the model's"
    )


if __name__ == "__main__":
    main()

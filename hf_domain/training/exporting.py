"""The export of a model right after its fine-tuning (`--export`)."""

from pathlib import Path

from transformers import TrainingArguments

from hf_domain.export import check_exporters, export_model, load_trained
from hf_domain.tasks.kind import DataArguments
from hf_domain.training.arguments import FineTuningArguments

EXPORTED = "exported"
"""The folder inside the folder of a run."""


def check_export(model_args: FineTuningArguments, data_args: DataArguments, training_args: TrainingArguments) -> None:
    """Raise a ValueError, before a run starts, if `--export` lacks its packages or a training, or reads passages."""
    if not model_args.export:
        return
    if getattr(data_args, "append_passage", False):
        raise ValueError(
            "--export needs a model that reads text alone, but --append_passage appends a passage to each text. Leave "
            "one of the two out; hf-domain predict --datastore serves such a model."
        )
    if getattr(data_args, "nearest_vote", False):
        raise ValueError(
            "--export needs a model that predicts alone, but with --nearest_vote training texts vote, too. Leave one "
            "of the two out; hf-domain predict --labeled_file serves such a model."
        )
    if not training_args.do_train:
        raise ValueError(
            "--export needs --do_train, but this run does not train. Add it, or run hf-domain export on the model."
        )
    check_exporters()


def export_trained(folder: Path, task: str, model_args: FineTuningArguments) -> str:
    """Export the model that a run saved, and return a line that says where.

    The saved model is read again: the one that was trained may be on a GPU, or without padding.

    Args:
        folder: Folder of the run.
        task: Pipeline tag of the Hub.
    """
    model, tokenizer = load_trained(str(folder), trust_remote_code=model_args.trust_remote_code)
    report = export_model(model, tokenizer, folder / EXPORTED)
    largest = max(report.differences.values())
    return f"Export (ONNX, outputs within {largest:.1g} of the model's): {folder / EXPORTED}"

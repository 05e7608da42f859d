"""Write the model cards of commands that neither pre-train nor fine-tune for a task."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from hf_domain.cards import list_licenses, write_model_card
from hf_domain.data.files import find_files
from hf_domain.training.run_cards import (
    describe_command,
    describe_data_license,
    describe_files,
    describe_license,
    find_origin,
    list_versions,
)


def write_command_card(
    folder: str | Path,
    encoders: Sequence[str],
    *,
    name: str,
    settings: Mapping[str, Any],
    trains_on: str = "",
    **options: Any,
) -> None:
    """Write the card of a model that was not made by pre-training or fine-tuning for a task.

    Args:
        folder: Has the saved model.
        encoders: What the model was made from; several were averaged.
        name: Name that users of the model will write.
        settings: Hyperparameters, name to value.
        trains_on: A sentence on the license of the data, if the model was made from data.
        options: See `make_model_card`.
    """
    found = [find_origin(encoder, None) for encoder in encoders]
    licenses = {license if license in list_licenses() else None for _, license in found}
    known = [describe_license(encoder, *facts) for encoder, facts in zip(encoders, found, strict=True)]
    write_model_card(
        folder,
        model_name=name,
        base_model=encoders[0],
        origin=found[0][0],
        averaged=[(encoder, origin) for encoder, (origin, _) in zip(encoders[1:], found[1:], strict=True)],
        settings={**settings, "versions": list_versions()},
        license=licenses.pop() if len(licenses) == 1 else None,
        license_note=" ".join(filter(None, [*dict.fromkeys(known), trains_on])),
        language=None,
        command=describe_command(),
        **{"method": None, **options},
    )


def write_average_card(folder: Path, args: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write the card of an average.

    Args:
        folder: Has the saved model.
        args: Arguments of `hf-domain average_models`.
    """
    encoders = args.model_name_or_path
    write_command_card(
        folder,
        encoders,
        name=Path(args.output_dir).resolve().name,
        summary="The average of the weights of {base_model}.",
        method_name="averaging of weights",
        corpus="",
        settings={"weights": ", ".join(f"{weight:g}" for weight in args.weights or [1] * len(encoders))},
        limits="The average was not evaluated; `hf-domain mlm --do_eval` measures its losses.",
        example=f"This is a {tokenizer.mask_token}.",
    )


def write_expansion_card(
    folder: Path,
    model_args: Any,
    data_args: Any,
    expansion_args: Any,
    tokenizer: PreTrainedTokenizerBase,
    delta: Any,
    report: Any,
) -> None:
    """Write the card of a model whose vocabulary was expanded.

    Args:
        folder: Has the saved model.
        model_args: With the others, arguments of `hf-domain expand_vocab`.
        tokenizer: With the new entries.
        delta: With report, see `expand_vocabulary`.
    """
    # With a file of counts, the text itself may be gone.
    files = [data_args.counts_file] if data_args.counts_file else find_files(data_args.train_file)
    count = f"{len(delta.pieces):,}"
    write_command_card(
        folder,
        [model_args.model_name_or_path],
        name=Path(expansion_args.output_dir).resolve().name,
        method=expansion_args.method,
        method_name="vocabulary expansion",
        summary=f"{{base_model}} with {count} words of a domain added to its vocabulary. Nothing else was trained.",
        corpus=describe_files(files, [f"{report.documents:,} documents"]),
        settings={
            "new entries": count,
            "size of the vocabulary": f"{delta.new_size:,}",
            "start of the new rows": model_args.embedding_init,
            "chosen by": report.stopped_by,
            "minimum occurrences": expansion_args.min_frequency,
            "seed": expansion_args.seed,
        },
        limits="The model was not evaluated. Train it before use with `hf-domain mlm`, because the new rows have only "
        "a start.",
        example=f"This is a {tokenizer.mask_token}.",
        trains_on=describe_data_license(),
    )

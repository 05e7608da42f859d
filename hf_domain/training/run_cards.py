"""Write the model card of a run from its arguments, its metrics and its files."""

import hashlib
import json
import logging
import math
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from datasets import Dataset, IterableDataset
from huggingface_hub import HfApi, ModelCard
from huggingface_hub.constants import HF_HUB_OFFLINE
from transformers import PreTrainedModel, Trainer

from hf_domain.cards import hide_folders, list_licenses, make_model_card, make_score, reads_passages
from hf_domain.data.files import find_files
from hf_domain.environment import describe_environment
from hf_domain.hub import has_own_code, is_hub_id, read_config
from hf_domain.methods import BASELINE, METHODS
from hf_domain.safe_io import fingerprint_files, read_json
from hf_domain.tasks.baseline import describe_unlearned
from hf_domain.tasks.classification import find_vote
from hf_domain.training.arguments import ModelArguments
from hf_domain.training.run_files import METRICS
from hf_domain.training.settings import read_settings

logger = logging.getLogger(__name__)

# The deciding metric of a task is the first of these that was measured; with several labels, macro F1.
DECIDING = ("macro_f1", "f1", "mse", "spearman", "ndcg_at_10")
SECRETS = ("--token", "--hub_token")
SCRIPT_COMMANDS = {
    f"run_{name}": f"hf-domain {name}"
    for name in ("mlm", "classification", "ner", "qa", "distill", "sentences", "expand_vocab")
} | {"average_models": "hf-domain average_models"}
SETTINGS = (
    "config_overrides", "expanded_vocabulary", "memory_name_or_path", "datastore",
    "max_seq_length", "objective", "mix", "mlm_probability", "whole_word_mask", "learning_rate", "lr_scheduler_type",
    "warmup_steps", "weight_decay", "seed", "bf16", "fp16",
)  # fmt: skip
SPLIT_NAMES = {"predict": "test", "eval": "validation"}
# The call of Python that trains, instead of the command of this process.
call: ContextVar[str | None] = ContextVar("call", default=None)
NOT_SCORES = ("runtime", "samples", "samples_per_second", "steps_per_second", "model_preparation_time", "loss")


def make_run_card(
    trainer: Trainer,
    task: str,
    model_args: ModelArguments,
    data_args: Any,
    passage_args: Any,
    documents: int | None,
    command: str | None = None,
    texts: Dataset | None = None,
    student: str = "",
) -> ModelCard:
    """Return the card of a trained model.

    Args:
        trainer: Must have saved the model and the metrics.
        task: Pipeline tag of the Hub.
        documents: Number of documents of a corpus, if counted.
        command: What trained it. Default: see `show_call`, or the command of this process.
        texts: Documents of a corpus that is no file, for a digest.
        student: What a distilled model is; `{base_model}` is its teacher.
    """
    folder, encoder = Path(str(trainer.args.output_dir)), model_args.model_name_or_path
    metrics = read_json(folder / METRICS) if (folder / METRICS).is_file() else {}
    origin, license = find_origin(encoder, model_args.token)
    tokenizer: Any = trainer.processing_class
    example = "This is a text."
    if task == "fill-mask":
        example = f"This is a {tokenizer.mask_token}."
    data = name_data(data_args)
    is_scored = {
        name: name == "eval" if task == "fill-mask" else bool(list_scores(metrics, name)) for name in SPLIT_NAMES
    }
    split = next((name for name in SPLIT_NAMES if is_scored[name] and f"{name}_samples" in metrics), None)
    if task == "feature-extraction":
        split = None  # the losses of a distillation are not scores of the model
    table, note, scores = "", "", []
    if split is not None:
        held_out = f"the {SPLIT_NAMES[split]} set"
        if task == "fill-mask":
            table, names = tabulate_losses(metrics), ["loss"]
            predicted = "next" if data_args.objective == "clm" else "masked"
            note = f"Loss is the mean cross-entropy of {predicted} tokens, in nats, on held-out text."
            if "start_general_loss" in metrics:
                note += " A rise on general text is what the encoder forgot."
        else:
            table, names = tabulate_scores(metrics, split), [name for name in DECIDING if f"{split}_{name}" in metrics]
            names = names or list_scores(metrics, split)
            note = f"Measured on {held_out} ({metrics.get(f'{split}_samples', 0):,} examples); the majority baseline "
            note += "predicts the same label for every example."
            if split == "eval" and (chosen := list_chosen(trainer, model_args)):
                note += f" The same set also chose {' and '.join(chosen)}: expect lower scores on new data."
        config_name = data_args.dataset_config_name if data_args.dataset_name else None
        scores = [
            make_score(task, data, SPLIT_NAMES[split], name, metrics[f"{split}_{name}"], config_name=config_name)
            for name in names[:1]
        ]
    return make_model_card(
        folder,
        task=task,
        method="adalm" if student else find_method(folder, task, model_args),
        summary=student,
        method_name="distillation into a student" if student else "",
        model_name=trainer.hub_model_id if trainer.args.push_to_hub and trainer.hub_model_id else folder.resolve().name,
        base_model=encoder,
        origin=origin,
        corpus=describe_data(trainer, task, data_args, metrics, documents, texts),
        settings=list_settings(trainer, metrics, model_args, data_args, passage_args),
        limits=describe_limits(folder, task, bool(split), "general_loss" in metrics),
        license=license if license in list_licenses() else None,
        license_note=f"{describe_license(encoder, origin, license)} "
        + describe_data_license(data_args.dataset_name, data_args.data_license)
        + describe_pseudo_labels(data_args),
        data_license=data_args.data_license,
        example=example,
        language=None,
        results_table=table or None,
        results_note=note,
        scores=scores,
        datasets=[data_args.dataset_name] if data_args.dataset_name and is_hub_id(data_args.dataset_name) else [],
        command=command or call.get() or describe_command(),
        warning=next(filter(None, (describe_unlearned(metrics, each) for each in SPLIT_NAMES)), None),
    )


@contextmanager
def show_call(text: str) -> Iterator[None]:
    """Let the cards that are written in this context show a call of Python."""
    token = call.set(text)
    try:
        yield
    finally:
        call.reset(token)


def describe_call(function: Callable[..., Any], given: Mapping[str, Any]) -> str:
    """Return a call of Python with all arguments that are not defaults, without secrets.

    Args:
        given: Values of the parameters; one that is neither a number nor a name is shown as the parameter.
    """
    parts = []
    for name, parameter in signature(function).parameters.items():
        if parameter.kind is Parameter.VAR_KEYWORD:
            options = {option: value for option, value in given[name].items() if f"--{option}" not in SECRETS}
            parts += [f"{option}={show_value(value, option)}" for option, value in options.items()]
        elif parameter.default is Parameter.empty and parameter.kind is not Parameter.KEYWORD_ONLY:
            parts.append(show_value(given[name], name))
        elif given[name] is not parameter.default and show_value(given[name], name) != repr(parameter.default):
            parts.append(f"{name}={show_value(given[name], name)}")
    return f"hf_domain.{function.__name__}({', '.join(parts)})"


def show_value(value: Any, name: str) -> str:
    """Return the source of a number or a name, or of several; `name` for data and other objects."""
    value = getattr(value, "value", value)  # of an enumeration
    if isinstance(value, PreTrainedModel):
        value = value.name_or_path or value
    if isinstance(value, str | os.PathLike):
        return repr(os.fspath(value))
    if isinstance(value, int | float | None):
        return f"{value:_}" if type(value) is int else repr(value)
    if isinstance(value, list | tuple) and all(isinstance(item, int | float) for item in value):
        return repr([*value])
    return name


def find_method(folder: Path, task: str, model_args: ModelArguments) -> str | None:
    """Return the method of a model, from its model type or from the options that trained a stock encoder."""
    config = read_config(folder)
    if has_own_code(config):
        return config["model_type"]
    if task != "fill-mask" or model_args.method not in METHODS:
        return None
    expands = METHODS[model_args.method].trains_stock_model and getattr(model_args, "expanded_vocabulary", None)
    return "adalm" if expands and model_args.method == BASELINE else model_args.method


def find_origin(encoder: str, token: str | None) -> tuple[str | None, str | None]:
    """Return the Hub name and the license of an encoder, or of its base model, as far as known.

    For a local encoder, both come from its card.
    """
    data: Any = None
    if Path(encoder, "README.md").is_file():
        data = ModelCard.load(Path(encoder, "README.md"), ignore_metadata_errors=True).data
    elif is_hub_id(encoder) and not HF_HUB_OFFLINE:
        try:
            data = HfApi(token=token).model_info(encoder, timeout=10).card_data
        except Exception as error:  # any HTTP error: a card without a license is better than no card
            logger.debug(f"the license of {encoder} is unknown: {error}")
    base, license = getattr(data, "base_model", None), getattr(data, "license", None)
    name = encoder if is_hub_id(encoder) else base
    return name if isinstance(name, str) else None, license if isinstance(license, str) else None


def describe_license(encoder: str, origin: str | None, license: str | None) -> str:
    """Return a sentence on the license of an encoder."""
    base = origin or Path(encoder).resolve().name
    return f"{base} has the license {license}." if license else f"The license of {base} was not found."


def describe_data_license(dataset_name: str | None = None, license: str | None = None) -> str:
    """Return a sentence on the license of the training data, or on where to find it."""
    if license is not None:
        return f"The training data have the license {license}."
    if dataset_name and is_hub_id(dataset_name):
        address = f"https://huggingface.co/datasets/{dataset_name}"
        return f"See [{dataset_name}]({address}) for the license of the data."
    return "The training data are local files; their license is not known."


def describe_pseudo_labels(data_args: Any) -> str:
    """Return a sentence on the license of texts that a model labeled, if there are any: it is that of other data."""
    file = getattr(data_args, "pseudo_labeled_file", None)
    return f" The license of the texts of {Path(file).name}, which a model labeled, is not known." if file else ""


def name_data(data_args: Any) -> str:
    """Return a short name of the training data: that of the dataset, the file or its folder."""
    if data_args.dataset_name:
        return str(data_args.dataset_name) if is_hub_id(data_args.dataset_name) else Path(data_args.dataset_name).name
    files = list_files(data_args)
    if not files:
        return "data"
    file = Path(files[0]).resolve()
    name = file.name.partition(".")[0]
    return file.parent.name if name in ("train", "training") and file.parent.name else name


def list_files(data_args: Any) -> list[str]:
    """Return the files of the training data."""
    given = data_args.train_file
    return find_files([given] if isinstance(given, str) else given) if given else []


def describe_data(
    trainer: Trainer,
    task: str,
    data_args: Any,
    metrics: dict[str, Any],
    documents: int | None,
    texts: Dataset | None = None,
) -> str:
    """Return names and amount of the training data, with a digest of local files or of texts in memory."""
    files, facts = list_files(data_args), []
    if documents is not None:
        facts.append(f"{documents:,} documents")
    if "train_samples" in metrics:
        facts.append(f"{metrics['train_samples']:,} examples")
    if task in ("fill-mask", "feature-extraction") and (tokens := count_tokens(trainer.train_dataset)):
        facts.append(f"{tokens:,} tokens")
    if (labeled := getattr(data_args, "pseudo_labeled_file", None)) and trainer.args.do_train:
        facts.append(f"those of {describe_files(find_files(labeled))} were labeled by a model")
    if files:
        return describe_files(files, facts)
    names = name_data(data_args)
    if texts is not None:
        facts.append(f"sha256 of the texts {fingerprint_texts(texts)}")
    if not data_args.dataset_name and isinstance(trainer.train_dataset, IterableDataset):
        args, names = trainer.args, "a stream"
        examples = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        facts.append(f"{trainer.state.global_step * examples:,} examples read")
    if data_args.dataset_config_name:
        names += f", {data_args.dataset_config_name}"
    return f"{names} ({', '.join(facts)})" if facts else names


def fingerprint_texts(texts: Dataset) -> str:
    """Return a digest of the texts of documents in their order, each as a line of JSON."""
    digest = hashlib.sha256()
    for batch in texts.select_columns(["text"]).iter(1000):
        digest.update("".join(f"{json.dumps(text)}\n" for text in batch["text"]).encode())
    return digest.hexdigest()


def describe_files(files: Sequence[str], facts: Sequence[str] = ()) -> str:
    """Return the names of files with facts about them and a digest of their contents."""
    names = ", ".join(Path(file).name for file in files[:5])
    more = f" and {len(files) - 5} more" if len(files) > 5 else ""
    return f"{names}{more} ({', '.join([*facts, f'sha256 {fingerprint_files(files)}'])})"


def count_tokens(dataset: Any) -> int:
    """Return the number of tokens of a dataset, special tokens included; 0 for a stream."""
    if not isinstance(dataset, Dataset):
        return 0
    batches = dataset.select_columns(["input_ids"]).with_format("arrow").iter(10_000)
    return sum(len(batch["input_ids"].combine_chunks().flatten()) for batch in batches)


def list_scores(metrics: dict[str, Any], split: str) -> list[str]:
    """List the scores of a split: numbers without durations and baseline scores."""
    names = [name.removeprefix(f"{split}_") for name in metrics if name.startswith(f"{split}_")]
    numbers = [name for name in names if type(metrics[f"{split}_{name}"]) in (int, float)]
    return [name for name in numbers if name not in NOT_SCORES and not name.startswith("baseline_")]


def tabulate_scores(metrics: dict[str, Any], split: str) -> str:
    """Return the table of a task's scores beside the majority baseline's, with the deciding metric in bold."""
    names = list_scores(metrics, split)
    counts = next((name for name in DECIDING if name in names), None)
    has_baseline = any(name.startswith(f"{split}_baseline_") for name in metrics)
    header = ["metric", f"{SPLIT_NAMES[split]} set", *(["majority baseline"] if has_baseline else [])]
    lines = [f"| {' | '.join(header)} |", f"| {' | '.join(['---'] * len(header))} |"]
    for name in names:
        cells = [name.replace("_", " ").replace("f1", "F1"), f"{metrics[f'{split}_{name}']:.4g}"]
        baseline = metrics.get(f"{split}_baseline_{name}")
        cells = [f"**{cell}**" if name == counts else cell for cell in cells]
        if has_baseline:
            cells.append("" if baseline is None else f"{baseline:.4g}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def tabulate_losses(metrics: dict[str, Any]) -> str:
    """Return the table of the held-out losses before and after training, also on general text if it was measured."""
    rows = {
        "before the first step": "start_loss",
        "after training": "eval_loss",
        "general text, before the first step": "start_general_loss",
        "general text, after training": "general_loss",
    }
    measured = {row: metrics[name] for row, name in rows.items() if name in metrics}
    lines = [f"| {row} | {loss:.4f} | {math.exp(loss):.4g} |" for row, loss in measured.items()]
    return "\n".join(["| held-out text | loss | perplexity |", "| --- | --- | --- |", *lines])


def list_settings(trainer: Trainer, metrics: dict[str, Any], *groups: Any) -> dict[str, Any]:
    """Return the settings of a training and its cost."""
    args, state = trainer.args, trainer.state
    values = {item.name: getattr(group, item.name) for group in (*groups, args) if group for item in fields(group)}
    settings = {name.replace("_", " "): format_value(values[name]) for name in SETTINGS if values.get(name)}
    if values.get("datastore"):
        settings["passages"] = values["num_passages"]
    if values.get("start") == "paper":
        settings["start"] = "as in the paper"
    settings["steps"] = f"{state.global_step:,}"
    settings["examples a step"] = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    for name, metric in (
        ("trained parameters", "trainable_parameters"),
        ("tokens trained on", "num_input_tokens_seen"),
    ):
        if metric in metrics:
            settings[name] = f"{metrics[metric]:,}"
    if "train_runtime" in metrics:
        # Trainer measures from its last start.
        name = "seconds since it was resumed" if args.resume_from_checkpoint else "seconds"
        settings[name] = f"{metrics['train_runtime']:.0f}"
    settings["versions"] = list_versions()
    return settings


def list_versions() -> str:
    """Return the versions of Python and the packages that compute."""
    return ", ".join(f"{name} {version}" for name, version in describe_environment()["versions"].items())


def list_chosen(trainer: Trainer, model_args: Any) -> list[str]:
    """List what a run chose by its scores on the validation set."""
    config: Any = trainer.model.config  # type: ignore[union-attr]
    chosen = {
        "the learning rate": getattr(model_args, "learning_rates", None),
        "the checkpoint": trainer.args.load_best_model_at_end,
        "the thresholds of the labels": getattr(config, "label_thresholds", None),
        "the weight of the vote": find_vote(config.to_dict(), type(trainer.model).__name__),
    }
    return [what for what, is_chosen in chosen.items() if is_chosen]


def format_value(value: Any) -> str:
    """Return the text of an option's value."""
    return f"{value:.4g}" if isinstance(value, float) else str(getattr(value, "value", value))


def describe_limits(folder: Path, task: str, is_evaluated: bool, knows_forgetting: bool) -> str:
    """Return the limits of a model, for its card.

    Args:
        knows_forgetting: Whether the loss on general text was measured.
    """
    config, sentences = read_config(folder), []
    if is_evaluated:
        sentences.append("The results come from one run with one seed, on the data above.")
    else:
        sentences.append("This model was not evaluated on held-out data.")
    if task == "fill-mask" and not knows_forgetting:
        sentences.append("Forgetting of general text was not measured; `--general_validation_file` measures it.")
    if reads_passages(config):
        sentences.append("Without passages of its datastore, the model computes what its encoder alone computes.")
    if config.get("appended_passage_length"):
        sentences.append(
            "Training appended the best passage of a datastore to each text. hf_domain.predict does so, too; a "
            "pipeline reads the text alone, and predicts worse."
        )
    if config.get("memory_tokenizer", "same") != "same":
        sentences.append(
            "The memory has its own tokenizer and needs `memory_input_ids`, which hf_domain.predict provides."
        )
    if task == "feature-extraction":
        sentences.append(
            "Fine-tune the model before use: distillation trains neither the end of the last layer nor an LM head."
        )
    return " ".join(sentences)


def describe_command(arguments: Sequence[str] | None = None) -> str:
    """Return the command of this process without secrets and folders, with the settings of a file as flags."""
    program, *flags = arguments if arguments is not None else sys.argv
    if flags and flags[0].endswith((".json", ".yaml", ".yml")):
        flags = [*list_file_flags(flags[0]), *flags[1:]]
    kept: list[str] = []
    for flag in flags:
        if kept and kept[-1] in SECRETS:
            kept.pop()
        elif flag.partition("=")[0] not in SECRETS or "=" not in flag:
            kept.append(flag)
    if kept and kept[-1] in SECRETS:
        kept.pop()
    name = program if program.startswith("hf-domain ") else SCRIPT_COMMANDS.get(Path(program).stem, Path(program).name)
    return f"{name} {shlex.join(map(hide_folders, kept))}".strip()


def list_file_flags(file: str) -> list[str]:
    """Return the settings of a file as flags."""
    flags = []
    for name, value in read_settings(file, as_text=True).items():
        if value is not None:
            flags += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    return flags

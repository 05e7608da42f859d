"""Write model cards: one class of what a card says, one template, and what runs and commands put into it."""

import hashlib
import json
import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

from datasets import Dataset, IterableDataset
from huggingface_hub import EvalResult, HfApi, ModelCard, ModelCardData
from huggingface_hub.constants import HF_HUB_OFFLINE
from transformers import Trainer

from hf_domain.data.files import find_files
from hf_domain.environment import describe_environment
from hf_domain.extras import name_package
from hf_domain.hub import carries_foreign_code, check_license, has_own_code, is_hub_id, list_licenses, read_config
from hf_domain.methods import BASELINE, METHODS
from hf_domain.safe_io import fingerprint_files, read_json, write_text
from hf_domain.tasks.baseline import describe_unlearned
from hf_domain.tasks.classification import find_vote
from hf_domain.tasks.kind import KINDS
from hf_domain.training.calls import call, describe_command, hide_folders
from hf_domain.training.run_folder import METRICS

logger = logging.getLogger(__name__)

# The Hub's names of our metrics.
METRIC_TYPES = {"macro_f1": "f1", "micro_f1": "f1", "pearson": "pearsonr", "spearman": "spearmanr"}
# The deciding metric of a task is the first of these that was measured; with several labels, macro F1.
DECIDING = ("macro_f1", "f1", "mse")
SPLIT_NAMES = {"predict": "test", "eval": "validation"}
NOT_SCORES = ("runtime", "samples", "samples_per_second", "steps_per_second", "model_preparation_time", "loss")
LOSSES = {
    "before the first step": "start_loss",
    "after training": "eval_loss",
    "general text, before the first step": "start_general_loss",
    "general text, after training": "general_loss",
}
SETTINGS = (
    "config_overrides", "expanded_vocabulary", "memory_name_or_path", "datastore",
    "max_seq_length", "objective", "mix", "mlm_probability", "whole_word_mask", "learning_rate", "lr_scheduler_type",
    "warmup_steps", "weight_decay", "seed", "bf16", "fp16",
)  # fmt: skip


@dataclass(kw_only=True)
class Card:
    """The text of a model card. The rest comes from the saved model and from its method."""

    model_name: str
    """Name that users of the model will write."""
    base_model: str
    """What training started from: a name on the Hub, or see `describe_base`."""
    example: str
    """A text for the usage snippet; for a masked LM with the tokenizer's mask token."""
    corpus: str
    """The text or the data of the training."""
    settings: Mapping[str, Any]
    """Hyperparameters and costs, name to value."""
    limits: str
    """Uses for which the model was not tested."""
    license_note: str
    """Licenses of base model and data."""
    task: str = "fill-mask"
    """Pipeline tag of the Hub."""
    method: str | None = None
    """A key of `METHODS`; None for fine-tuning of a stock encoder."""
    method_name: str = ""
    """What to call the method. Default: its title."""
    summary: str = ""
    """The first sentence; `{base_model}` is the encoder. Default: that of the method and the task."""
    command: str = ""
    """Command of the training, or its call in Python."""
    results: str = ""
    """Markdown of what was measured: a table, a note and pictures."""
    warning: str = ""
    """A sentence that a reader must not miss."""


def write_model_card(folder: str | Path, metadata: Mapping[str, Any], **facts: Any) -> Path:
    """Write README.md into the folder of a saved model.

    Args:
        metadata: Fields of huggingface_hub's `ModelCardData`, such as license and language.
        facts: The fields of `Card`.
    """
    path = Path(folder) / "README.md"
    write_text(path, str(format_card(folder, Card(**facts), **metadata)))
    return path


def format_card(folder: str | Path, card: Card, **metadata: Any) -> ModelCard:
    """Return the card of a saved model; see `write_model_card`.

    Raises:
        ValueError: The method is unknown, or the Hub does not accept a license.
    """
    if card.method is not None and card.method not in METHODS:
        raise ValueError(f"the method of a model card must be one of {', '.join(METHODS)}, but is {card.method}")
    for name in ("license", "data_license"):
        check_license(metadata.get(name))
    about, config = METHODS[card.method] if card.method else None, read_config(folder)
    base_model = metadata.pop("base_model", card.base_model if is_hub_id(card.base_model) else None)
    data = ModelCardData(
        **metadata,
        library_name="transformers",
        pipeline_tag=card.task,
        tags=["hf-domain", *([card.method] if card.method else [])],
        base_model=base_model,
        base_model_relation="finetune" if base_model else None,
        model_name=card.model_name if metadata.get("eval_results") else None,
    )
    text = {
        "base_model": hide_folders(card.base_model),
        "summary": summarize(card, about, config),
        "method_name": card.method_name or (about.title if about is not None else "fine-tuning"),
        "paper": about.paper if about is not None else "",
        "citation": about.citation if about is not None else "",
        "settings": {name: format_setting(value) for name, value in card.settings.items()},
        "command": hide_folders(card.command),
        "command_language": "python" if card.command.startswith("hf_domain.") else "bash",
        "package": name_package(),
    }
    return ModelCard.from_template(
        data,
        template_str=(files("hf_domain") / "model_card.md").read_text(encoding="utf-8"),
        **vars(card) | text | describe_usage(card) | describe_model(folder, config),
    )


def describe_usage(card: Card) -> dict[str, Any]:
    """Return what the template needs for the snippets that use a model."""
    kind = next((kind for kind in KINDS.values() if kind.pipeline_tag == card.task), None)
    question = {"question": "Who wrote it?", "context": card.example}
    fences = re.findall("`+", card.example + card.model_name + card.command)
    return {
        "model": quote(card.model_name),
        "text": quote(card.example),
        "row": quote(question if card.task == "question-answering" else card.example),
        "auto_class": "AutoModel" if kind is None else kind.auto_class.__name__,
        "is_masked_lm": card.task == "fill-mask",
        "is_task": card.task not in ("fill-mask", "feature-extraction"),
        "fence": "`" * max([3, *(len(fence) + 1 for fence in fences)]),  # longer than any fence inside it
    }


# ------------------------------------------------------------------------------------------- what a saved model tells


def describe_model(folder: str | Path, config: dict[str, Any]) -> dict[str, Any]:
    """Return what the template needs to know of a saved model: its code, its tokenizer, and what it reads."""
    reads, vote, has_code = reads_passages(config), find_vote(config), has_own_code(config)
    foreign = ", trust_remote_code=True" if carries_foreign_code(folder) else ""
    passages = ', datastore="datastore"' if reads or config.get("appended_passage_length") else ""
    texts = ', labeled_texts="train.jsonl"' if vote else ""
    return {
        "config": config,
        "has_own_code": has_code,
        "trust": ", trust_remote_code=True" if has_code else foreign,
        "trust_foreign": foreign,
        "options": passages + foreign + texts,
        "reads_passages": reads,
        "vote": vote,
        "only_auto_tokenizer": looks_up_words(folder),
    }


def summarize(card: Card, about: Any, config: dict[str, Any]) -> str:
    """Return the first sentence of a card."""
    start = hide_folders(card.base_model)
    if card.summary:
        return card.summary.format(base_model=start)
    if about is not None and card.task == "fill-mask":
        return about.summary.format(base_model=start, **describe_parts(config))
    if card.task == "fill-mask":
        return f"{start}, trained further with masked language modeling."
    around = f" with {about.title}" if about is not None else ""
    return f"This model is {start}{around}, trained for {card.task.replace('-', ' ')}."


def describe_parts(config: dict[str, Any]) -> dict[str, str]:
    """Return from a saved configuration which parts a model has and which of them were trained."""
    parts = {"extension_vocab_size": "an extension vocabulary", "extension_hidden_size": "a side module in every layer"}
    state = {True: "frozen", False: "trained as well"}
    return {
        "encoder": state[bool(config.get("freeze_backbone"))],
        "memory": state[bool(config.get("freeze_memory"))],
        "extension": " and ".join(part for name, part in parts.items() if config.get(name)),
    }


def reads_passages(config: dict[str, Any]) -> bool:
    """Return whether a saved configuration is of a model that reads passages."""
    return has_own_code(config) and METHODS[config["model_type"]].reads_passages


def looks_up_words(folder: str | Path) -> bool:
    """Return whether the tokenizer is a BPE that looks up words before it merges, as an expanded BPE does."""
    path = Path(folder, "tokenizer.json")
    if not path.is_file():
        return False
    model = json.loads(path.read_text(encoding="utf-8"))["model"]
    return model["type"] == "BPE" and model.get("ignore_merges", False)


def quote(value: Any) -> str:
    """Return a text, or a mapping of texts, as Python source."""
    return json.dumps(value, ensure_ascii=False)


def format_setting(value: Any) -> str:
    """Format a setting for a table: a number with four digits, a path without its folders."""
    text = f"{value:.4g}" if isinstance(value, float) else str(getattr(value, "value", value))
    return " ".join(hide_folders(text).split()).replace("|", "\\|")


# --------------------------------------------------------------------------------------------------- cards of runs


def make_run_card(
    trainer: Trainer,
    task: str,
    model_args: Any,
    data_args: Any,
    passage_args: Any,
    *,
    command: str | None,
    documents: int | None = None,
    texts: Dataset | None = None,
    student: str = "",
) -> ModelCard:
    """Return the card of a trained model.

    Args:
        trainer: Must have saved the model and the metrics.
        task: Pipeline tag of the Hub.
        documents: Number of documents of a corpus, if counted.
        command: What trained it. Default: that of `calls.call`, or the command of this process.
        texts: Documents of a corpus that is no file, for a digest.
        student: What a distilled model is; `{base_model}` is its teacher.
    """
    folder, dataset = Path(str(trainer.args.output_dir)), data_args.dataset_name
    metrics = read_json(folder / METRICS) if (folder / METRICS).is_file() else {}
    tokenizer: Any = trainer.processing_class
    base_model, metadata, sentence = describe_base(model_args.model_name_or_path, model_args.token)
    results, scores = describe_results(trainer, task, data_args, metrics)
    name = trainer.hub_model_id if trainer.args.push_to_hub else None
    method_name = "distillation into a student" if student else ""
    example = f"This is a {tokenizer.mask_token}." if task == "fill-mask" else "This is a text."
    warnings = [describe_unlearned(metrics, split) for split in SPLIT_NAMES]
    card = Card(
        task=task,
        method="adalm" if student else find_method(folder, task, model_args),
        summary=student,
        method_name=method_name,
        model_name=name or folder.resolve().name,
        base_model=base_model,
        corpus=describe_data(trainer, data_args, metrics, documents, texts),
        settings=list_settings(trainer, metrics, model_args, data_args, passage_args),
        limits=describe_limits(task, bool(results), "general_loss" in metrics),
        license_note=f"{sentence} {describe_data_license(dataset, data_args.data_license)}",
        example=example,
        command=command or call.get() or describe_command(),
        results=results,
        warning=next(filter(None, warnings), ""),
    )
    metadata |= {"data_license": data_args.data_license, "eval_results": scores or None}
    return format_card(folder, card, **metadata, datasets=[dataset] if dataset and is_hub_id(dataset) else None)


def describe_results(
    trainer: Trainer, task: str, data_args: Any, metrics: dict[str, Any]
) -> tuple[str, list[EvalResult]]:
    """Return what was measured on the test set, else on validation, as text and as metadata; empty without scores."""
    if task == "feature-extraction":
        return "", []  # the losses of a distillation are not scores of the model
    is_scored = {
        name: name == "eval" if task == "fill-mask" else bool(list_scores(metrics, name)) for name in SPLIT_NAMES
    }
    split = next((name for name in SPLIT_NAMES if is_scored[name] and f"{name}_samples" in metrics), None)
    if split is None:
        return "", []
    if task == "fill-mask":
        table, name = tabulate_losses(metrics), "loss"
        predicted = "next" if data_args.objective == "clm" else "masked"
        note = f"Loss is the mean cross-entropy of {predicted} tokens, in nats, on held-out text."
        if "start_general_loss" in metrics:
            note += " A rise on general text is what the encoder forgot."
    else:
        table = tabulate_scores(metrics, split)
        name = next((name for name in DECIDING if f"{split}_{name}" in metrics), list_scores(metrics, split)[0])
        note = f"Measured on the {SPLIT_NAMES[split]} set ({metrics.get(f'{split}_samples', 0):,} examples); the "
        note += "majority baseline predicts the same label for every example."
        if split == "eval" and (chosen := list_chosen(trainer)):
            note += f" The same set also chose {' and '.join(chosen)}: expect lower scores on new data."
    config = data_args.dataset_config_name if data_args.dataset_name else None
    value = metrics[f"{split}_{name}"]
    score = make_score(task, name_data(data_args), SPLIT_NAMES[split], name, value, config_name=config)
    return f"{table}\n\n{note}", [score]


def make_score(
    task: str, data: str, split: str, metric: str, value: float, *, config_name: str | None = None
) -> EvalResult:
    """Return a score for the metadata of a card.

    Args:
        task: Pipeline tag of the Hub.
        data: A dataset of the Hub, or the name of a file.
        metric: Name in `all_results.json`.
        config_name: Configuration of the dataset.
    """
    # The Hub allows letters, digits and these characters in the identifier of a dataset.
    identifier = data if is_hub_id(data) else re.sub(r"[^\w.-]+", "-", data).strip("-.") or "data"
    return EvalResult(
        task_type=task,
        dataset_type=identifier,
        dataset_name=data,
        dataset_config=config_name,
        dataset_split=split,
        metric_type=METRIC_TYPES.get(metric, metric),
        metric_name=metric.replace("_", " ").replace("f1", "F1"),
        metric_value=float(value),
    )


def find_method(folder: Path, task: str, model_args: Any) -> str | None:
    """Return the method of a model, from its model type or from the options that trained a stock encoder."""
    config = read_config(folder)
    if has_own_code(config):
        return config["model_type"]
    if task != "fill-mask" or model_args.method not in METHODS:
        return None
    expands = METHODS[model_args.method].trains_stock_model and getattr(model_args, "expanded_vocabulary", None)
    return "adalm" if expands and model_args.method == BASELINE else model_args.method


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
    trainer: Trainer, data_args: Any, metrics: dict[str, Any], documents: int | None, texts: Dataset | None = None
) -> str:
    """Return names and amount of the training data, with a digest of local files or of texts in memory."""
    files, facts = list_files(data_args), []
    if documents is not None:
        facts.append(f"{documents:,} documents")
    if "train_samples" in metrics:
        facts.append(f"{metrics['train_samples']:,} examples")
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
    rows = []
    for name in names:
        cells = [name.replace("_", " ").replace("f1", "F1"), f"{metrics[f'{split}_{name}']:.4g}"]
        baseline = metrics.get(f"{split}_baseline_{name}")
        cells = [f"**{cell}**" if name == counts else cell for cell in cells]
        rows.append([*cells, *(["" if baseline is None else f"{baseline:.4g}"] if has_baseline else [])])
    return format_table(header, rows)


def tabulate_losses(metrics: dict[str, Any]) -> str:
    """Return the table of the held-out losses before and after training, also on general text if it was measured."""
    measured = {row: metrics[name] for row, name in LOSSES.items() if name in metrics}
    rows = [[row, f"{loss:.4f}", f"{math.exp(loss):.4g}"] for row, loss in measured.items()]
    return format_table(["held-out text", "loss", "perplexity"], rows)


def format_table(header: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows))


def list_settings(trainer: Trainer, metrics: dict[str, Any], *groups: Any) -> dict[str, Any]:
    """Return the settings of a training and its cost."""
    args, state = trainer.args, trainer.state
    values = {item.name: getattr(group, item.name) for group in (*groups, args) if group for item in fields(group)}
    settings = {name.replace("_", " "): values[name] for name in SETTINGS if values.get(name)}
    if values.get("datastore"):
        settings["passages"] = values["num_passages"]
    if values.get("start") == "paper":
        settings["start"] = "as in the paper"
    settings["steps"] = f"{state.global_step:,}"
    settings["examples a step"] = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    costs = {"trained parameters": "trainable_parameters", "tokens trained on": "num_input_tokens_seen"}
    settings |= {name: f"{metrics[metric]:,}" for name, metric in costs.items() if metric in metrics}
    if "train_runtime" in metrics:
        # Trainer measures from its last start.
        name = "seconds since it was resumed" if args.resume_from_checkpoint else "seconds"
        settings[name] = f"{metrics['train_runtime']:.0f}"
    return settings | {"versions": list_versions()}


def list_versions() -> str:
    """Return the versions of Python and the packages that compute."""
    return ", ".join(f"{name} {version}" for name, version in describe_environment()["versions"].items())


def list_chosen(trainer: Trainer) -> list[str]:
    """List what a run chose by its scores on the validation set."""
    config: Any = trainer.model.config  # type: ignore[union-attr]
    chosen = {
        "the checkpoint": trainer.args.load_best_model_at_end,
        "the thresholds of the labels": getattr(config, "label_thresholds", None),
        "the weight of the vote": find_vote(config.to_dict(), type(trainer.model).__name__),
    }
    return [what for what, is_chosen in chosen.items() if is_chosen]


def describe_limits(task: str, is_evaluated: bool, knows_forgetting: bool) -> str:
    """Return what was not measured of a model; the template adds what its configuration limits.

    Args:
        knows_forgetting: Whether the loss on general text was measured.
    """
    limits = "This model was not evaluated on held-out data."
    if is_evaluated:
        limits = "The results come from one run with one seed, on the data above."
    if task == "fill-mask" and not knows_forgetting:
        limits += " Forgetting of general text was not measured; `--general_validation_file` measures it."
    return limits


# ----------------------------------------------------------------------------------------------- origins and licenses


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


def describe_base(encoder: str, token: str | None = None) -> tuple[str, dict[str, Any], str]:
    """Return how a card names the encoder that a model was made from, its metadata, and a sentence on its license.

    The name is that without folders, and that of the model on the Hub that the encoder was made from.
    """
    origin, license = find_origin(encoder, token)
    known = license if license in list_licenses() else None
    own = encoder if is_hub_id(encoder) else Path(encoder).resolve().name
    name = origin or own
    sentence = f"{name} has the license {known}." if known else f"The license of {name} was not found."
    return own if name == own else f"{own}, made from {name}", {"base_model": origin, "license": known}, sentence


def describe_data_license(dataset_name: str | None = None, license: str | None = None) -> str:
    """Return a sentence on the license of the training data, or on where to find it."""
    if license is not None:
        return f"The training data have the license {license}."
    if dataset_name and is_hub_id(dataset_name):
        address = f"https://huggingface.co/datasets/{dataset_name}"
        return f"See [{dataset_name}]({address}) for the license of the data."
    return "The training data are local files; their license is not known."


def write_command_card(folder: Path, encoder: str, **facts: Any) -> None:
    """Write the card of a model that was made from an encoder and local files, but not by Trainer alone.

    Args:
        folder: Has the saved model.
        facts: Further fields of `Card`.
    """
    base_model, metadata, sentence = describe_base(encoder)
    facts["settings"] = {**facts["settings"], "versions": list_versions()}
    facts["license_note"] = f"{sentence} {describe_data_license()}"
    write_model_card(folder, metadata, base_model=base_model, command=describe_command(), **facts)

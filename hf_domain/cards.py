"""Build the model cards of runs and of comparisons."""

import json
import re
from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache
from importlib.metadata import PackageNotFoundError, metadata
from importlib.resources import files
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from hf_domain.hub import has_own_code, is_hub_id, read_config
from hf_domain.methods import METHODS
from hf_domain.safe_io import write_text
from hf_domain.tasks.classification import find_vote

# Code that loads a model without this package, by task, with a pipeline if transformers has one. `{model}` and `{text}`
# are quoted; `{trust}` is empty for stock models.
USAGE = {
    "fill-mask": """from transformers import pipeline

fill_mask = pipeline("fill-mask", model={model}{trust})
for answer in fill_mask({text}, top_k=3):
    print(f"{{answer['score']:.3f}}  {{answer['sequence']}}")""",
    "text-classification": """from transformers import pipeline

classify = pipeline("text-classification", model={model}{trust})
print(classify({text}))""",
    "token-classification": """from transformers import pipeline

find_entities = pipeline("token-classification", model={model}, aggregation_strategy="simple"{trust})
print(find_entities({text}))""",
    "question-answering": """from transformers import AutoModelForQuestionAnswering, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained({model})
model = AutoModelForQuestionAnswering.from_pretrained({model}{trust})""",
    "feature-extraction": """from transformers import AutoModel, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained({model})
model = AutoModel.from_pretrained({model}{trust})""",
    "sentence-similarity": """from sentence_transformers import SentenceTransformer

model = SentenceTransformer({model}{trust})
print(model.similarity(*model.encode([{text}, "Another text."])))""",
}
# Code with this package, for all tasks except masked LM; it also retrieves passages and feeds a memory.
PREDICT = """import hf_domain

print(hf_domain.predict({model}, {rows}{options})[0])"""
TASK_NAMES = {
    "text-classification": "text classification",
    "token-classification": "token classification",
    "question-answering": "question answering",
    "feature-extraction": "encoding texts",
    "sentence-similarity": "sentence embeddings",
}
# The Hub's names of our metrics.
METRIC_TYPES = {"macro_f1": "f1", "micro_f1": "f1", "pearson": "pearsonr", "spearman": "spearmanr"}


def name_package() -> str:
    """Return the name of this package, as a link if its metadata have a URL. No package index has it."""
    try:
        urls = metadata("hf-domain").get_all("Project-URL") or []
    except PackageNotFoundError:
        urls = []
    return f"[hf-domain]({urls[0].rpartition(' ')[2]})" if urls else "hf-domain"


@cache
def list_licenses() -> tuple[str, ...]:
    """Return the license identifiers that the Hub accepts (hub-docs, repositories-licenses)."""
    return tuple((files("hf_domain") / "hub_licenses.txt").read_text(encoding="utf-8").split())


def check_license(license: str | None) -> None:
    """Raise a ValueError unless the Hub accepts a license."""
    if license is not None and license not in list_licenses():
        near = get_close_matches(license.lower(), list_licenses(), n=1)
        raise ValueError(
            f"a license must be an identifier of the Hub, such as apache-2.0, but is {license!r}. "
            f"{f'Did you mean {near[0]}?' if near else 'Use other, and put the text into a LICENSE file.'}"
        )


def describe_parts(config: dict[str, Any]) -> dict[str, str]:
    """Return from a saved configuration which parts a model has and which of them were trained."""
    parts = {"extension_vocab_size": "an extension vocabulary", "extension_hidden_size": "a side module in every layer"}
    state = {True: "frozen", False: "trained as well"}
    return {
        "encoder": state[bool(config.get("freeze_backbone"))],
        "memory": state[bool(config.get("freeze_memory"))],
        "extension": " and ".join(part for name, part in parts.items() if config.get(name)),
    }


def name_encoder(name: str, origin: str | None, stages: Sequence[str] = ()) -> str:
    """Return an encoder's name without folders, its earlier trainings, and the model it was made from."""
    base = name if is_hub_id(name) else Path(name).resolve().name
    start = f"{base} (after {', then '.join(stages)})" if stages else base
    return start if origin in (None, base) else f"{start}, made from {origin}"


def make_usage(folder: str | Path, model_name: str, example: str, task: str = "fill-mask") -> str:
    """Return the snippet that loads a model without this package.

    Args:
        folder: Folder of the saved model.
        model_name: A name on the Hub, or a folder.
        example: A text; for a masked LM with the tokenizer's mask token.
        task: Pipeline tag of the Hub.
    """
    trust = ", trust_remote_code=True" if has_own_code(read_config(folder)) else ""
    return USAGE[task].format(model=quote(model_name), text=quote(example), trust=trust)


def make_usage_with_package(folder: str | Path, model_name: str, example: str, task: str) -> str:
    """Return the snippet that uses a model with this package; empty if it would repeat `make_usage`."""
    config = read_config(folder)
    if task in ("fill-mask", "feature-extraction", "sentence-similarity"):
        usage = USAGE[task].format(model=quote(model_name), text=quote(example), trust="")
        return f"import hf_domain\n{usage}" if has_own_code(config) else ""
    row: Any = {"question": "Who wrote it?", "context": example} if task == "question-answering" else example
    needs_datastore = reads_passages(config) or config.get("appended_passage_length")
    options = ', datastore="datastore"' if needs_datastore else ""
    options += ', labeled_texts="train.jsonl"' if find_vote(config) else ""
    return PREDICT.format(model=quote(model_name), rows=f"[{quote(row)}]", options=options)


def describe_vote(config: dict[str, Any]) -> str:
    """Return what a reader must know of a saved classifier's vote; empty without one."""
    if (vote := find_vote(config)) is None:
        return ""
    return (
        f"The results include a vote of the nearest training texts, {vote['count']} for each text, with the weight "
        f"{vote['weight']:.2f}. `hf-domain predict --labeled_file train.jsonl` mixes it in, too; a pipeline reads the "
        "text alone."
    )


def reads_passages(config: dict[str, Any]) -> bool:
    """Return whether a saved configuration is of a model that reads passages."""
    return has_own_code(config) and METHODS[config["model_type"]].reads_passages


def quote(value: Any) -> str:
    """Return a text, or a mapping of texts, as Python source."""
    return json.dumps(value, ensure_ascii=False)


def looks_up_words(folder: str | Path) -> bool:
    """Return whether the tokenizer is a BPE that looks up words before it merges, as an expanded BPE does."""
    path = Path(folder, "tokenizer.json")
    if not path.is_file():
        return False
    model = json.loads(path.read_text(encoding="utf-8"))["model"]
    return model["type"] == "BPE" and model.get("ignore_merges", False)


def hide_folders(text: str) -> str:
    """Return a text with absolute paths cut to their last names, so that a card leaks no path."""
    return re.sub(r"(?<![\w.:/])/(?:[^\s/,;='\"]+/)*([^\s/,;='\"]+)", r"\1", text)


def format_setting(value: Any) -> str:
    """Format a setting for a table; an absolute path is cut to its last name."""
    return " ".join(hide_folders(str(value)).split()).replace("|", "\\|")


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


def write_model_card(folder: str | Path, **options: Any) -> Path:
    """Write README.md into the folder of a saved model; see `make_model_card`."""
    path = Path(folder) / "README.md"
    write_text(path, str(make_model_card(folder, **options)))
    return path


def make_model_card(
    folder: str | Path,
    *,
    method: str | None,
    model_name: str,
    base_model: str,
    corpus: str,
    settings: dict[str, Any],
    limits: str,
    license: str | None,
    license_note: str,
    example: str,
    data_license: str | None = None,
    task: str = "fill-mask",
    origin: str | None = None,
    averaged: Sequence[tuple[str, str | None]] = (),
    summary: str = "",
    method_name: str = "",
    usage_output: str = "",
    language: str | None = "en",
    results_table: str | None = None,
    results_note: str = "",
    scores: Sequence[EvalResult] = (),
    datasets: Sequence[str] = (),
    pictures: Sequence[str] = (),
    stages: Sequence[str] = (),
    note: str = "",
    command: str = "",
    warning: str | None = None,
) -> ModelCard:
    """Return the card of a saved model.

    Args:
        method: A key of `METHODS`; None for fine-tuning of a stock encoder.
        model_name: Name that users of the model will write.
        base_model: Encoder that training started from: a name on the Hub, or a folder, which the card cuts to its last
            name.
        corpus: The text or the data of the training; empty without training.
        settings: Hyperparameters and costs, name to value.
        limits: Uses for which the model was not tested.
        license: License of the weights, as an identifier of the Hub; None if it is not settled.
        license_note: Licenses of base model and data.
        data_license: License of the data, as an identifier of the Hub, if known.
        example: A text for the usage snippet; for a masked LM with the tokenizer's mask token.
        task: Pipeline tag of the Hub.
        origin: Hub name of the model from which a local encoder was made, if known.
        averaged: The other encoders of an average, and their origins.
        summary: The first sentence; `{base_model}` is the encoder. Default: that of the method and the task.
        method_name: What to call the method. Default: its title.
        usage_output: Output of the usage snippet.
        language: Code of the language of the corpus, if known.
        results_table: Markdown table of measured results.
        results_note: Data of these results.
        scores: Deciding metrics, for the metadata.
        datasets: Datasets of the Hub that were trained on.
        pictures: File names of plots in the folder.
        stages: Earlier trainings of the encoder, in order.
        note: A sentence on how the training differs from the method's.
        command: Command of the training, or its call in Python.
        warning: A sentence that a reader must not miss.

    Raises:
        ValueError: The method is unknown, or the Hub does not accept the license.
    """
    if method is not None and method not in METHODS:
        raise ValueError(f"the method of a model card must be one of {', '.join(METHODS)}, but is {method}")
    check_license(license)
    check_license(data_license)
    about, config = METHODS[method] if method else None, read_config(folder)
    encoders = [(base_model, origin), *averaged]
    start = " and ".join(name_encoder(name, origin, stages) for name, origin in encoders)
    bases = [name if is_hub_id(name) else origin for name, origin in encoders]
    known_bases = [*dict.fromkeys(base for base in bases if base)]
    relation = "merge" if averaged else "finetune"
    usage = make_usage(folder, model_name, example, task)
    with_package = make_usage_with_package(folder, model_name, example, task)
    runs = re.findall("`+", usage + usage_output + with_package + command)
    if summary:
        summary = summary.format(base_model=start)
    elif about is not None and task == "fill-mask":
        summary = about.summary.format(base_model=start, **describe_parts(config))
    elif task == "fill-mask":
        summary = f"{start}, trained further with masked language modeling."
    else:
        around = f" with {about.title}" if about is not None else ""
        summary = f"This model is {start}{around}, trained for {TASK_NAMES[task]}."
    return ModelCard.from_template(
        ModelCardData(
            language=language,
            license=license,
            library_name="sentence-transformers" if task == "sentence-similarity" else "transformers",
            pipeline_tag=task,
            tags=["hf-domain", *([method] if method else [])],
            datasets=list(datasets) or None,
            base_model=known_bases if len(known_bases) > 1 else next(iter(known_bases), None),
            base_model_relation=relation if known_bases else None,
            data_license=data_license,  # None is left out
            model_name=model_name if scores else None,
            eval_results=list(scores) or None,
        ),
        template_str=(files("hf_domain") / "model_card.md").read_text(encoding="utf-8"),
        model_name=model_name,
        warning=warning,
        summary=f"{summary} {note}".strip(),
        base_model=start,
        corpus=corpus,
        is_masked_lm=task == "fill-mask",
        method_name=method_name or (about.title if about is not None else "fine-tuning"),
        paper=about.paper if about is not None else "",
        usage=usage,
        usage_output=usage_output,
        usage_with_package=with_package,
        package=name_package(),
        fence="`" * max([3, *(len(run) + 1 for run in runs)]),  # longer than any fence inside it
        trust=has_own_code(config),
        only_auto_tokenizer=looks_up_words(folder),
        results_table=results_table,
        results_note=results_note,
        pictures=pictures,
        settings={name: format_setting(value) for name, value in settings.items()},
        command=hide_folders(command),
        command_language="python" if command.startswith("hf_domain.") else "bash",
        limits=f"{limits} {describe_vote(config)}".strip(),
        license_note=license_note,
        citation=about.citation if about is not None else "",
    )

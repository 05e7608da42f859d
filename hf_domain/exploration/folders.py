"""What a folder holds that can be looked at: models, vocabularies, a datastore, a report."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from hf_domain.comparison.models import find_models, has_model
from hf_domain.comparison.results import read_results
from hf_domain.prediction import TASKS, find_head
from hf_domain.safe_io import read_json
from hf_domain.tokenization import VocabularyDelta
from hf_domain.training.arguments import find_damage
from hf_domain.training.run_folder import is_number, read_record

logger = logging.getLogger(__name__)

DELTA, MANIFEST, PLAN = "vocabulary_delta.json", "datastore.json", "plan.json"
REPORTS = ("report.html", "report.md")  # a published comparison may have the second alone
HOLDINGS = f"config.json, {DELTA}, {MANIFEST} or {PLAN}"


@dataclass
class Exploration:
    """What can be looked at; models by their names on the page, loaded when they are needed."""

    title: str
    encoders: dict[str, str] = field(default_factory=dict)
    """Masked LMs, in the order of their training."""
    fine_tuned: dict[str, str] = field(default_factory=dict)
    """Models with the head of a task."""
    tokenizers: dict[str, str] = field(default_factory=dict)
    """The old vocabulary first."""
    old_size: int | None = None
    """Entries before the expansion, where the old tokenizer is not there."""
    datastore: str | None = None
    report: Path | None = None
    """Report of a comparison: a page, or Markdown with figures beside it."""


def open_folder(folder: str, encoder: str | None = None, datastore: str | None = None) -> Exploration:
    """Find out what a folder is, and what it can be compared with.

    Args:
        folder: A model, an expanded vocabulary, a datastore, a comparison or its plan; or a model on the Hub.
        encoder: The encoder before its adaptation. Default: the one that the folder's run names, if it is on the Hub.
        datastore: Folder of the passages that a RADA reads.

    Raises:
        FileNotFoundError: There is no such folder or model, or the comparison has no report yet.
        ValueError: The folder holds nothing of this, or a model of another kind.
    """
    path = find_place(folder)
    if encoder is not None and (damage := find_damage(encoder)):
        raise ValueError(damage)
    if datastore is not None and not Path(datastore, MANIFEST).is_file():
        raise ValueError(
            f"--datastore must be a folder that build_datastore wrote, but {datastore} has no {MANIFEST}. Build one."
        )
    title = path.resolve().name if path.is_dir() else folder
    if (path / PLAN).is_file():
        return open_comparison(path, title)
    if (path / MANIFEST).is_file():
        return Exploration(title, datastore=str(path))
    start = encoder or find_start(path)
    names = {f"before: {Path(start).name}": start, f"after: {title}": str(path)} if start else {title: str(path)}
    old_size = VocabularyDelta.load(path).old_size if (path / DELTA).is_file() and not start else None
    found = Exploration(title, tokenizers=names, old_size=old_size, datastore=datastore)
    if path.is_dir() and not (path / "config.json").is_file():  # a vocabulary without a model
        return found
    try:
        architecture = (AutoConfig.from_pretrained(str(path), trust_remote_code=False).architectures or [""])[0]
    except OSError as error:
        if path.is_dir():
            raise
        raise FileNotFoundError(
            f"a model must be a folder or a name on the Hub, but there is no folder {folder}, and the Hub gave none: "
            f"{str(error).strip().splitlines()[0].rstrip('.')}. Check the path."
        ) from error
    if architecture.endswith("ForMaskedLM"):
        *before, (after, own) = names.items()
        found.encoders = dict(before) | list_checkpoints(path) | {after: own}
    elif architecture.endswith(tuple(TASKS)):
        found.fine_tuned = {title: str(path)}
    else:
        raise ValueError(
            f"a model must have a masked-LM head ({', '.join(['ForMaskedLM', *TASKS])}), but {folder} is a "
            f"{architecture or 'model of no class'}. Save the model with its head."
        )
    return found


def find_place(folder: str) -> Path:
    """Return the folder that is looked at: of a plan, that of its comparison.

    Raises:
        FileNotFoundError: The plan was not run.
        ValueError: The folder holds nothing to look at, or is no folder.
    """
    path = Path(folder)
    plan = next(
        (file for file in (path, path / "plan.yaml") if file.suffix in (".yaml", ".yml") and file.is_file()), None
    )
    path = path if plan is None else plan.with_suffix("")
    if plan is not None and not (path / PLAN).is_file():
        raise FileNotFoundError(
            f"the comparison of {plan} must be in {path}, but is not. Run hf-domain compare {plan}."
        )
    if path.is_dir() and not any((path / file).is_file() for file in (DELTA, MANIFEST, PLAN, "config.json")):
        raise ValueError(
            f"there must be a model, a vocabulary, a datastore or a comparison in {folder}, but it has no {HOLDINGS}"
        )
    if not any((path / file).is_file() for file in (MANIFEST, PLAN)) and (damage := find_damage(folder)):
        raise ValueError(damage)
    return path


def open_comparison(path: Path, title: str) -> Exploration:
    """Find the encoders and the fine-tuned models that a comparison kept, and its report."""
    report = next((path / name for name in REPORTS if (path / name).is_file()), None)
    if report is None:
        raise FileNotFoundError(
            f"{path} must have a {' or a '.join(REPORTS)}, but has none yet. Run hf-domain compare on its plan."
        )
    plan = read_json(path / PLAN)
    if "steps" not in plan:
        logger.warning(f"{path / PLAN} was written by an earlier version, so the page shows only the report.")
        return Exploration(title, report=report)
    results, start = read_results(path), path / plan["folder"] / plan["encoder"]
    place = str(start) if start.is_dir() else plan["encoder"]
    encoders = {f"before: {start.name}": place} if can_load(place, path) else {}
    for name, result in results.items():
        if result.step.kind in ("pretraining", "average") and result.is_done and has_model(path, result):
            encoders[name] = str(path / "steps" / result.step.address)
    models = {task: str(path / "steps" / run.step.address) for task, run in find_models(path, results).items()}
    return Exploration(title, encoders, models, encoders, report=report)


def find_start(path: Path) -> str | None:
    """Return the encoder that a run started from; None where its record has no name but a digest."""
    name = read_record(path).get("options", {}).get("model_name_or_path") if path.is_dir() else None
    return name if name and not name.startswith("sha256:") and can_load(name, path) else None


def can_load(encoder: str, path: Path) -> bool:
    """Return whether the encoder before adaptation is there; warn if the page must do without it."""
    try:
        AutoConfig.from_pretrained(encoder, trust_remote_code=False)
    except (OSError, ValueError):
        logger.warning(f"{encoder}, the encoder before adaptation, cannot be loaded: the page shows {path} alone")
        return False
    return True


def list_checkpoints(path: Path) -> dict[str, str]:
    """List the checkpoints of a run, by their steps."""
    checkpoints = [each for each in path.glob("checkpoint-*") if is_number(each) and (each / "config.json").is_file()]
    steps = sorted((int(each.name.removeprefix("checkpoint-")), each) for each in checkpoints)
    return {f"step {step}": str(each) for step, each in steps}


# ------------------------------------------------------------------------------------------------------- what is loaded


@lru_cache(maxsize=32)
def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Load a tokenizer, once."""
    return AutoTokenizer.from_pretrained(name, trust_remote_code=False)


@lru_cache(maxsize=8)
def load_model(name: str) -> PreTrainedModel:
    """Load a masked LM or a fine-tuned model, once; the eight that were used last stay in memory."""
    architectures: Any = AutoConfig.from_pretrained(name, trust_remote_code=False).architectures
    is_masked = (architectures or [""])[0].endswith("ForMaskedLM")
    auto_class: Any = AutoModelForMaskedLM if is_masked else find_head(architectures, name).auto_class
    return auto_class.from_pretrained(name, trust_remote_code=False).eval()


def list_vocabularies(names: Iterable[tuple[str, str]]) -> dict[str, PreTrainedTokenizerBase]:
    """Load tokenizers, and leave out those with the vocabulary of an earlier one."""
    found: dict[str, PreTrainedTokenizerBase] = {}
    for name, path in names:
        tokenizer = load_tokenizer(path)
        if all(tokenizer.get_vocab() != other.get_vocab() for other in found.values()):
            found[name] = tokenizer
    return found

"""Recommend what to try first on a corpus and its tasks: facts measured on samples, reasons, and a plan."""

import os
import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from hf_domain.advice.facts import Facts, measure_facts
from hf_domain.advice.rules import MAX_TRAIN_SAMPLES, Reason, apply_rules, choose_budget, foretell_hours
from hf_domain.comparison.plan_loading import load_plan
from hf_domain.files import write_json, write_text


@dataclass(frozen=True)
class Advice:
    """Measured facts, the reasons that follow from them, and a plan that tests them."""

    facts: Facts
    reasons: list[Reason]
    plan: dict[str, Any]
    """The content of the plan's YAML file."""
    hours: float
    """Expected duration of the plan on this machine."""

    def __str__(self) -> str:
        lines = [f"- {reason.text} ({reason.source})" for reason in self.reasons]
        hours = f"The plan takes about {self.hours:.1f} hours on this machine."
        return "\n".join([self.facts.describe(), "", *lines, "", hours])

    def save(self, folder: str | os.PathLike) -> Path:
        """Write plan.yaml, advice.md and advice.json into a folder, and return the path of the plan."""
        path = Path(folder, "plan.yaml")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path.with_name("advice.json"), asdict(self))
        command = f"hf-domain compare {shlex.quote(str(path))} --dry_run"
        write_text(path.with_name("advice.md"), f"# Advice\n\n{self}\n\nNext: `{command}`\n")
        write_text(path, yaml.safe_dump(self.plan, sort_keys=False))
        return path


def advise(
    encoder: str,
    corpus: str | os.PathLike,
    tasks: Sequence[str | os.PathLike],
    *,
    general: str | os.PathLike | None = None,
    hours: float = 8.0,
    max_seq_length: int = 128,
) -> Advice:
    """Recommend what to compare on a corpus and its tasks.

    Args:
        encoder: A masked LM: a folder or a name on the Hub.
        corpus: One local file of documents.
        tasks: Folders with train, validation and test as .jsonl, see docs/comparison.md.
        general: A file of general text. It lets the advice measure how much harder the corpus is for the encoder, and
            adds a control that trains on general text to the plan.
        hours: Maximum duration of all pre-training.
        max_seq_length: Number of tokens of an example.

    Raises:
        TypeError: The corpus is no path.
        ValueError: Corpus, tasks or encoder cannot be compared; lists all problems.
    """
    if not isinstance(corpus, (str, os.PathLike)):
        raise TypeError(
            f"corpus must be the path of one file, which the plan names, but is a {type(corpus).__name__}. Write the "
            "texts to a file."
        )
    if not hours > 0:
        raise ValueError(f"hours must be above 0, but is {hours}")
    corpora = {"domain": str(Path(corpus).resolve())}
    if general is not None:
        if Path(general).resolve() == Path(corpus).resolve():
            raise ValueError(f"general text and corpus must be different files, but both are {corpus}")
        corpora["general"] = str(Path(general).resolve())
    folders = {Path(task).resolve().name: str(Path(task).resolve()) for task in tasks}
    if len(folders) < len(tasks) or not tasks:
        listed = ", ".join(map(str, tasks)) or "none"
        raise ValueError(f"tasks must be one or more folders with different names, but are {listed}")
    content: dict[str, Any] = {
        "encoder": str(Path(encoder).resolve()) if Path(encoder).is_dir() else encoder,
        "corpora": corpora,
        **({"general": "general"} if general is not None else {}),
        "tasks": folders,
        "methods": ["fine_tune", "dapt"],
        "budget": {"tokens": 1_000_000},
    }
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder, "plan.yaml")
        write_text(draft, yaml.safe_dump(content))
        plan = load_plan(draft)
        facts = measure_facts(plan, max_seq_length)
    reasons = apply_rules(facts)
    content["methods"] = {reason.row: reason.options or None for reason in reasons if reason.row}
    content["seeds"] = [1, 2, 3, 4, 5]
    content["budget"] = {"tokens": choose_budget(facts, list(content["methods"]), hours)}
    content["fine_tuning"] = {"max_train_samples": MAX_TRAIN_SAMPLES}
    content["pretraining"] = {"max_seq_length": max_seq_length}
    return Advice(facts, reasons, content, foretell_hours(facts, content))

"""Recommend what to try first on a corpus and its tasks: facts measured on samples, reasons, and a plan."""

import os
import shlex
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hf_domain.advice.facts import Facts, measure_facts
from hf_domain.advice.rules import MAX_TRAIN_SAMPLES, Reason, apply_rules, choose_budget, foretell_hours
from hf_domain.comparison.objects import Files, Tasks, find_file, place_corpus, place_tasks, write_files
from hf_domain.comparison.plan_loading import ONLY_CORPUS, load_plan
from hf_domain.data.objects import Rows, Splits
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
    files: Files = field(default_factory=dict)
    """The rows of objects, by the files that the plan names."""

    def __str__(self) -> str:
        lines = [f"- {reason.text} ({reason.source})" for reason in self.reasons]
        hours = f"The plan takes about {self.hours:.1f} hours on this machine."
        return "\n".join([self.facts.describe(), "", *lines, "", hours])

    def save(self, folder: str | os.PathLike) -> Path:
        """Write plan.yaml, rows that no file holds, advice.md and advice.json into a folder; return the plan's path."""
        path = Path(folder, "plan.yaml")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_files(self.files, path.parent)
        facts, reasons = asdict(self.facts), [asdict(reason) for reason in self.reasons]
        content = {"facts": facts, "reasons": reasons, "plan": self.plan, "hours": self.hours}
        write_json(path.with_name("advice.json"), content)
        command = f"hf-domain compare {shlex.quote(str(path))} --dry_run"
        write_text(path.with_name("advice.md"), f"# Advice\n\n{self}\n\nNext: `{command}`\n")
        write_text(path, yaml.safe_dump(self.plan, sort_keys=False))
        return path


def advise(
    encoder: str,
    corpus: Rows | Splits,
    tasks: Tasks,
    *,
    general: Rows | Splits | None = None,
    hours: float = 8.0,
    max_seq_length: int = 128,
) -> Advice:
    """Recommend what to compare on a corpus and its tasks.

    Args:
        encoder: A masked LM: a folder or a name on the Hub.
        corpus: Text of the domain, see `load_corpus`.
        tasks: Folders with train, validation and test as .jsonl, see docs/comparison.md; or rows, as `compare` takes
            them.
        general: General text. It lets the advice measure how much harder the corpus is for the encoder, and
            adds a control that trains on general text to the plan.
        hours: Maximum duration of all pre-training.
        max_seq_length: Number of tokens of an example.

    Raises:
        TypeError: The corpus or a task contains no texts.
        ValueError: Corpus, tasks or encoder cannot be compared; lists all problems.
    """
    if not hours > 0:
        raise ValueError(f"hours must be above 0, but is {hours}")
    files = Files()
    corpora = {ONLY_CORPUS: place_corpus(corpus, "corpus", files)}
    if general is not None:
        corpora["general"] = place_corpus(general, "general", files)
        if corpora["general"] == corpora[ONLY_CORPUS]:
            raise ValueError(f"general text and corpus must be different files, but both are {corpus}")
    content: dict[str, Any] = {
        "encoder": find_file(encoder) if Path(encoder).is_dir() else encoder,
        "corpora": corpora,
        **({"general": "general"} if general is not None else {}),
        "tasks": place_tasks(tasks, files),
        "methods": ["fine_tune", "dapt"],
        "budget": {"tokens": 1_000_000},
    }
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder, "plan.yaml")
        write_files(files, draft.parent)
        write_text(draft, yaml.safe_dump(content))
        plan = load_plan(draft)
        facts = measure_facts(plan, max_seq_length)
    reasons = apply_rules(facts)
    content["methods"] = {reason.row: reason.options or None for reason in reasons if reason.row}
    content["seeds"] = [1, 2, 3, 4, 5]
    content["budget"] = {"tokens": choose_budget(facts, list(content["methods"]), hours)}
    content["fine_tuning"] = {"max_train_samples": MAX_TRAIN_SAMPLES}
    content["pretraining"] = {"max_seq_length": max_seq_length}
    return Advice(facts, reasons, content, foretell_hours(facts, content), files)

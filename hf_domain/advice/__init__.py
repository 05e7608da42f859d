"""Recommend what to try first on a corpus and its tasks: facts measured on samples, reasons, and a plan."""

import os
import shlex
import tempfile
import textwrap
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hf_domain.advice.facts import SEEDS, Facts, measure_facts
from hf_domain.advice.rules import (
    Reason,
    apply_rules,
    choose_budget,
    choose_plain_rule,
    choose_samples,
    estimate_fine_tuning,
    estimate_pretraining,
    find_unreadable,
)
from hf_domain.comparison.plan_loading import ONLY_CORPUS, load_plan
from hf_domain.data.objects import Files, Tasks, find_file, place_corpus, place_tasks, write_files
from hf_domain.data.tables import Rows, Splits
from hf_domain.safe_io import write_json, write_text


@dataclass(frozen=True)
class Advice:
    """Measured facts, the reasons that follow from them, and a plan that tests them."""

    facts: Facts
    reasons: list[Reason]
    plan: dict[str, Any]
    """The content of the plan's YAML file."""
    pretraining: dict[str, float]
    """Expected hours of pre-training of each row on this machine."""
    fine_tuning: dict[str, float]
    """Expected hours of fine-tuning of each row with all seeds."""
    limit: float
    """The hours that were given."""
    files: Files = field(default_factory=dict)
    """The rows of objects, by the files that the plan names."""

    @property
    def hours(self) -> float:
        """Expected duration of the plan on this machine."""
        return sum(self.pretraining.values()) + sum(self.fine_tuning.values())

    def __str__(self) -> str:
        warnings = [f"- {reason.text} ({reason.source})" for reason in self.reasons if not reason.row]
        rows = [
            f"- {reason.row}, {self.pretraining[reason.row] + self.fine_tuning[reason.row]:.1f} hours: {reason.text} "
            f"({reason.source})"
            for reason in self.reasons
            if reason.row
        ]
        parts = [["Measured:", "", self.facts.describe()], ["Before you start:", "", *warnings] if warnings else []]
        parts += [["Rows of the plan:", "", *rows], [self.describe_time()], [self.describe_plain_rule()]]
        return "\n\n".join("\n".join(lines) for lines in parts if lines)

    def describe_time(self) -> str:
        """Return how long the plan takes, and what takes the time."""
        tokens, samples = self.plan["budget"]["tokens"], self.plan["fine_tuning"]["max_train_samples"]
        pretraining, fine_tuning = (sum(hours.values()) for hours in (self.pretraining, self.fine_tuning))
        text = (
            f"The plan takes about {self.hours:.1f} hours on this machine: {pretraining:.1f} for pre-training "
            f"({tokens:,} tokens a row, {tokens / max(1, self.facts.corpus.tokens):.2g} passes over the corpus) and "
            f"{fine_tuning:.1f} for fine-tuning ({SEEDS} seeds, at most {samples:,} training examples of a task)."
        )
        if self.hours > 1.05 * self.limit:
            text += (
                f" This is more than the {self.limit:g} hours given. Remove rows or tasks from the plan, or use a GPU."
            )
        return text

    def describe_plain_rule(self) -> str:
        """Return what to do without time for the plan."""
        if find_unreadable(self.facts):
            return "With time for one pre-training only, fine-tune another encoder, which can read the texts."
        return (
            f"With time for one pre-training only, take {choose_plain_rule(self.plan['methods'])}: on the published "
            "results the rules above chose no better one than this plain rule (results/NOTES.md)."
        )

    def save(self, folder: str | os.PathLike) -> Path:
        """Write plan.yaml, rows that no file holds, advice.md and advice.json into a folder; return the plan's path."""
        path = Path(folder, "plan.yaml")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_files(self.files, path.parent)
        facts, reasons = asdict(self.facts), [asdict(reason) for reason in self.reasons]
        content = {"facts": facts, "reasons": reasons, "plan": self.plan, "hours": self.hours}
        content |= {"pretraining_hours": self.pretraining, "fine_tuning_hours": self.fine_tuning}
        write_json(path.with_name("advice.json"), content)
        command = f"hf-domain compare {shlex.quote(str(path))} --dry_run"
        write_text(path.with_name("advice.md"), f"# Advice\n\n{self}\n\nNext: `{command}`\n")
        write_text(path, self.write_plan())
        return path

    def write_plan(self) -> str:
        """Return the plan as YAML, with the reason of each row above it as a comment."""
        parts = {name: yaml.safe_dump({name: value}, sort_keys=False) for name, value in self.plan.items()}
        rows = ["methods:\n"]
        for reason in self.reasons:
            if reason.row:
                text = textwrap.wrap(f"{reason.text} ({reason.source})", width=100, break_on_hyphens=False)
                rows += [f"# {line}\n" for line in text]
                rows.append(yaml.safe_dump({reason.row: reason.options or None}, sort_keys=False))
        parts["methods"] = textwrap.indent("".join(rows), "  ").lstrip()
        return "".join(parts.values())


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
        tasks: Folders with train, validation and test as .jsonl, see docs/guides/compare.md; or rows, as `compare`
            takes them.
        general: General text. It lets the advice measure how much harder the corpus is for the encoder, and
            adds a control that trains on general text to the plan.
        hours: Maximum duration of the plan. The smallest plan may take more, which the advice then says.
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
        try:
            plan = load_plan(draft)
        except ValueError as error:  # a user knows nothing of the draft
            raise ValueError(str(error).replace(f"the plan {draft}", "the plan of the advice")) from error
        facts = measure_facts(plan, max_seq_length)
    return make_advice(facts, content, hours, max_seq_length, files)


def make_advice(facts: Facts, draft: dict[str, Any], hours: float, max_seq_length: int, files: Files) -> Advice:
    """Return the advice that follows from facts.

    Args:
        draft: A plan's encoder, corpora and tasks.
    """
    reasons = apply_rules(facts)
    rows = {reason.row: reason.options or None for reason in reasons if reason.row}
    samples = choose_samples(facts, rows, hours)
    fine_tuning = estimate_fine_tuning(facts, rows, samples)
    tokens = choose_budget(facts, rows, hours - sum(fine_tuning.values()))
    plan = draft | {
        "methods": rows,
        "budget": {"tokens": tokens},
        "seeds": [*range(1, SEEDS + 1)],
        "fine_tuning": {"max_train_samples": samples},
        "pretraining": {"max_seq_length": max_seq_length},
    }
    return Advice(facts, reasons, plan, estimate_pretraining(facts, rows, tokens), fine_tuning, hours, files)

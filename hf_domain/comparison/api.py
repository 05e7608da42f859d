"""Compare methods in Python: what `hf-domain compare` does, with objects."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict, Unpack, overload

import pandas as pd
import yaml

from hf_domain.comparison.decision import answer
from hf_domain.comparison.plan import ONLY_CORPUS
from hf_domain.comparison.prepare import load_plan
from hf_domain.comparison.report import make_tables, write_report
from hf_domain.comparison.run import describe_work, run_comparison
from hf_domain.comparison.summary import Report
from hf_domain.data.objects import Files, Tasks, find_file, place_corpus, place_tasks, write_files
from hf_domain.data.tables import Rows, Splits
from hf_domain.methods import BASELINE, NO_ADAPTATION
from hf_domain.safe_io import write_text

Methods: TypeAlias = Iterable[str] | Mapping[str, Mapping[str, Any] | None]
"""Names of recipes, or rows of the report with their options."""
DEFAULT_METHODS = (NO_ADAPTATION, BASELINE, "varmae")


class PlanOptions(TypedDict, total=False):
    """Fields of a plan, see `hf_domain.comparison.plan.Plan`, which a call does not give as arguments."""

    budget: Mapping[str, float]
    """`{"minutes": 30}`, instead of `num_tokens`."""
    general: str
    seeds: Sequence[int]
    pretraining_seeds: Sequence[int]
    learning_rates: Sequence[float]
    keep_models: Literal["best", "all", "none"]
    pretraining: Mapping[str, Any]
    fine_tuning: Mapping[str, Any]
    vocabulary: Mapping[str, Any]
    datastore: Mapping[str, Any]


@dataclass(frozen=True)
class Comparison:
    """What a comparison found."""

    report: Report
    """Scores, differences, costs and losses as numbers."""
    tables: dict[str, pd.DataFrame]
    """The tables of the report by their titles, as it prints them."""
    scores: pd.DataFrame
    """A row for each run: `method`, `task`, `seeds` (of pre-training, if any, and of fine-tuning, as 42-1) and `score`,
    in percent on the test set."""
    folder: Path
    """Holds report.html, report.md, the figures, and the encoders."""

    def __str__(self) -> str:
        return "\n".join(answer(self.report))


@overload
def compare(
    encoder: str | os.PathLike,
    corpus: Rows | Splits,
    tasks: Tasks,
    methods: Methods = DEFAULT_METHODS,
    *,
    output_dir: str | os.PathLike,
    num_tokens: int = 1_000_000,
    num_processes: int = 1,
    dry_run: Literal[False] = False,
    **plan: Unpack[PlanOptions],
) -> Comparison: ...
@overload
def compare(
    encoder: str | os.PathLike,
    corpus: Rows | Splits,
    tasks: Tasks,
    methods: Methods = DEFAULT_METHODS,
    *,
    output_dir: str | os.PathLike,
    num_tokens: int = 1_000_000,
    num_processes: int = 1,
    dry_run: Literal[True],
    **plan: Unpack[PlanOptions],
) -> str: ...
def compare(
    encoder: str | os.PathLike,
    corpus: Rows | Splits,
    tasks: Tasks,
    methods: Methods = DEFAULT_METHODS,
    *,
    output_dir: str | os.PathLike,
    num_tokens: int = 1_000_000,
    num_processes: int = 1,
    dry_run: bool = False,
    **plan: Unpack[PlanOptions],
) -> Comparison | str:
    """Compare methods at equal cost. The same call continues a comparison that was stopped.

    Args:
        encoder: A folder or a name on the Hub.
        corpus: Text of the domain, see `load_corpus`.
        tasks: A folder with train, validation and test .jsonl, or the rows of these three as a `DatasetDict` or a
            dictionary; several folders; or tasks by their names.
        methods: Names of recipes; or rows of the report, with their options as a plan has them.
        output_dir: Folder for the plan, the data that are no files, and the results.
        num_tokens: Tokens that each method trains on.
        num_processes: Steps that run at once.
        dry_run: Only write the plan, and return the steps that it has as text.
        plan: Other fields of a plan.

    Raises:
        FileExistsError: The folder holds the plan of another comparison.
        RuntimeError: A run failed; the same call tries it again.
        ValueError: The plan has problems.
    """
    folder, files = Path(output_dir), Files()
    place = place_corpus(corpus, "corpus", files)
    rows: dict[str, Any]
    if isinstance(methods, Mapping):
        rows = {name: row and dict(row) for name, row in methods.items()}
    else:
        rows = dict.fromkeys(methods)
    content = {
        "encoder": find_file(encoder) if Path(encoder).is_dir() else os.fspath(encoder),
        **({"corpus": place} if isinstance(place, str) else {"corpora": {ONLY_CORPUS: place}}),
        "tasks": {name: {"folder": task} for name, task in place_tasks(tasks, files).items()},
        "methods": rows,
        "budget": {"tokens": num_tokens},
        **plan,
    }
    path, results, text = folder / "plan.yaml", folder / "plan", yaml.safe_dump(content, sort_keys=False)
    # A plan that was refused has no results, and may be corrected.
    if (results / "plan.json").is_file() and path.read_text(encoding="utf-8") != text:
        raise FileExistsError(f"output_dir must be a new folder or hold this plan, but {path} is another: name another")
    folder.mkdir(parents=True, exist_ok=True)
    write_files(files, folder)
    write_text(path, text)
    loaded = load_plan(path, results)
    if dry_run:
        return describe_work(loaded, results)
    run_comparison(loaded, results, num_processes=num_processes)
    report = write_report(results)
    if report.failed:
        failures = "; ".join(f"{name}: {error}" for name, error in report.failed.items())
        raise RuntimeError(
            f"every run must end, but {len(report.failed)} failed: {failures}. Call again to repeat them."
        )
    scores = pd.DataFrame(
        [(*run, result.score) for run, result in report.runs.items()], columns=["method", "task", "seeds", "score"]
    )
    return Comparison(report, make_tables(report), scores, results)

"""Results of a comparison: one file for each step, named after its id, and the plan that they belong to."""

import logging
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self

from hf_domain.comparison.plan import RENAMED_FIELDS, Plan
from hf_domain.comparison.rows import INSTEAD, RENAMED
from hf_domain.comparison.steps import EMPTY_FIELDS, Step
from hf_domain.safe_io import read_json, write_json
from hf_domain.tasks.scores import MAJORITY, Predictions

logger = logging.getLogger(__name__)

# Patterns of the weights of a model.
WEIGHTS = "*.safetensors"
# What a comparison makes before its plan.json, and what a folder of published results holds.
EARLY = {"data", "texts", "locks", "results", "steps", "commands.sh"}  # the last by a dry run of an earlier version
# Kinds of steps in files of earlier versions.
OLD_KINDS = {"probe": "timing", "evaluation": "held_out_loss", "tuning": "lr_trial"}
# Fields of steps in these files; this version reads the results of steps that left them empty.
OLD_FIELDS = {*EMPTY_FIELDS, "rung", "labels"}


@dataclass(frozen=True)
class Result:
    """The result of a step. Fields that a kind of step does not measure are None."""

    step: Step
    status: Literal["done", "failed"]
    error: str = ""
    """The reason for a failure."""
    seconds: float | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    """The metrics of the command."""
    environment: dict[str, Any] = field(default_factory=dict)
    max_steps: int | None = None
    tokens: int | None = None
    """Tokens of pre-training; None for texts read line by line, whose tokens are not counted."""
    trainable_parameters: int | None = None
    checkpoint_bytes: int | None = None
    masked_lm_loss: float | None = None
    vocabulary: str | None = None
    """Digest of the vocabulary: masked-LM losses are comparable if it is equal."""
    score: float | None = None
    """On the test set, in percent."""
    floors: dict[str, float] = field(default_factory=dict)
    """Scores without any training, see `score_floors`."""
    predictions: Predictions | None = None
    milliseconds_per_text: float | None = None

    @property
    def is_done(self) -> bool:
        """Whether the step succeeded."""
        return self.status == "done"

    @property
    def did_learn(self) -> bool:
        """Whether the score beats the majority baseline; True if this was not measured."""
        return self.score is None or self.score > self.floors.get(MAJORITY, -math.inf) + 1e-9

    def get_validation_score(self) -> float | None:
        """Return the score on the validation set, as the commands call it; None if it was not measured."""
        metric = self.step.metric
        return self.metrics.get(f"eval_{'f1' if metric == 'entity_f1' else metric}")

    def to_json(self) -> dict[str, Any]:
        """Return the content of its file, without fields that were not measured."""
        content = {item.name: getattr(self, item.name) for item in fields(self)}
        content["step"] = asdict(self.step)
        content["predictions"] = self.predictions and self.predictions.to_json()
        return {name: value for name, value in content.items() if value not in (None, "", {})}

    @classmethod
    def from_json(cls, content: dict[str, Any], step_id: str) -> Self:
        """Undo `to_json`, also for files of earlier versions, in which a step has no id."""
        step = {n: value for n, value in content["step"].items() if n not in OLD_FIELDS or value is not None}
        step |= {"kind": OLD_KINDS.get(step["kind"], step["kind"]), "name": rename_start(step["name"])}
        step |= {"method": RENAMED.get(str(step.get("method")), step.get("method")), "id": step_id}
        content = {**content, "step": Step(**step)}
        content.pop("validation", None)
        if "predictions" in content:
            content["predictions"] = Predictions.from_json(content["predictions"])
        return cls(**content)


def rename_start(step: str) -> str:
    """Return the name of a step with the present name of its row."""
    row, dash, rest = step.partition("-")
    return f"{RENAMED.get(row, row)}{dash}{rest}"


def get_path(output_dir: Path, step_id: str) -> Path:
    """Return the file of the result of a step."""
    return output_dir / "results" / f"{step_id}.json"


def write_result(output_dir: Path, result: Result) -> None:
    """Write the file of a result."""
    write_json(get_path(output_dir, result.step.id), result.to_json())


def read_result(output_dir: Path, step_id: str) -> Result | None:
    """Return the result of a step; None if there is none that this version can read."""
    file = get_path(output_dir, step_id)
    if not file.is_file():
        return None
    try:
        content = read_json(file)
        if content["step"].get("fold") is not None:
            logger.warning(
                f"{file} is of an earlier version's cross-validation, which this version does not read. Its step runs "
                "again."
            )
            return None
        return Result.from_json(content, step_id)
    except (AttributeError, KeyError, TypeError, ValueError):
        logger.warning(f"{file} is not a complete result of this version of hf-domain. Its step runs again.")
        return None


def find_results(output_dir: Path, ids: Mapping[str, str]) -> dict[str, Result]:
    """Return the results that are there by the names of their steps; `ids` has the id of each."""
    results = {name: read_result(output_dir, step_id) for name, step_id in ids.items()}
    return {name: result for name, result in results.items() if result is not None}


def read_results(output_dir: Path) -> dict[str, Result]:
    """Return the results of the last plan by the names of their steps.

    Raises:
        FileNotFoundError: No plan was run in the folder.
        ValueError: An earlier version ran the plan.
    """
    return find_results(output_dir, read_plan_file(output_dir)["steps"])


# -------------------------------------------------------------------------------------------------------- plan.json


def write_plan_file(plan: Plan, steps: Iterable[Step], output_dir: Path) -> None:
    """Write what a report needs beside the results: the plan, titles, and the ids of its steps.

    Paths are relative to `folder`, which is relative to `output_dir`.
    """
    home, folder = output_dir.resolve(), plan.folder.resolve()
    more = {
        "path": plan.path.name,
        "folder": os.path.relpath(folder, home),
        "root": os.path.relpath(home, folder),
        "titles": list_titles(plan),
        "pairs": [list(pair) for pair in plan.list_pairs()],
        "steps": {step.name: step.id for step in steps},
    }
    write_json(output_dir / "plan.json", asdict(plan) | more)


def read_plan_file(output_dir: Path) -> dict[str, Any]:
    """Return the plan as `write_plan_file` wrote it.

    Raises:
        FileNotFoundError: No plan was run in the folder.
        ValueError: It has no steps.
    """
    file = output_dir / "plan.json"
    if not file.is_file():
        raise FileNotFoundError(f"{output_dir} must be the folder of a comparison, but has no plan.json. Run it first.")
    plan = read_json(file)
    if "steps" not in plan:
        raise ValueError(f"{file} must name its steps, but does not. Run the comparison again.")
    home = output_dir.resolve()
    return {"root": os.path.relpath(home, (home / plan["folder"]).resolve()), **upgrade_plan(plan)}


def upgrade_plan(plan: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a plan.json with the present names of rows, their fields and recipes."""
    rows = {}
    for name, row in plan["methods"].items():
        row = {RENAMED_FIELDS.get(field, field): value for field, value in row.items()}
        recipe = row["recipe"]
        row["recipe"] = INSTEAD[recipe][0] if recipe in INSTEAD else RENAMED.get(recipe, recipe)
        row |= {field: RENAMED.get(str(row[field]), row[field]) for field in ("after", "control")}
        rows[RENAMED.get(name, name)] = row
    return plan | {
        "methods": rows,
        "titles": {RENAMED.get(name, name): title for name, title in plan["titles"].items()},
        "pairs": [[RENAMED.get(name, name) for name in pair] for pair in plan["pairs"]],
        "steps": {rename_start(name): step_id for name, step_id in plan["steps"].items()},
    }


def list_titles(plan: Plan) -> dict[str, str]:
    """Return the titles of the rows by their names."""

    def name_row(name: str) -> str:
        row, title = plan.methods[name], plan.get_recipe(name).title
        own = "" if row.recipe == name else f" ({name})"
        return f"{title}{own}" if row.after is None else f"{title}{own} after {name_row(row.after)}"

    titles = {name: name_row(name) for name in plan.methods}
    # `tapt: {after: dapt}` and tapt_after_dapt are alike, and of rows with one title a table would show the last.
    counts = Counter(titles.values())
    return {name: title if counts[title] == 1 else f"{title} ({name})" for name, title in titles.items()}


def check_output_dir(output_dir: Path) -> None:
    """Raise a FileExistsError if a comparison would replace files that no comparison wrote."""
    if not output_dir.exists():
        return
    if not output_dir.is_dir():
        raise FileExistsError(f"--output_dir must be a folder, but {output_dir} is a file. Name another --output_dir.")
    names = {path.name for path in output_dir.iterdir() if path.name[0] not in "._" and path.suffix != ".unfinished"}
    try:
        plan = read_json(output_dir / "plan.json")
    except (OSError, ValueError):
        plan = None
    # Plans of early versions name no steps.
    if isinstance(plan, dict) and "methods" in plan and ("steps" in plan or names & {"results", "steps"}):
        return
    if foreign := sorted(names - EARLY):
        listed = ", ".join(foreign[:3]) + (f" and {len(foreign) - 3} more" if len(foreign) > 3 else "")
        raise FileExistsError(
            f"--output_dir must be new, empty or the folder of a comparison, but {output_dir} has {listed}, which no "
            "comparison wrote. Name another --output_dir."
        )


# ------------------------------------------------------------------------------------------------- models that are kept


def find_best_runs(results: Iterable[Result]) -> dict[str, Result]:
    """Return for each task the fine-tuning with the best validation score, of any row and seed.

    The test set is not read: its score stays an estimate of what the model does on new texts.
    """
    # Of equal scores the first name wins, in whatever order runs end: another would ask for a model that was dropped.
    results = sorted(results, key=lambda result: result.step.name)
    best: dict[str, tuple[float, Result]] = {}
    for result in results:
        step, score = result.step, result.get_validation_score()
        is_run = step.kind == "fine_tuning" and result.is_done
        if score is not None and is_run and score > best.get(str(step.task), (-math.inf,))[0]:
            best[str(step.task)] = score, result
    return {task: result for task, (_, result) in best.items()}


def list_kept(keep_models: str, results: Mapping[str, Result]) -> set[str]:
    """Return the names of the fine-tunings whose models are kept.

    Args:
        keep_models: As in the plan.
        results: By the names of their steps.
    """
    runs = {name for name, result in results.items() if result.step.kind == "fine_tuning" and result.is_done}
    best = {result.step.name for result in find_best_runs(results.values()).values()}
    return {"best": best, "all": runs, "none": set()}[keep_models]


def has_model(output_dir: Path, result: Result) -> bool:
    """Return whether the model of a step is there."""
    return any((output_dir / "steps" / result.step.id).glob(WEIGHTS))


def drop_models(output_dir: Path, results: Mapping[str, Result], keep_models: str) -> None:
    """Delete the weights of the fine-tunings that are not kept; `keep_models` is that of the plan."""
    kept = list_kept(keep_models, results)
    for name, result in results.items():
        if result.step.kind == "fine_tuning" and name not in kept:
            for file in (output_dir / "steps" / result.step.id).glob(WEIGHTS):
                file.unlink()


def find_winner(output_dir: Path, task: str | None = None) -> Path:
    """Return the folder of a comparison's fine-tuned model with the best validation score.

    Args:
        task: The task; needed if the plan has several.

    Raises:
        ValueError: There is no such model.
    """
    models = find_models(output_dir, read_results(output_dir))
    if task is None and len(models) == 1:
        (task,) = models
    if task not in models:
        raise ValueError(
            f"{output_dir} must hold a fine-tuned model of one task, but has {', '.join(models) or 'none'}. Name the "
            f"folder of one in {output_dir}/steps."
        )
    return output_dir / "steps" / models[task].step.id


def find_models(output_dir: Path, results: Mapping[str, Result]) -> dict[str, Result]:
    """Return for each task the fine-tuning with the best validation score, if its model is there."""
    return {task: run for task, run in find_best_runs(results.values()).items() if has_model(output_dir, run)}

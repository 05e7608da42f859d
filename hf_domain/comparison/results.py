"""Results of a comparison: one file for each step, whose name identifies the step."""

import json
import logging
import math
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self

from hf_domain.comparison.descriptions import Description
from hf_domain.comparison.plan import Plan
from hf_domain.safe_io import read_json, write_json
from hf_domain.tasks.scores import MAJORITY, Predictions

logger = logging.getLogger(__name__)

PREDICTIONS = {"predictions", "validation"}
COMMANDS_FILE = "commands.sh"
# Of the script of a dry run; anybody may have a file of this name.
COMMANDS_MARK = " missing steps of "
# What a comparison makes before its plan.json, and what a folder of published results holds.
EARLY = {"data", "texts", "locks", "results", "steps"}


@dataclass(frozen=True)
class Result:
    """The result of a step. Fields that a kind of step does not measure are None."""

    step: Description
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
    validation: Predictions | None = None
    """For the validation set, by which rows leave a race."""
    milliseconds_per_text: float | None = None

    @property
    def is_done(self) -> bool:
        """Whether the step succeeded."""
        return self.status == "done"

    @property
    def did_learn(self) -> bool:
        """Whether the score beats the majority baseline; True if this was not measured."""
        return self.score is None or self.score > self.floors.get(MAJORITY, -math.inf) + 1e-9

    def to_json(self) -> dict[str, Any]:
        """Return the content of its file, without fields that were not measured."""
        content = {item.name: getattr(self, item.name) for item in fields(self)}
        content["step"] = asdict(self.step)
        content |= {name: (own := getattr(self, name)) and own.to_json() for name in PREDICTIONS}
        return {name: value for name, value in content.items() if value not in (None, "", {})}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Undo `to_json`."""
        content = {**content, "step": Description(**content["step"])}
        for name in PREDICTIONS & content.keys():
            content[name] = Predictions.from_json(content[name])
        return cls(**content)


def check_output_dir(output_dir: Path) -> None:
    """Raise a FileExistsError if a comparison would replace files that no comparison wrote."""
    if not output_dir.exists():
        return
    if not output_dir.is_dir():
        raise FileExistsError(f"--output_dir must be a folder, but {output_dir} is a file. Name another --output_dir.")
    names = {path.name for path in output_dir.iterdir() if path.name[0] not in "._" and path.suffix != ".unfinished"}
    if "plan.json" in names:
        foreign = [] if is_plan_file(output_dir / "plan.json", names) else ["plan.json"]
    else:
        foreign = sorted(names - EARLY)
        commands = output_dir / COMMANDS_FILE
        if commands.is_file() and COMMANDS_MARK in commands.read_text(encoding="utf-8", errors="replace"):
            foreign.remove(COMMANDS_FILE)
    if foreign:
        listed = ", ".join(foreign[:3]) + (f" and {len(foreign) - 3} more" if len(foreign) > 3 else "")
        raise FileExistsError(
            f"--output_dir must be new, empty or the folder of a comparison, but {output_dir} has {listed}, which no "
            "comparison wrote. Name another --output_dir."
        )


def is_plan_file(file: Path, beside: set[str]) -> bool:
    """Return whether a comparison wrote a plan.json; those of early versions name no steps.

    Args:
        beside: The names in its folder.
    """
    try:
        plan = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(plan, dict) and "methods" in plan and ("steps" in plan or bool(beside & {"results", "steps"}))


def write_result(output_dir: Path, result: Result) -> None:
    """Write the file of a result."""
    write_json(get_path(output_dir, result.step.address), result.to_json())


def read_result(output_dir: Path, address: str) -> Result | None:
    """Return the result of a step; None if there is none that this version can read."""
    file = get_path(output_dir, address)
    if not file.is_file():
        return None
    try:
        return Result.from_json(read_json(file))
    except (AttributeError, KeyError, TypeError, ValueError):
        logger.warning(f"{file} is not a complete result of this version of hf-domain. Its step runs again.")
        return None


def get_path(output_dir: Path, address: str) -> Path:
    """Return the file of the result of a step."""
    return output_dir / "results" / f"{address}.json"


def find_results(output_dir: Path, addresses: Mapping[str, str]) -> dict[str, Result]:
    """Return the existing results by the names of their steps.

    Args:
        output_dir: Folder of the comparison.
        addresses: Step -> address of its result.
    """
    results = {name: read_result(output_dir, address) for name, address in addresses.items()}
    return {name: result for name, result in results.items() if result is not None}


def read_results(output_dir: Path) -> dict[str, Result]:
    """Return the results of the last plan by the names of their steps.

    Raises:
        FileNotFoundError: No plan was run in the folder.
        ValueError: An earlier version ran the plan.
    """
    if not (output_dir / "plan.json").is_file():
        raise FileNotFoundError(f"{output_dir} must be the folder of a comparison, but has no plan.json. Run it first.")
    plan = read_json(output_dir / "plan.json")
    if "steps" not in plan:
        raise ValueError(f"{output_dir / 'plan.json'} must name its steps, but does not. Run the comparison again.")
    return find_results(output_dir, plan["steps"])


def describe_plan(
    plan: Plan, output_dir: Path, addresses: Mapping[str, str], left: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the plan as a report needs it. Paths are relative to `folder`, which is relative to `output_dir`.

    Args:
        output_dir: Folder of the comparison.
        addresses: Step -> address of its result.
        left: The rows that left the race, as JSON has them.
    """
    content = asdict(plan)
    folder = os.path.relpath(plan.folder.resolve(), output_dir.resolve())
    pairs = [list(pair) for pair in plan.list_pairs()]
    return content | {
        "path": plan.path.name,
        "folder": folder,
        "titles": list_titles(plan),
        "pairs": pairs,
        "steps": {**addresses},
        "left": {**(left or {})},
    }


def list_titles(plan: Plan) -> dict[str, str]:
    """Return the titles of the rows by the names of the methods."""

    def name_row(name: str) -> str:
        method, title = plan.methods[name], plan.get_recipe(name).title
        own = "" if method.recipe == name else f" ({name})"
        return f"{title}{own}" if method.after is None else f"{title}{own} after {name_row(method.after)}"

    titles = {name: name_row(name) for name in plan.methods}
    # `tapt: {after: dapt}` and tapt_after_dapt are alike, and of rows with one title a table would show the last.
    counts = Counter(titles.values())
    return {name: title if counts[title] == 1 else f"{title} ({name})" for name, title in titles.items()}

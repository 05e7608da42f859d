"""Results of a comparison: one file for each step, and how to recognize those of an earlier plan.

A result records its step: the command, digests of the files it read, and a digest of the steps it started from. After
any change, earlier results therefore differ from those of the present plan.
"""

import hashlib
import json
import math
import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self

from hf_domain.comparison.plan import Plan
from hf_domain.comparison.scores import MAJORITY, Predictions
from hf_domain.comparison.steps import Step, find_root, list_steps
from hf_domain.data.file_loading import find_files
from hf_domain.environment import describe_environment
from hf_domain.files import fingerprint_files, read_json, write_json

# A result counts only beside those of the same versions of what computes it.
COMPARED_VERSIONS = ("hf-domain", "transformers", "torch")


@dataclass(frozen=True)
class Description:
    """What a step is: results whose descriptions differ are of different plans, or of other files."""

    name: str
    kind: str
    command: str
    flags: dict[str, Any]
    method: str | None = None
    corpus: str | None = None
    task: str | None = None
    seed: int | None = None
    pretraining_seed: int | None = None
    rung: int | None = None
    """The tokens of its encoder, where the budget has several numbers of them."""
    fold: int | None = None
    needs: list[str] = field(default_factory=list)
    metric: str | None = None
    """Of a fine-tuning."""
    minutes: float | None = None
    """Of a pre-training, where the budget is a time."""
    inputs: dict[str, str] = field(default_factory=dict)
    """Digests of the files that it and the steps before it read."""
    made_from: str | None = None
    """A digest of the steps that it starts from."""

    def is_of(self, other: Self) -> bool:
        """Return whether two descriptions are of one step.

        An input that is on one side alone is not compared: the checkpoint of a result of another machine may be there.
        """
        shared = self.inputs.keys() & other.inputs.keys()
        same = all(self.inputs[flag] == other.inputs[flag] for flag in shared)
        return same and replace(self, inputs={}) == replace(other, inputs={})


@dataclass(frozen=True)
class Result:
    """What came of a step. What a kind of step does not measure is None."""

    step: Description
    status: Literal["done", "failed"]
    error: str = ""
    """Why it failed."""
    seconds: float | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    """What the command measured."""
    environment: dict[str, Any] = field(default_factory=dict)
    max_steps: int | None = None
    tokens: int | None = None
    """Of pre-training; None where texts are read line by line, whose tokens nobody counts."""
    trainable_parameters: int | None = None
    checkpoint_bytes: int | None = None
    masked_lm_loss: float | None = None
    vocabulary: str | None = None
    """A digest: masked-LM losses compare where it is the same."""
    score: float | None = None
    """On the test set, in percent."""
    floors: dict[str, float] = field(default_factory=dict)
    """What is scored without any training, see `score_floors`."""
    predictions: Predictions | None = None
    milliseconds_per_text: float | None = None

    @property
    def is_done(self) -> bool:
        """Whether the step did not fail."""
        return self.status == "done"

    @property
    def did_learn(self) -> bool:
        """Whether the score is better than that of a model that learned nothing; also where nobody asked."""
        return self.score is None or self.score > self.floors.get(MAJORITY, -math.inf) + 1e-9

    def to_json(self) -> dict[str, Any]:
        """Return what its file holds; what was not measured is left out."""
        content = {item.name: getattr(self, item.name) for item in fields(self)}
        content |= {"step": asdict(self.step), "predictions": self.predictions and self.predictions.to_json()}
        return {name: value for name, value in content.items() if value not in (None, "", {})}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Undo `to_json`."""
        content = {**content, "step": Description(**content["step"])}
        if "predictions" in content:
            content["predictions"] = Predictions.from_json(content["predictions"])
        return cls(**content)


def write_result(output_dir: Path, result: Result) -> None:
    """Write the file of a result."""
    write_json(get_path(output_dir, result.step.name), result.to_json())


def read_result(file: Path) -> Result:
    """Read the file of a result.

    Raises:
        ValueError: It is no result, or one of another version.
    """
    content = read_json(file)
    try:
        return Result.from_json(content)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ValueError(
            f"{file} must be a result of this version of hf-domain, but has another form. Delete it: its "
            "step runs again."
        ) from None


def read_results(output_dir: Path) -> dict[str, Result]:
    """Read the results that are there, by the names of their steps."""
    return {path.stem: read_result(path) for path in sorted((output_dir / "results").glob("*.json"))}


def get_path(output_dir: Path, name: str) -> Path:
    """Return the file of the result of a step."""
    return output_dir / "results" / f"{name}.json"


def describe_steps(plan: Plan, output_dir: Path) -> dict[str, Description]:
    """Return by name what a result says of its step.

    What steps write and read from each other is relative to the folder of the comparison: a result is the same in
    another one.

    Args:
        plan: Of the steps.
        output_dir: Where they write.
    """
    steps, root = list_steps(plan, output_dir), find_root(plan, output_dir)

    def localize(value: Any) -> Any:
        if isinstance(value, list):
            return [localize(item) for item in value]
        return value.removeprefix(f"{root}/") if isinstance(value, str) else value

    made = {name for step in steps for flag, name in step.flags.items() if flag in ("output_dir", "held_out_file")}
    descriptions: dict[str, Description] = {}
    for step in steps:
        sources = [descriptions[name] for name in step.needs]
        inputs = digest_inputs(plan, step, made) | {
            f"{source.name}: {flag}": digest for source in sources for flag, digest in source.inputs.items()
        }
        flags = {flag: localize(value) for flag, value in step.flags.items()}
        descriptions[step.name] = Description(
            name=step.name,
            kind=step.kind,
            command=step.command,
            flags=json.loads(json.dumps(flags)),
            # Methods share an evaluation: it is that of the first of them, in whatever order.
            method=None if step.kind == "evaluation" else step.method,
            corpus=step.corpus,
            task=step.task,
            seed=step.seed,
            pretraining_seed=step.pretraining_seed,
            rung=step.rung,
            fold=step.fold,
            needs=step.needs,
            metric=plan.tasks[step.task].metric if step.task is not None and step.kind == "fine_tuning" else None,
            minutes=plan.budget.minutes if step.kind == "pretraining" else None,
            inputs=inputs,
            made_from=digest_sources(sources),
        )
    return descriptions


def digest_sources(sources: list[Description]) -> str | None:
    """Return a digest of the steps that a step starts from, without their inputs, which are compared one by one."""
    text = json.dumps([asdict(replace(source, inputs={})) for source in sources], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest() if sources else None


def digest_inputs(plan: Plan, step: Step, made: set[str]) -> dict[str, str]:
    """Return digests of the files and checkpoints that a step reads, by flag; without those that other steps make."""
    digests = {}
    for flag, value in step.flags.items():
        names = [name for name in map(str, value if isinstance(value, list) else [value]) if name not in made]
        paths = [plan.folder / name for name in names]
        if flag.endswith("_file"):
            if step.task and [path.name for path in paths] == [f"{step.task}.txt"]:
                paths = [plan.folder / plan.tasks[step.task].get_file("train")]  # of which the text of a task is made
            try:
                files = [Path(file) for file in find_files([str(path) for path in paths])]
            except FileNotFoundError:  # it is on the machine where the step ran
                continue
        elif flag in ("model_name_or_path", "memory_name_or_path"):
            files = [file for path in paths if any(path.glob("*.safetensors")) for file in _list_checkpoint(path)]
        elif flag in ("tokenizer_name", "expanded_vocabulary", "datastore"):
            files = [file for path in paths for file in _list_checkpoint(path)]
        else:
            continue
        if files:
            digests[flag] = _digest_files(tuple((file, file.stat().st_size, file.stat().st_mtime_ns) for file in files))
    return digests


def _list_checkpoint(folder: Path) -> list[Path]:
    """List what a step reads of an encoder (configuration, weights, tokenizer), and what tells a datastore."""
    patterns = ("config.json", "*.safetensors", "tokenizer*.json", "vocab*", "merges.txt", "*.model", "datastore.json")
    return [file for pattern in patterns for file in sorted(folder.glob(pattern)) if file.is_file()]


@cache
def _digest_files(files: tuple[tuple[Path, int, int], ...]) -> str:
    """Digest files, once for each size and time of a change."""
    return fingerprint_files([path for path, _, _ in files])


def describe_plan(plan: Plan, output_dir: Path) -> dict[str, Any]:
    """Return what a report says of the plan; its paths start from `folder`, which is relative to `output_dir`."""
    titles = {name: plan.get_recipe(name).title for name in plan.methods}
    for name, method in plan.methods.items():
        titles[name] += "" if method.recipe == name else f" ({name})"
        titles[name] += "" if method.after is None else f", after {method.after}"
    content = asdict(plan)
    folder = os.path.relpath(plan.folder.resolve(), output_dir.resolve())
    pairs = [list(pair) for pair in plan.list_pairs()]
    return content | {"path": plan.path.name, "folder": folder, "titles": titles, "pairs": pairs}


def check_results(results: Mapping[str, Result], expected: Mapping[str, Description]) -> None:
    """Check that results belong to the steps of a plan, and to the installed versions.

    Args:
        results: By the names of the steps.
        expected: What `describe_steps` says of the steps.

    Raises:
        ValueError: One does not.
    """
    if foreign := find_foreign(results, expected):
        names: dict[str, list[str]] = defaultdict(list)
        for name, reason in foreign.items():
            names[reason].append(name)
        listed = "".join(f"\n- {reason}: {', '.join(of_reason)}" for reason, of_reason in names.items())
        raise ValueError(
            f"the folder holds {len(foreign)} result(s) that are not of this comparison; choose another --output_dir, "
            f"or delete them from results/:{listed}"
        )


def find_foreign(results: Mapping[str, Result], expected: Mapping[str, Description]) -> dict[str, str]:
    """Return the results that do not count, and why; first the steps from which the others start.

    A run that failed is tried again whatever it was: a plan is corrected because runs failed.
    """
    versions = describe_environment()["versions"]
    foreign = {name: "another plan" for name in results if name not in expected}
    for name in [name for name in expected if name in results and results[name].is_done]:
        theirs = results[name].environment.get("versions", versions)
        if not results[name].step.is_of(expected[name]):
            foreign[name] = "another plan, or made from other files"
        elif any(theirs[package] != versions[package] for package in COMPARED_VERSIONS):
            foreign[name] = f"other versions of {', '.join(COMPARED_VERSIONS)}"
    return foreign


def gather_results(plan: Plan, output_dir: Path) -> None:
    """Make a folder of results, also of several machines, ready for the report of a plan.

    Raises:
        FileNotFoundError: There are none.
        ValueError: A result is not of this plan, or of other versions.
    """
    results = read_results(output_dir)
    if not results:
        raise FileNotFoundError(f"there are no results in {output_dir}; run the comparison first")
    check_results(results, describe_steps(plan, output_dir))
    write_json(output_dir / "plan.json", describe_plan(plan, output_dir))

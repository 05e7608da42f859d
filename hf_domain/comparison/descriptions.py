"""The identity of a step: its command, its inputs, and the steps it starts from.

A digest of the identity is part of the names of a step's folder and result. A step that a change of the plan affects
therefore gets a new place, and earlier results stay.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

from hf_domain.comparison.plan import Plan
from hf_domain.comparison.step import Step
from hf_domain.comparison.steps import find_root, list_steps
from hf_domain.data.files import find_files
from hf_domain.environment import find_version
from hf_domain.safe_io import fingerprint_files
from hf_domain.tasks.files import Task
from hf_domain.tasks.retrieval import CORPUS, QUERIES
from hf_domain.training.run_folder import CHECKPOINT_FILES

# Results of other versions of what computes them are not comparable.
COMPARED_VERSIONS = ("hf-domain", "transformers", "torch")
# The same for commands that read an extra.
COMPARED_EXTRAS = {"sentences": "sentence-transformers"}


@dataclass(frozen=True)
class Description:
    """What a step is: steps whose descriptions differ have different results."""

    name: str
    kind: str
    command: str
    flags: dict[str, Any]
    """Without the folder it writes to, which follows from the description."""
    method: str | None = None
    corpus: str | None = None
    task: str | None = None
    seed: int | None = None
    pretraining_seed: int | None = None
    rung: int | None = None
    """The tokens of its encoder, where the budget has several numbers of them."""
    fold: int | None = None
    labels: float | None = None
    """The share of the training examples that it takes; None: all."""
    needs: list[str] = field(default_factory=list)
    """Addresses of the steps whose output it reads."""
    metric: str | None = None
    """Metric of a fine-tuning."""
    minutes: float | None = None
    """Minutes of a pre-training whose budget is a time."""
    inputs: dict[str, str] = field(default_factory=dict)
    """Digests of the files that it reads and no other step makes, by flag."""
    versions: dict[str, str] = field(default_factory=dict)
    """Versions of the packages that compute it."""

    @cached_property
    def address(self) -> str:
        """The name of the step's folder and of its result: its own name, and a digest of the description."""
        text = json.dumps(asdict(self), sort_keys=True)
        return f"{self.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class Job:
    """A step, and the description that addresses it."""

    step: Step
    description: Description

    @property
    def name(self) -> str:
        """Return the name of the step."""
        return self.step.name

    @property
    def address(self) -> str:
        """Return the name of its folder and its result."""
        return self.description.address


def list_jobs(plan: Plan, output_dir: Path) -> list[Job]:
    """List the steps of a plan with their descriptions, each after those it needs; see `describe_steps`."""
    return describe_steps(plan, output_dir, list_steps(plan, output_dir))


def describe_steps(plan: Plan, output_dir: Path, steps: Sequence[Step]) -> list[Job]:
    """Describe steps.

    The flags of the steps name the folders by their addresses. Descriptions hold paths relative to the folder of the
    comparison, so that a result is the same in another one.

    Args:
        plan: What is compared.
        output_dir: Where the steps write.
        steps: Each after those it needs.
    """
    root = find_root(plan, output_dir)
    versions = list_versions()
    written = ("output_dir", "output_file", "held_out_file")
    made = {name for step in steps for flag, name in step.flags.items() if flag in written}
    addresses: dict[str, str] = {}
    jobs = []
    for step in steps:
        known = {flag: put_addresses(value, root, addresses) for flag, value in step.flags.items()}
        extras = [COMPARED_EXTRAS[step.command]] if step.command in COMPARED_EXTRAS else []
        flags = {flag: localize(value, root) for flag, value in known.items() if flag != "output_dir"}
        description = Description(
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
            labels=step.labels,
            needs=[addresses[name] for name in step.needs],
            metric=plan.tasks[step.task].metric if step.task is not None and step.kind == "fine_tuning" else None,
            minutes=plan.budget.minutes if step.kind == "pretraining" else None,
            inputs=digest_inputs(plan, step, root, made),
            versions={name: versions[name] for name in (*COMPARED_VERSIONS, *extras) if name in versions},
        )
        addresses[step.name] = description.address
        known = {flag: put_addresses(value, root, addresses) for flag, value in known.items()}
        jobs.append(Job(replace(step, flags=known), description))
    return jobs


def list_versions() -> dict[str, str]:
    """Return the versions that results depend on; extras only if they are installed."""
    versions = {package: find_version(package) for package in COMPARED_VERSIONS}
    for package in COMPARED_EXTRAS.values():
        with suppress(PackageNotFoundError):
            versions[package] = find_version(package)
    return versions


def put_addresses(value: Any, root: str, addresses: Mapping[str, str]) -> Any:
    """Return the value of a flag with the addresses of steps in the place of their names, as far as these are known."""
    if isinstance(value, list):
        return [put_addresses(item, root, addresses) for item in value]
    if not (isinstance(value, str) and value.startswith(f"{root}/steps/")):
        return value
    name, slash, rest = value.removeprefix(f"{root}/steps/").partition("/")
    return f"{root}/steps/{addresses.get(name, name)}{slash}{rest}"


def localize(value: Any, root: str) -> Any:
    """Return the value of a flag with paths that start in the folder of the comparison."""
    if isinstance(value, list):
        return [localize(item, root) for item in value]
    return value.removeprefix(f"{root}/") if isinstance(value, str) else value


def digest_inputs(plan: Plan, step: Step, root: str, made: set[str]) -> dict[str, str]:
    """Return digests of the files and checkpoints that a step reads, by flag; without those that other steps make."""
    text = f"{root}/texts/{step.task}.txt"
    digests = list_options(plan, step, text)
    for flag, value in step.flags.items():
        names = [name for name in map(str, value if isinstance(value, list) else [value]) if name not in made]
        paths = [plan.folder / name for name in names]
        if flag == "mix":  # a file and its share
            paths = [plan.folder / name.rpartition(":")[0] for name in names]
        if flag.endswith("_file") or flag in ("mix", "word_counts"):
            if names == [text]:
                paths = [plan.folder / name for name in list_sources(plan.tasks[str(step.task)])]
            try:
                files = [Path(file) for file in find_files([str(path) for path in paths])]
            except FileNotFoundError:  # the step that reads it says so
                continue
        elif flag in ("model_name_or_path", "memory_name_or_path"):
            # Older encoders have their weights in pytorch_model.bin.
            there = [path for path in paths if any(path.glob("*.safetensors")) or any(path.glob("pytorch_model*.bin"))]
            files = [file for path in there for file in _list_checkpoint(path)]
        elif flag in ("tokenizer_name", "expanded_vocabulary", "datastore"):
            files = [file for path in paths for file in _list_checkpoint(path)]
        else:
            continue
        if files:
            digests[flag] = _digest_files(tuple((file, file.stat().st_size, file.stat().st_mtime_ns) for file in files))
    return digests


def list_options(plan: Plan, step: Step, text: str) -> dict[str, str]:
    """Return the options of a task that a result depends on but no flag of its step has.

    Args:
        text: The file of the task's text.
    """
    options: dict[str, Any] = {} if step.task is None else plan.tasks[step.task].options
    columns = {name: value for name, value in options.items() if "text_column" in name}
    # Other columns make another text.
    found = {"text_columns": json.dumps(columns, sort_keys=True)} if columns and text in step.flags.values() else {}
    metric = plan.tasks[str(step.task)].metric if step.kind == "fine_tuning" else None
    # The score leaves these labels out, but a probe has no flag for them.
    if metric == "positive_micro_f1" and "negative_labels" not in step.flags:
        found["negative_labels"] = str(options["negative_labels"])
    return found


def list_sources(task: Task) -> list[str]:
    """List the files of which the text of a task is made; the judgments of a retrieval name texts, but hold none."""
    held = [f"{task.folder}/{name}" for name in (CORPUS, QUERIES) if task.kind == "retrieval"]
    return [task.get_file("train"), *held]


def _list_checkpoint(folder: Path) -> list[Path]:
    """List what a step reads of an encoder, and the manifest of a datastore."""
    patterns = (*CHECKPOINT_FILES, "datastore.json")
    return [file for pattern in patterns for file in sorted(folder.glob(pattern)) if file.is_file()]


@cache
def _digest_files(files: tuple[tuple[Path, int, int], ...]) -> str:
    """Digest files, once for each size and time of a change."""
    return fingerprint_files([path for path, _, _ in files])

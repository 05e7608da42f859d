"""Results of a comparison: one file for each step, and what a result is known by.

A result holds what its step was: the command, digests of what it read, and a digest of the steps that it started from.
So whatever changes, a result of before is told from one of the plan as it is.
"""

import hashlib
import json
import os
from collections import defaultdict
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from hf_domain.comparison.plan import Plan
from hf_domain.comparison.steps import Step, find_root, list_steps
from hf_domain.data.loading import find_files
from hf_domain.environment import describe_environment
from hf_domain.files import fingerprint_files, read_json, write_json

# A result counts only beside those of the same versions of what computes it.
COMPARED_VERSIONS = ("hf-domain", "transformers", "torch")
DESCRIBED = ("name", "kind", "method", "corpus", "task", "seed", "needs", "script")


def describe_steps(plan: Plan, output_dir: Path) -> dict[str, dict[str, Any]]:
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
    descriptions: dict[str, dict[str, Any]] = {}
    for step in steps:
        description = {name: getattr(step, name) for name in DESCRIBED}
        if step.kind == "evaluation":
            description["method"] = None  # methods share it: it is that of the first of them, in whatever order
        if step.task is not None and step.kind == "fine_tuning":
            description["metric"] = plan.tasks[step.task].metric
        description["flags"] = {flag: localize(value) for flag, value in step.flags.items()}
        description["inputs"] = digest_inputs(plan, step, made) | {
            f"{need}: {flag}": digest for need in step.needs for flag, digest in descriptions[need]["inputs"].items()
        }
        if plan.budget.minutes is not None and step.kind == "pretraining":
            description["minutes"] = plan.budget.minutes
        # Without their inputs, which are compared one by one.
        sources = [{k: v for k, v in descriptions[name].items() if k != "inputs"} for name in step.needs]
        text = json.dumps(sources, sort_keys=True)
        description["made_from"] = hashlib.sha256(text.encode()).hexdigest() if step.needs else None
        descriptions[step.name] = json.loads(json.dumps(description))
    return descriptions


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
    return content | {"path": plan.path.name, "folder": folder, "titles": titles}


def read_results(output_dir: Path) -> dict[str, dict[str, Any]]:
    """Read the results that are there, by the names of their steps."""
    return {path.stem: read_json(path) for path in sorted((output_dir / "results").glob("*.json"))}


def check_results(results: dict[str, dict[str, Any]], expected: dict[str, dict[str, Any]]) -> None:
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


def find_foreign(results: dict[str, dict[str, Any]], expected: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return the results that do not count, and why; first the steps from which the others start.

    A run that failed is tried again whatever it was: a plan is corrected because runs failed.
    """
    versions = describe_environment()["versions"]
    foreign = {name: "another plan" for name in results if name not in expected}
    for name in [name for name in expected if results.get(name, {}).get("status") == "done"]:
        theirs = results[name].get("environment", {}).get("versions", versions)
        if not is_of(results[name], expected[name]):
            foreign[name] = "another plan, or made from other files"
        elif any(theirs[package] != versions[package] for package in COMPARED_VERSIONS):
            foreign[name] = f"other versions of {', '.join(COMPARED_VERSIONS)}"
    return foreign


def is_of(result: dict[str, Any], description: dict[str, Any]) -> bool:
    """Return whether a result, or what a folder says of its step, is of the step that is described.

    An input that is on one side alone is not compared: the checkpoint of a result of another machine may be there.
    """
    if any(result.get(name) != value for name, value in description.items() if name != "inputs"):
        return False
    theirs, ours = result.get("inputs", {}), description["inputs"]
    return all(theirs[flag] == ours[flag] for flag in theirs.keys() & ours.keys())


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

"""List the commands that train a row's encoder, from the plan's encoder on and without a comparison."""

from collections.abc import Mapping
from typing import Any

from hf_domain.comparison.default_flags import CACHE_FLAGS, CHECKPOINTS, TRAINER_OPTIONS
from hf_domain.comparison.results import Result

LEFT_OUT = {*TRAINER_OPTIONS, *CHECKPOINTS, *CACHE_FLAGS, "output_dir", "max_eval_samples"}
# A trunk that differs from its branch in these alone needs no command: the branch's command trains both, bit for bit.
SCHEDULE = {"max_steps", "lr_scheduler_type", "lr_scheduler_kwargs", "resume_from_checkpoint"}
MAKERS = ("vocabulary", "datastore", "selection", "trunk", "pretraining", "average")


def list_commands(
    method: str, plan: Mapping[str, Any], done: list[Result], known: Mapping[str, Result]
) -> list[list[str]]:
    """Return the commands of a row in their order, for the folder of the plan.

    They train its encoder with the first seed, or fine-tune the encoder if the row trains none. A row that trains on
    texts of the task has an encoder for each task: the commands are those of the first.

    Args:
        method: A row.
        plan: Written by `describe_plan`, with `root`, the folder of the comparison.
        done: The results of one budget.
        known: Results by address, of all budgets.

    Returns:
        Empty if nothing has run yet, or the result of a stage is missing.
    """
    made = [r for r in done if r.step.method == method and r.step.kind in ("pretraining", "average", "fine_tuning")]
    tasks = [*plan["tasks"], None]
    # The first seed has the plain name.
    made.sort(key=lambda r: (r.step.kind == "fine_tuning", tasks.index(r.step.task), len(r.step.name)))
    stages: dict[str, Result] = {}
    if not made or not gather_stages(made[0], known, stages):
        return []
    folders = {address: name_folder(stage) for address, stage in stages.items()}
    return [make_command(stage, folders, plan) for stage in stages.values()]


def gather_stages(result: Result, known: Mapping[str, Result], stages: dict[str, Result]) -> bool:
    """Add a step and the steps that it starts from to `stages`, by address; return whether all have results."""
    for address in result.step.needs:
        need = known.get(address)
        if need is None:
            return False
        is_needed = need.step.kind in MAKERS and address not in stages and not does_all(result, need)
        if is_needed and not gather_stages(need, known, stages):
            return False
    stages[result.step.address] = result
    return True


def does_all(result: Result, need: Result) -> bool:
    """Return whether the command of a training also does the trunk that it resumes."""
    own, other = (
        {flag: value for flag, value in step.flags.items() if flag not in SCHEDULE} for step in (result.step, need.step)
    )
    return need.step.kind == "trunk" and own == other


def name_folder(result: Result) -> str:
    """Return the folder that the command of a step writes to."""
    name = result.step.method or result.step.name
    return f"{name}-trunk" if result.step.kind == "trunk" else name


def make_command(result: Result, folders: Mapping[str, str], plan: Mapping[str, Any]) -> list[str]:
    """Return the command of a step, with the folders of the other commands in the place of the comparison's."""
    step, root = result.step, plan["root"]
    places = [*(task["folder"] for task in plan["tasks"].values())]
    places += [file for corpus in plan["corpora"].values() for file in corpus.values()]
    # What the comparison prepared, such as folds.
    own = tuple(place.removeprefix(f"{root}/") for place in places if place.startswith(f"{root}/"))
    text_of_task = None if step.task is None else f"texts/{step.task}.txt"

    def find(value: Any) -> str:
        text = str(value)
        if text.startswith("steps/"):
            address, slash, rest = text.removeprefix("steps/").partition("/")
            return f"{folders.get(address, f'{root}/steps/{address}')}{slash}{rest}"
        return f"{root}/{text}" if text == text_of_task or text.startswith(own) else text

    flags = {flag: value for flag, value in step.flags.items() if flag not in LEFT_OUT}
    if (resumed := flags.get("resume_from_checkpoint")) and resumed.split("/")[1] not in folders:
        del flags["resume_from_checkpoint"]
    if result.max_steps is not None:  # of a budget of minutes the flag has those of the probe
        flags["max_steps"] = result.max_steps
    if step.kind == "fine_tuning" and plan["learning_rates"]:
        flags["learning_rate"] = result.metrics["learning_rate"]
    arguments = ["hf-domain", step.command]
    for flag, value in flags.items():
        arguments += [f"--{flag}", *map(find, value if isinstance(value, list) else [value])]
    folder = folders[step.address]
    if step.kind == "selection":  # it writes a file, which a flag names
        return arguments
    return [*arguments, "--output_dir", f"{folder}/datastore" if step.kind == "datastore" else folder]

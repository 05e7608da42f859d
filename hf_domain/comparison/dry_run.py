"""What a comparison would do: its missing steps by row and kind, their hours, and their commands as a script."""

import shlex
from pathlib import Path

import pandas as pd

from hf_domain.comparison.answer import predict_power
from hf_domain.comparison.costs import Speeds
from hf_domain.comparison.engine import list_work
from hf_domain.comparison.plan import Plan
from hf_domain.comparison.results import COMMANDS_FILE, COMMANDS_MARK, list_titles
from hf_domain.comparison.runner import write_step_text
from hf_domain.comparison.step import Step
from hf_domain.safe_io import write_text

KINDS = {
    "vocabulary": "vocabulary",
    "datastore": "datastore",
    "selection": "nearest text",
    "probe": "speed",
    "trunk": "masked LM",
    "pretraining": "masked LM",
    "average": "average",
    "evaluation": "held-out loss",
    "tuning": "rates",
    "fine_tuning": "fine-tuning",
}
SHARED = "shared"
HEADER = """\
#!/bin/sh
# The {count}{mark}{plan}, in their order. hf-domain compare runs the same commands, several at once if you
# like, and makes results and a report of what they leave. Run by hand, a step counts for no report.
set -e
cd {folder}
export CUDA_VISIBLE_DEVICES="${{CUDA_VISIBLE_DEVICES:-0}}"  # a step trains on one device
"""


def describe_work(plan: Plan, output_dir: Path) -> str:
    """Describe the steps that are missing in about twenty lines, and write their commands into `COMMANDS_FILE`."""
    steps = list_work(plan, output_dir)
    if not steps:
        return f"No step is missing: hf-domain compare {plan.path} writes the report."
    hours, sentence = estimate_hours(plan, steps, output_dir)
    lines = [f"Unless rows leave the race, {sentence}" if plan.race else sentence, ""]
    lines += [tabulate(plan, steps, hours), "", f"The commands: {write_commands(plan, steps, output_dir)}"]
    return "\n".join([*lines, predict_power(plan)]).rstrip()


def estimate_hours(plan: Plan, steps: list[Step], output_dir: Path) -> tuple[list[float | None], str]:
    """Return the hours of each step, None where they are not known, and a sentence about all of them."""
    speeds, source = Speeds(plan, output_dir), ""
    try:
        if speeds.measure_machine():
            source = "by the speed of the encoder here, which was just measured"
        else:
            source = f"by the seconds of {speeds.count} earlier results in this folder"
    except (OSError, ValueError):  # the first step that reads the encoder reports the error
        source = "how long is not known: the encoder cannot be loaded"
    hours = [None if (seconds := speeds.estimate(step)) is None else seconds / 3600 for step in steps]
    known = [value for value in hours if value is not None]
    total = f"about {format_hours(sum(known))} one after the other, " if len(known) == len(hours) else ""
    missing = "1 step is missing" if len(steps) == 1 else f"{len(steps)} steps are missing"
    return hours, f"{missing}: {total}{source}."


def estimate_work(plan: Plan, output_dir: Path, num_processes: int) -> str:
    """Return a sentence on the steps that are missing and their time."""
    steps = list_work(plan, output_dir)
    at_once = f" {num_processes} run at once." if num_processes > 1 else ""
    return f"{estimate_hours(plan, steps, output_dir)[1]}{at_once}" if steps else "No step is missing."


def tabulate(plan: Plan, steps: list[Step], hours: list[float | None]) -> str:
    """Count the steps by row and kind, with the hours of both."""
    titles = list_titles(plan)
    named = [(titles.get(str(step.method), SHARED), name_kind(step)) for step in steps]
    cells = pd.DataFrame(named, columns=["row", "kind"]).assign(hours=hours)
    kinds = [kind for kind in dict.fromkeys([*KINDS.values(), "probe"]) if kind in {*cells["kind"]}]
    rows = [title for title in dict.fromkeys([SHARED, *titles.values()]) if title in {*cells["row"]}]
    counts = cells.groupby(["row", "kind"]).size().unstack(fill_value=0).loc[rows, kinds]
    counts.loc["steps"] = counts.sum()
    table = counts.map(lambda count: str(count or "")).rename_axis(index=None, columns=None)
    if cells["hours"].notna().all():
        by_row, by_kind = (cells.groupby(name)["hours"].sum() for name in ("row", "kind"))
        table["time"] = [format_hours(by_row.get(row, cells["hours"].sum())) for row in table.index]
        table.loc["time"] = [*(format_hours(by_kind[kind]) for kind in kinds), ""]
    return table.to_string()


def name_kind(step: Step) -> str:
    """Return the words for the kind of a step."""
    is_frozen = step.kind == "fine_tuning" and not step.flags.get("do_train")
    return "probe" if is_frozen else KINDS[step.kind]


def format_hours(hours: float) -> str:
    """Write hours, or minutes where they are few."""
    return f"{hours:,.1f} h" if hours >= 1 else f"{60 * hours:.0f} min"


def write_commands(plan: Plan, steps: list[Step], output_dir: Path) -> Path:
    """Write the commands of steps as a script that runs from anywhere, and the texts that they read.

    Returns:
        Its path.
    """
    folder = shlex.quote(str(plan.folder.resolve()))
    parts = [HEADER.format(count=len(steps), mark=COMMANDS_MARK, plan=plan.path.name, folder=folder)]
    for step in steps:
        write_step_text(step, plan, output_dir)
        notes = [f"# {step.name}"]
        if step.kind == "fine_tuning" and plan.learning_rates:
            notes.append("# the comparison adds the --learning_rate that is best on validation")
        if step.kind == "pretraining" and plan.budget.minutes is not None:
            notes.append(f"# the comparison takes as many --max_steps as fit into {plan.budget.minutes:g} minutes")
        parts.append("\n".join([*notes, shlex.join(["hf-domain", step.command, *step.list_arguments()])]) + "\n")
    output_dir.mkdir(parents=True, exist_ok=True)
    write_text(output_dir / COMMANDS_FILE, "\n".join(parts))
    return output_dir / COMMANDS_FILE

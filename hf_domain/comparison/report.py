"""Write the report of a comparison, only from its result files: Markdown with a picture, and an HTML page.

To add a section, write a function that makes its table, and add it to `SECTIONS`.
"""

import html
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd

from hf_domain.comparison.decision import answer, format_chance, format_points, format_seconds, is_command, list_bets
from hf_domain.comparison.figures import draw_gains
from hf_domain.comparison.results import find_models, read_plan_file, read_results
from hf_domain.comparison.statistics import Difference, compute_interval
from hf_domain.comparison.summary import Report, count_runs, is_cached, read_report
from hf_domain.extras import require
from hf_domain.methods import BASELINE
from hf_domain.safe_io import write_json, write_text

PAGE = Path(__file__).with_name("report_page.html")


def write_report(output_dir: Path) -> Report:
    """Write report.md, report.html, report.json and a picture from the results in a folder, and return the summary.

    Raises:
        FileNotFoundError: There are no results.
    """
    require("a report", "matplotlib", "scipy")
    if not (output_dir / "plan.json").is_file() or not (results := read_results(output_dir)):
        raise FileNotFoundError(
            f"{output_dir} must contain results, but has none that this version reads. Run the comparison first."
        )
    report = read_report(read_plan_file(output_dir), results)
    report = replace(report, models=find_models(output_dir, results))
    picture = draw_gains(report, output_dir / "gains.png")
    tables = make_tables(report)
    write_text(output_dir / "report.md", make_markdown(report, tables, picture))
    write_text(output_dir / "report.html", make_html(report, tables, picture))
    write_json(output_dir / "report.json", describe(report))
    return report


def describe(report: Report) -> dict[str, Any]:
    """Return the content of report.json."""
    decisions = []
    for (own, other), difference in report.decisions.items():
        numbers = {} if difference is None else vars(difference)
        decisions.append({"method": own, "compared_with": other, **numbers})
    differences = {
        row: {task: vars(difference) for task, difference in by_task.items()}
        for row, by_task in report.differences.items()
    }
    names = ("scores", "floors", "unlearned", "costs", "losses", "failed")
    return {name: getattr(report, name) for name in names} | {
        "answer": answer(report),
        "bets": [vars(bet) | {"difference": vars(bet.difference)} for bet in list_bets(report)],
        "decisions": decisions,
        "differences": differences,
    }


# ----------------------------------------------------------------------------------------------------------- sections


def make_bet_table(report: Report) -> pd.DataFrame | None:
    """Return what to expect of each row against what the user has now, the best bet first."""
    rows = {
        report.titles[bet.row]: {
            "expected gain": format_points(bet.gain),
            "chance of a gain": format_chance(bet.chance),
            "measured": format_difference(replace(bet.difference, corrected=None)),
            "cost": format_seconds(bet.seconds),
        }
        for bet in list_bets(report)
    }
    return pd.DataFrame.from_dict(rows, orient="index") if rows else None


def make_mean_table(report: Report) -> pd.DataFrame:
    """Return the mean of each row over its tasks, and its differences to the rows that it is compared with."""
    rows = {report.titles[row]: format_means(report, row) for row in list_rows(report)}
    table = pd.DataFrame.from_dict(rows, orient="index")
    return table.loc[:, (table != "").any()]


def make_score_table(report: Report) -> pd.DataFrame:
    """Return the scores of each row on each task, and below them those that need no training."""
    scores, unlearned, rows = report.scores, report.unlearned, list_rows(report)
    table = pd.DataFrame(
        {
            f"{task} ({options['metric'].replace('_', ' ')})": [
                format_cell(report, row, task, scores[row][task], unlearned[row].get(task, [])) for row in rows
            ]
            for task, options in report.plan["tasks"].items()
        },
        [report.titles[row] for row in rows],
    )
    for name, own in report.floors.items():
        table.loc[name] = [f"{own[task]:.1f}" if task in own else "" for task in report.plan["tasks"]]
    return table


def make_cost_table(report: Report) -> pd.DataFrame:
    """Return the costs of each row."""
    costs = pd.DataFrame.from_dict({report.titles[row]: report.costs[row] for row in list_rows(report)}, orient="index")
    costs = costs.map(lambda value: "" if pd.isna(value) else format_number(value))
    if "inference ms" in costs:
        cached = costs.index.isin([report.titles[row] for row in report.titles if is_cached(report, row)])
        costs.loc[cached & (costs["inference ms"] != ""), "inference ms"] += " (cached)"
    return costs


def make_loss_table(report: Report) -> pd.DataFrame | None:
    """Return the masked-LM loss of each encoder on held-out text."""
    if not report.losses:
        return None
    losses = pd.DataFrame.from_dict(report.losses, orient="index")
    losses = losses.map(lambda value: "" if pd.isna(value) else f"{value:.2f}")
    others = losses.index.isin(report.other_tokens)
    losses[others] = losses[others].map(lambda cell: cell and f"{cell} (own tokens)")
    return losses


@dataclass(frozen=True)
class Section:
    """A section of the report: a table, and how to read it."""

    title: str
    make: Callable[[Report], pd.DataFrame | None]
    """None leaves the section out."""
    note: str = ""


SECTIONS = [
    Section(
        "What to expect",
        make_bet_table,
        "The expected gain is the measured one, shrunk towards zero by its error. The chance is that of any gain over "
        "what you have now. Measured gains have 95 % intervals, which cover other test examples and seeds.",
    ),
    Section(
        "Means over the tasks",
        make_mean_table,
        "p values are corrected by Holm's method for all comparisons of the plan. The control of a row is the row with "
        "equal pre-training. The interval on another task also covers other tasks.",
    ),
    Section(
        "Scores",
        make_score_table,
        "In percent on the test sets, with half the 95 % interval of the seeds. In parentheses: the difference to "
        "DAPT. Single tasks show where a mean comes from; they decide nothing. If you choose rows by these "
        "scores, those of the next comparison on the same test sets are too good.",
    ),
    Section(
        "Costs",
        make_cost_table,
        "Preparation expands a vocabulary or builds a datastore. (cached): states of the memory or of the passages "
        "were read from a cache.",
    ),
    Section(
        "Masked-LM loss on held-out text",
        make_loss_table,
        "Losses compare under one vocabulary only; (own tokens) marks another one.",
    ),
]


def make_tables(report: Report) -> dict[str, pd.DataFrame]:
    """Return the tables of the report by their titles."""
    tables = {section.title: section.make(report) for section in SECTIONS}
    return {title: table for title, table in tables.items() if table is not None and not table.empty}


# -------------------------------------------------------------------------------------------------------------- cells


def list_rows(report: Report) -> list[str]:
    """List the rows to show: all but those that have not run yet, if any has."""
    known = {row for (row, _, _) in report.runs}
    return [row for row in report.titles if row in known or row not in report.missing] or [*report.titles]


def format_means(report: Report, row: str) -> dict[str, str]:
    """Format the mean of a row over its tasks, and its differences to the rows that it is compared with."""
    mean = report.average(row)
    cells = {"mean": "no result" if mean is None else f"{mean:.1f}"}
    count = sum(bool(seeds) for seeds in report.scores[row].values())
    if mean is not None and count < len(report.plan["tasks"]):
        cells["mean"] += f" ({count} task{'s' * (count > 1)})"
    pairs = {other: difference for (own, other), difference in report.decisions.items() if own == row}
    control = next((other for other in pairs if other != BASELINE), None)
    columns = {"over its control": control}
    if BASELINE in report.titles:
        columns[f"over {report.titles[BASELINE]}"] = BASELINE
    new_task = ""
    for column, other in columns.items():
        difference = pairs.get(str(other))
        cells[column] = "" if difference is None else format_difference(difference)
        if difference is not None and other == control:
            cells[column] += f" (to {report.titles[str(other)]})"
        if difference is not None and difference.new_task is not None:
            new_task = "{:+.1f} to {:+.1f}".format(*difference.new_task)
    return cells | {"on another task": new_task}


def format_difference(difference: Difference) -> str:
    """Format a difference with its interval and, for means over tasks, its p."""
    if difference.low is None:
        return f"{difference.mean:+.1f}, one seed: no test"
    text, p = f"{difference.mean:+.1f} [{difference.low:+.1f} to {difference.high:+.1f}]", difference.corrected
    return text if p is None else f"{text} p < 0.001" if p < 0.001 else f"{text} p {p:.3f}"


def format_number(value: float) -> str:
    """Write a number with three digits."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def format_cell(report: Report, row: str, task: str, runs: Mapping[str, float], unlearned: list[str]) -> str:
    """Format a cell: mean and interval over the runs, and the difference to the baseline with its interval.

    Args:
        runs: Scores by the seeds.
        unlearned: The seeds of the runs that did not learn.
    """
    tasks = report.plan["methods"][row]["tasks"]
    if tasks is not None and task not in tasks:
        return ""
    if not runs:
        return "no result"
    cell = f"{statistics.mean(runs.values()):.1f}"
    if len(runs) > 1:
        cell += f" ± {measure_spread(runs):.1f}"
    expected = count_runs(report.plan, row, is_pretrained=any("-" in name for name in runs))
    if len(runs) < expected:
        cell += f" [{len(runs)} of {expected} runs]"
    if unlearned:
        share = "" if len(unlearned) == len(runs) else f"{len(unlearned)} of {len(runs)} "
        cell += f" [{share}did not learn]"
    if difference := report.differences[row].get(task):
        cell += f" ({format_difference(difference)})"
    return cell


def measure_spread(scores: Mapping[str, float]) -> float:
    """Return half the interval of the mean of runs, or that of the means of their pre-trainings if it is wider.

    Runs of one encoder are alike: as many of them as one likes would not show how much encoders differ.

    Args:
        scores: By the names of the runs, see `name_run`.
    """
    encoders: dict[str, list[float]] = defaultdict(list)
    for name, score in scores.items():
        encoders[name.rpartition("-")[0]].append(score)
    means = [statistics.mean(own) for own in encoders.values()]
    return max(compute_interval(each) for each in ([*scores.values()], means) if len(each) > 1)


# -------------------------------------------------------------------------------------------------------------- pages


def explain(report: Report) -> str:
    """Return how the numbers were made: budget, seeds, and what differs from the usual."""
    budget, plan = report.plan["budget"], report.plan
    cost = f"{budget['tokens']:,} tokens" if budget["tokens"] else f"{budget['minutes']:g} minutes"
    seeds, pretrained = len(plan["seeds"]), len(plan["pretraining_seeds"])
    environments = [result.environment for result in report.results.values() if result.is_done and result.environment]
    codes = sorted({environment.get("code", "unknown")[:8] for environment in environments})
    also = f" and {pretrained} of pre-training" if pretrained > 1 else ""
    parts = [
        f"Every pre-training had the same budget: {cost}.",
        "The cost of a row that starts from another row includes both.",
        f"Scores are means over {seeds} seed{'s' * (seeds > 1)} of fine-tuning{also}.",
    ]
    if rates := plan["learning_rates"]:
        parts.append(
            f"Learning rates of fine-tuning were chosen on the validation sets from {', '.join(map(str, rates))}."
        )
    if pretrained <= 1:
        parts.append("Each encoder was trained once: another seed of pre-training may change the order.")
    if len(codes) > 1:
        parts.append(f"The code changed between the results without a new version: {', '.join(codes)}.")
    return " ".join(parts)


def make_markdown(report: Report, tables: Mapping[str, pd.DataFrame], picture: str) -> str:
    """Return the report as Markdown."""
    parts = [f"# Comparison: {escape_cell(name_encoder(report.plan))}"]
    for number, (is_code, lines) in enumerate(groupby(answer(report), is_command)):
        texts = [*lines] if is_code else [*map(escape_cell, lines)]
        if number == 0:
            texts[0] = f"**{texts[0]}**"
        parts += ["\n".join(["```bash", *texts, "```"])] if is_code else texts
    parts += ["![The gains of the rows](gains.png)"] if picture else []
    for section in SECTIONS:
        if section.title in tables:
            parts += [f"## {section.title}", format_markdown_table(tables[section.title]), section.note]
    parts += ["## How this was measured", explain(report)]
    if failed := report.failed:
        failures = [f"- {name}: {escape_cell(error)}" for name, error in failed.items()]
        parts.append("## Runs that failed\n\n" + "\n".join(failures))
    return "\n\n".join(parts) + "\n"


def name_encoder(plan: dict[str, Any]) -> str:
    """Return the name of the plan's encoder, without its folder."""
    return plan["encoder"].rstrip("/").rpartition("/")[2]


def format_markdown_table(table: pd.DataFrame) -> str:
    """Return a table as Markdown."""
    header = [" ", *map(str, table.columns)]
    rows = [[str(name), *row] for name, row in zip(table.index, table.to_numpy(), strict=True)]
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(escape_cell, line)) + " |" for line in lines)


def escape_cell(text: Any) -> str:
    """Return a text that stays inside its cell and shows markup as text, because Markdown viewers render HTML.

    A `p < 0.001` is no markup, and stays as it is for whoever reads the Markdown itself, as in a terminal.
    """
    text = re.sub(r"&(?=#?\w+;)|<(?=[A-Za-z/!?])", lambda found: html.escape(found[0]), str(text))
    return " ".join(text.replace("|", "\\|").split())


def make_html(report: Report, tables: Mapping[str, pd.DataFrame], picture: str) -> str:
    """Return the report as one page that needs no other file and no network; every text is escaped."""
    import jinja2

    template = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
        PAGE.read_text(encoding="utf-8")
    )
    page = template.render(
        title=f"Comparison: {name_encoder(report.plan)}",
        answer=[(is_code, [*lines]) for is_code, lines in groupby(answer(report), is_command)],
        sections=[section for section in SECTIONS if section.title in tables],
        tables={
            title: ([*map(str, table.columns)], [*zip(table.index, table.to_numpy().tolist(), strict=True)])
            for title, table in tables.items()
        },
        picture=picture,
        explanation=explain(report),
        failed=report.failed,
    )
    return page + "\n"

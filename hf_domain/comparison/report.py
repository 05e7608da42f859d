"""Write the report of a comparison, only from its result files: Markdown with pictures, and an HTML page."""

import html
import math
import os
import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd

from hf_domain.comparison.answer import TOGETHER, answer, format_p, is_command, name_scoring, rank_validation
from hf_domain.comparison.curves import make_curve_table, make_label_table
from hf_domain.comparison.figures import draw
from hf_domain.comparison.models import find_models
from hf_domain.comparison.results import read_results
from hf_domain.comparison.statistics import Difference, compute_interval
from hf_domain.comparison.summary import Report, read_report, say_nothing
from hf_domain.methods import BASELINE
from hf_domain.safe_io import read_json, write_json, write_text
from hf_domain.tasks.files import SENTENCES

PAGE = Path(__file__).with_name("report_page.html")
VALIDATION = "Validation scores"
CAPTIONS = {
    "differences": "Differences to DAPT with 95 % intervals; filled points are significant",
    "curves": "Gain over no adaptation, by the budget",
    "labels": "Scores by the share of the training examples",
    "cost": "Gain against cost; the dashed line joins the rows that no cheaper row beats",
    "forgetting": "What each encoder gained on the domain, and lost on general text",
}


def write_report(output_dir: Path) -> Report:
    """Write report.md, report.html, report.json and pictures from the results in a folder, and return the summary.

    Raises:
        FileNotFoundError: There are no results.
    """
    if not (output_dir / "plan.json").is_file() or not (results := read_results(output_dir)):
        raise FileNotFoundError(f"{output_dir} must contain results, but has none. Run the comparison first.")
    plan = read_json(output_dir / "plan.json")
    home = output_dir.resolve()
    plan["root"] = os.path.relpath(home, (home / plan["folder"]).resolve())
    report = replace(read_report(plan, results), models=find_models(output_dir, results))
    figures = draw(report, output_dir)
    tables = make_tables(report)
    write_text(output_dir / "report.md", make_markdown(report, tables, [f"{name}.png" for name in figures]))
    write_text(output_dir / "report.html", make_html(report, tables, figures))
    write_json(
        output_dir / "report.json",
        {name: getattr(report, name) for name in ("scores", "floors", "unlearned", "costs", "losses", "failed")}
        | {"answer": answer(report), "decisions": [format_decision(*pair, d) for pair, d in report.decisions.items()]}
        | {"together": {row: asdict(own) for row, own in report.together.items()}}
        | {"differences": {m: {t: vars(d) for t, d in row.items()} for m, row in report.differences.items()}},
    )
    return report


# ------------------------------------------------------------------------------------------------------- tables


def format_decision(own: str, other: str, difference: Difference | None) -> dict[str, Any]:
    """Return a comparison of two rows for report.json."""
    return {"method": own, "compared_with": other, **({} if difference is None else vars(difference))}


def make_tables(report: Report) -> dict[str, pd.DataFrame]:
    """Return the tables of the report: means over tasks, scores, costs and masked-LM losses."""
    empty = list_empty(report)
    titles = {method: title for method, title in report.titles.items() if method not in empty}
    means = pd.DataFrame.from_dict({titles[m]: format_means(report, m) for m in titles}, orient="index")
    scores = pd.DataFrame(
        {
            f"{task} ({options['metric'].replace('_', ' ')})": {
                titles[method]: format_cell(report, method, task) for method in titles
            }
            for task, options in report.plan["tasks"].items()
        }
    )
    for name, row in report.floors.items():
        scores.loc[name] = [f"{row[task]:.1f}" if task in row else "" for task in report.plan["tasks"]]
    costs = pd.DataFrame.from_dict({titles[m]: report.costs[m] for m in titles}, orient="index")
    costs = costs.map(lambda value: "" if pd.isna(value) else f"{value:,.0f}" if value >= 100 else f"{value:.1f}")
    if "inference ms" in costs:
        of_cached = costs.index.isin([report.titles[m] for m in report.cached]) & (costs["inference ms"] != "")
        costs.loc[of_cached, "inference ms"] += " (cached)"
    costs = costs.rename(columns={"fine-tuning s": f"{name_scoring(report)} s"})
    losses = pd.DataFrame.from_dict(report.losses, orient="index")
    losses = losses.map(lambda value: "" if pd.isna(value) else f"{value:.3f}")
    of_others = losses.index.isin(report.other_tokens)
    losses[of_others] = losses[of_others].map(lambda cell: cell and f"{cell} (own tokens)")
    curve = {"Means by the budget": make_curve_table(report)} if report.smaller else {}
    curve |= {"Means by the training examples": make_label_table(report)} if report.fewer_labels else {}
    curve = {name: table.loc[[*titles.values()]] for name, table in curve.items()}
    chosen = {VALIDATION: make_validation_table(report)} if any(report.validation.values()) else {}
    together = {TOGETHER: make_ensemble_table(report)} if report.together else {}
    last = {**together, "Scores": scores, **chosen, "Costs": costs, "Masked-LM loss on held-out text": losses}
    return {"Means over the tasks": means.loc[:, (means != "").any()]} | curve | last


def list_empty(report: Report) -> list[str]:
    """List the rows that have not run yet; none if that is all."""
    empty = [method for method in report.missing if not any(report.scores[method].values())]
    return empty if len(empty) < len(report.titles) else []


def make_validation_table(report: Report) -> pd.DataFrame:
    """Return the scores on the validation sets, the best mean first; rows without all of them stand at the end."""
    ranked = dict(rank_validation(report))
    rows = {method: row for method, row in report.validation.items() if row}
    order = sorted(rows, key=lambda method: -ranked.get(method, -math.inf))
    values = [{"mean": ranked.get(method), **rows[method]} for method in order]
    table = pd.DataFrame(values, [report.titles[method] for method in order], ["mean", *report.plan["tasks"]])
    return table.map(lambda value: "" if pd.isna(value) else f"{value:.1f}")


def make_ensemble_table(report: Report) -> pd.DataFrame:
    """Return what several fine-tunings of a row score together."""
    over, one = f"over one of {report.titles.get(BASELINE, '')}", "over one of its own"
    rows = {
        report.titles[row]: {
            "mean": f"{own.mean:.1f} ({len(own.tasks)} task{'s' * (len(own.tasks) > 1)})",
            over: "" if own.over_baseline is None else format_difference(own.over_baseline),
            one: "" if own.over_one is None else format_difference(own.over_one),
            "seconds": "" if own.cost is None else f"{own.cost:.0%}",
        }
        for row, own in report.together.items()
    }
    table = pd.DataFrame.from_dict(rows, orient="index")
    return table.loc[:, (table != "").any()]


def format_means(report: Report, method: str) -> dict[str, str]:
    """Format the mean of a row over its tasks, and its differences to the rows that it is compared with."""
    means = [statistics.mean(seeds.values()) for seeds in report.scores[method].values() if seeds]
    count = len(means)
    row = {
        "mean": f"{statistics.mean(means):.1f} ({count} task{'s' * (count > 1)})"
        if means
        else say_nothing(report, method)
    }
    if method in report.unjudged:
        row["mean"] += f", not judged: the states of {report.titles[report.unjudged[method]]}"
    pairs = {other: difference for (own, other), difference in report.decisions.items() if own == method}
    counterpart = next((other for other in pairs if other != BASELINE), None)
    new_task = ""
    for column, other in (("over its counterpart", counterpart), (f"over {report.titles.get(BASELINE, '')}", BASELINE)):
        difference = pairs.get(str(other))
        row[column] = "" if difference is None else format_difference(difference)
        if difference is not None and column == "over its counterpart":
            row[column] += f" (to {report.titles[str(other)]})"
        if difference is not None and difference.new_task is not None:
            new_task = "{:+.1f} to {:+.1f}".format(*difference.new_task)
    return {name: text for name, text in row.items() if name != "over "} | {"on another task": new_task}


def format_difference(difference: Difference) -> str:
    """Format a difference with its interval and, for means over tasks, its p."""
    if difference.low is None:
        return f"{difference.mean:+.1f}, one seed: no test"
    text = f"{difference.mean:+.1f} [{difference.low:+.1f} to {difference.high:+.1f}]"
    return text if difference.corrected is None else f"{text} {format_p(difference.corrected)}"


def format_cell(report: Report, method: str, task: str) -> str:
    """Format a cell: mean and interval over the runs, and the difference to the baseline with its interval."""
    scores = list(report.scores[method][task].values())
    tasks = report.plan["methods"][method]["tasks"]
    if tasks is not None and task not in tasks:
        return ""
    if not scores:
        return say_nothing(report, method)
    cell = f"{statistics.mean(scores):.1f}"
    if len(scores) > 1:
        cell += f" ± {measure_spread(report.scores[method][task]):.1f}"
    if len(scores) < (expected := count_expected_runs(report, method, task)):
        cell += f" [{len(scores)} of {expected} runs]"
    if seeds := report.unlearned[method].get(task):
        cell += " [did not learn]" if len(seeds) == len(scores) else f" [{len(seeds)} of {len(scores)} did not learn]"
    if difference := report.differences[method].get(task):
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


def count_expected_runs(report: Report, method: str, task: str) -> int:
    """Return the number of runs of a row on a task in a complete comparison."""
    is_probe = report.plan["evaluation"] == "probe"
    is_pretrained = any("-" in name or (is_probe and name) for name in report.scores[method][task])
    seeds = 1 if is_probe else len(report.plan["seeds"])
    return seeds * (len(report.plan["pretraining_seeds"]) if is_pretrained else 1)


def explain(report: Report) -> str:
    """Return how to read the tables."""
    budget = report.plan["budget"]
    cost = f"{budget['tokens']:,} tokens" if budget["tokens"] else f"{budget['minutes']:g} minutes"
    if not budget["tokens"] and report.minutes:
        cost += f" (measured, with loading and saving: {min(report.minutes):.1f} to {max(report.minutes):.1f})"
    seeds = len(report.plan["seeds"])
    pretrained = len(report.plan["pretraining_seeds"])
    folded = [f"{name} ({task['folds']} folds)" for name, task in report.plan["tasks"].items() if task["folds"]]
    parts = [
        f"Every row has spent {cost}, including the row that it starts from."
        if budget.get("shared")
        else f"Every pre-training had the same budget: {cost}. The cost of a row that starts from another row includes "
        "both.",
        "The means by the budget also show fewer tokens; their gains are over no adaptation, with intervals of single "
        "comparisons."
        if report.smaller
        else "",
        "Scores are in percent on the test sets. They come from linear models on the states of frozen encoders, which "
        "have no seed."
        if report.plan["evaluation"] == "probe"
        else f"Scores are in percent on the test sets: the mean over {seeds} seed{'s' * (seeds > 1)} of fine-tuning"
        f"{f' and {pretrained} of pre-training' if pretrained > 1 else ''} ± half the 95 % t interval"
        f"{', the wider one of the runs and of the pre-trainings' if pretrained > 1 else ''}.",
        "For similarity and retrieval, texts are compared by the cosine of their mean states."
        if any(task["kind"] in SENTENCES for task in report.plan["tasks"].values())
        else "",
        "Differences have 95 % intervals, which cover other test examples and seeds. The p values are corrected by "
        "Holm's method for all comparisons of the plan. Only the means over tasks decide; single tasks show where they "
        "come from. The counterpart of a row is the row with equal pre-training. The interval on another task also "
        "covers other tasks: expect it for a new task like these."
        if any(report.decisions.values())
        else "",
        f"{', '.join(folded)}: each item was tested once, by a model that was trained on other items. Rows that train "
        "on the texts of such a task are not tested on it."
        if folded
        else "",
        f"Learning rates of fine-tuning were chosen on the validation sets from {', '.join(map(str, rates))}."
        if (rates := report.plan["learning_rates"])
        else "",
        "" if pretrained > 1 else "Each encoder was trained once: another seed of pre-training may change the order.",
        f"{TOGETHER}: each text or word gets the label that most of three predict; the mean is over all groups of "
        "three of the first six seeds. The p values are corrected for all comparisons, those of single fine-tunings "
        "too. Seconds are those of one task with a pre-training of its own, as a share of those of DAPT with one "
        "fine-tuning."
        if report.together
        else "",
        f"{VALIDATION}: choose rows for another comparison by these scores, not by those on the test sets."
        if any(report.validation.values())
        else "",
        f"Without results so far, and left out: {', '.join(report.titles[method] for method in empty)}."
        if (empty := list_empty(report))
        else "",
        "(cached) inference read states of the memory or the passages from a cache. Preparation expands a vocabulary, "
        "builds a datastore or chooses text. Masked-LM losses are comparable only under one vocabulary; losses with "
        "(own tokens) have another vocabulary and are left out of the plots.",
    ]
    if len(report.codes) > 1:
        states = ", ".join(f"{code[:8]} ({len(names)} results)" for code, names in sorted(report.codes.items()))
        parts.append(f"The code changed between the results without a new version; its digests: {states}.")
    return " ".join(filter(None, parts))


def make_markdown(report: Report, tables: dict[str, pd.DataFrame], pictures: list[str]) -> str:
    """Return the report as Markdown."""
    parts = [f"# Comparison: {escape_cell(name_encoder(report))}"]
    for number, (is_code, lines) in enumerate(groupby(answer(report), is_command)):
        texts = [*lines] if is_code else [*map(escape_cell, lines)]
        if number == 0:
            texts[0] = f"**{texts[0]}**"
        parts += ["\n".join(["```bash", *texts, "```"])] if is_code else texts
    parts += [f"## {title}\n\n{format_markdown_table(table)}" for title, table in tables.items()]
    parts.insert(-len(tables) + 1, explain(report))
    parts += [f"![{CAPTIONS[Path(name).stem]}]({name})" for name in pictures]
    if report.failed:
        failures = [f"- {name}: {escape_cell(error)}" for name, error in report.failed.items()]
        parts.append("## Runs that failed\n\n" + "\n".join(failures))
    return "\n\n".join(parts) + "\n"


def name_encoder(report: Report) -> str:
    """Return the name of the plan's encoder, without its folder."""
    return report.plan["encoder"].rstrip("/").rpartition("/")[2]


def format_markdown_table(table: pd.DataFrame) -> str:
    """Return a table as Markdown."""
    header = [" ", *map(str, table.columns)]
    rows = [[str(name), *row] for name, row in zip(table.index, table.to_numpy(), strict=True)]
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(escape_cell, line)) + " |" for line in lines)


def escape_cell(text: Any) -> str:
    """Return a text that stays inside its cell and shows markup as text, because Markdown viewers render HTML."""
    return " ".join(html.escape(str(text), quote=False).replace("|", "\\|").split())


@cache  # a comparison writes its report more than once, and every bundle takes 0.6 seconds
def bundle_javascript() -> str:
    """Return the scripts that draw the figures, to stand inside a page."""
    import vl_convert

    bundle = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # the stub is wrong
    return bundle.replace("</script", "<\\/script")


def make_html(report: Report, tables: dict[str, pd.DataFrame], figures: dict[str, dict[str, Any]]) -> str:
    """Return the report as one page that needs no other file and no network; every text is escaped."""
    import jinja2

    template = jinja2.Environment(autoescape=True, trim_blocks=True).from_string(PAGE.read_text(encoding="utf-8"))
    page = template.render(
        title=f"Comparison: {name_encoder(report)}",
        answer=[(is_code, [*lines]) for is_code, lines in groupby(answer(report), is_command)],
        tables={name: table.to_html(escape=True, border=0) for name, table in tables.items()},
        explanation=explain(report),
        captions={name: CAPTIONS[name] for name in figures},
        figures=figures,
        failed=report.failed,
        javascript=bundle_javascript(),
    )
    return page + "\n"

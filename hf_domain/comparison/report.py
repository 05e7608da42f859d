"""The report of a comparison, made from its result files and nothing else: Markdown, HTML and pictures."""

import html
import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd

from hf_domain.comparison.results import Result, read_results
from hf_domain.comparison.scores import Difference, compare, compute_interval
from hf_domain.files import read_json, write_json, write_text, write_whole
from hf_domain.methods import BASELINE

START = "the encoder as it was"


@dataclass
class Report:
    """What the results say.

    Args:
        plan: As `describe_plan` wrote it.
        scores: Scores by method, task and seed, in percent.
        majority: What a model scores that learned nothing, by task; empty for results that do not say.
        unlearned: The seeds whose score is no better, by method and task.
        differences: To the baseline by method and task, over the seeds that both have.
        costs: By method: what its encoder and its use cost.
        losses: Masked-LM losses by the title of the encoder and the corpus they were measured on.
        other_tokens: The titles of encoders with another vocabulary than the plan's: their losses are of other tokens.
        cached: Methods whose predictions read states that were computed before.
        failed: Steps without a result and why.
        codes: The results by the digest of the code that made them.
        minutes: That every pre-training took.
    """

    plan: dict[str, Any]
    scores: dict[str, dict[str, dict[int, float]]]
    majority: dict[str, float]
    unlearned: dict[str, dict[str, list[int]]]
    differences: dict[str, dict[str, Difference]]
    costs: dict[str, dict[str, float]]
    losses: dict[str, dict[str, float]]
    other_tokens: set[str]
    cached: set[str]
    failed: dict[str, str]
    codes: dict[str, list[str]]
    minutes: list[float]


def write_report(output_dir: Path) -> Report:
    """Read the results in a folder and write report.md, report.html, report.json and the pictures beside them.

    Args:
        output_dir: Of the comparison.

    Returns:
        What was written.

    Raises:
        FileNotFoundError: There are no results.
    """
    results = read_results(output_dir)
    if not results or not (output_dir / "plan.json").is_file():
        raise FileNotFoundError(f"there are no results in {output_dir}; run the comparison first")
    report = read_report(read_json(output_dir / "plan.json"), results)
    pictures = draw(report, output_dir)
    tables = make_tables(report)
    write_text(output_dir / "report.md", make_markdown(report, tables, pictures))
    write_text(output_dir / "report.html", make_html(report, tables, pictures))
    write_json(
        output_dir / "report.json",
        {name: getattr(report, name) for name in ("scores", "majority", "unlearned", "costs", "losses", "failed")}
        | {"differences": {m: {t: vars(d) for t, d in row.items()} for m, row in report.differences.items()}},
    )
    return report


def read_report(plan: dict[str, Any], results: Mapping[str, Result]) -> Report:
    """Gather what the results say."""
    methods, tasks = plan["titles"], plan["tasks"]
    done = [result for result in results.values() if result.is_done]
    runs = {(r.step.method, r.step.task, r.step.seed): r for r in done if r.step.kind == "fine_tuning"}
    scores: dict[str, dict[str, dict[int, float]]] = {method: {task: {} for task in tasks} for method in methods}
    for (method, task, seed), run in sorted(runs.items()):
        scores[method][task][seed] = run.score
    majority = {task: run.baseline for (_, task, _), run in sorted(runs.items()) if run.baseline is not None}
    unlearned: dict[str, dict[str, list[int]]] = {method: defaultdict(list) for method in methods}
    for (method, task, seed), run in sorted(runs.items()):
        if not run.did_learn:
            unlearned[method][task].append(seed)
    differences: dict[str, dict[str, Difference]] = {method: {} for method in methods}
    for method in methods:
        for task in tasks:
            seeds = sorted(set(scores[method][task]) & set(scores.get(BASELINE, {}).get(task, {})))
            if method != BASELINE and seeds:
                own, baseline = (
                    [runs[name, task, seed].predictions.score() for seed in seeds] for name in (method, BASELINE)
                )
                differences[method][task] = compare(own, baseline)
    failed = {name: result.error for name, result in results.items() if not result.is_done}
    costs = {method: read_costs(method, plan, done) for method in methods}
    evaluations = read_evaluations(plan, done)
    cached = {
        method for (method, _, _), run in runs.items() if {"memory_cache", "passage_cache"} & run.step.flags.keys()
    }
    codes: dict[str, list[str]] = defaultdict(list)
    for result in done:
        codes[result.environment.get("code") or "unknown"].append(result.step.name)
    tokens = find_other_tokens(evaluations)
    losses, minutes = read_losses(evaluations), [r.seconds / 60 for r in done if r.step.kind == "pretraining"]
    learning = (scores, majority, unlearned, differences)
    return Report(plan, *learning, costs, losses, tokens, cached, failed, dict(codes), minutes)


def read_costs(method: str, plan: dict[str, Any], done: list[Result]) -> dict[str, float]:
    """Return what a method cost, over all encoders it made (means), and what its use costs."""
    encoders = [r for r in done if r.step.method == method and r.step.kind in ("pretraining", "average")]
    runs = [r for r in done if r.step.method == method and r.step.kind == "fine_tuning"]
    costs = {}
    prepared = find_preparation(method, done)
    for name, source, field in (
        ("preparation s", prepared, "seconds"),
        ("pre-training s", encoders, "seconds"),
        ("tokens", encoders, "tokens"),
        ("trained parameters", encoders, "trainable_parameters"),
        ("checkpoint MB", encoders, "checkpoint_bytes"),
        ("fine-tuning s", runs, "seconds"),
        ("inference ms", runs, "milliseconds_per_text"),
    ):
        if values := [value for result in source if (value := getattr(result, field)) is not None]:
            costs[name] = statistics.mean(values) / (1e6 if field == "checkpoint_bytes" else 1)
    after = plan["methods"][method]["after"]
    if after is not None:
        before = read_costs(after, plan, done)
        for name in ("preparation s", "pre-training s", "tokens"):
            if name in before:
                costs[name] = costs.get(name, 0) + before[name]
    return costs


def find_preparation(method: str, done: list[Result]) -> list[Result]:
    """Return the expansions of a vocabulary and the datastores that a method reads, its own or shared."""
    needed = {name for result in done if result.step.method == method for name in result.step.needs}
    return [r for r in done if r.step.kind in ("vocabulary", "datastore") and r.step.name in needed]


def read_evaluations(plan: dict[str, Any], done: list[Result]) -> dict[str, list[Result]]:
    """Return the evaluations of every encoder by its title, which the encoders of TAPT for one corpus share."""
    corpora = {name: name for name in plan["corpora"]} | {name: task["corpus"] for name, task in plan["tasks"].items()}
    titles = {"encoder": START, **plan["titles"]}
    has_domains = len(plan["corpora"].keys() - {plan["general"]}) > 1
    for method, title in plan["titles"].items():
        for source, corpus in corpora.items():
            tells_domain = has_domains and corpus != plan["general"]
            titles[f"{method}-{source}"] = f"{title} ({corpus})" if tells_domain else title
    evaluations: dict[str, list[Result]] = {title: [] for title in titles.values()}
    for result in done:
        if result.step.kind == "evaluation":
            evaluations[titles[result.step.name.removesuffix(f"-on-{result.step.corpus}")]].append(result)
    return {title: results for title, results in evaluations.items() if results}


def read_losses(evaluations: dict[str, list[Result]]) -> dict[str, dict[str, float]]:
    """Return the masked-LM loss of every encoder on every corpus; the mean where several encoders have one title."""
    return {
        title: {
            corpus: statistics.mean(r.masked_lm_loss for r in results if r.step.corpus == corpus)
            for corpus in sorted({str(r.step.corpus) for r in results})
        }
        for title, results in evaluations.items()
    }


def find_other_tokens(evaluations: dict[str, list[Result]]) -> set[str]:
    """Return the titles of encoders whose losses are of other tokens than those of the encoder as it was.

    Where that was not evaluated, of other tokens than most.
    """
    known = {title: [result.vocabulary for result in results] for title, results in evaluations.items()}
    if not known:
        return set()
    usual = known[START][0] if START in known else statistics.mode(chain.from_iterable(known.values()))
    return {title for title, vocabularies in known.items() if set(vocabularies) != {usual}}


# ------------------------------------------------------------------------------------------------------- tables


def make_tables(report: Report) -> dict[str, pd.DataFrame]:
    """Make the tables of the report: scores, costs and masked-LM losses."""
    titles = report.plan["titles"]
    scores = pd.DataFrame(
        {
            f"{task} ({options['metric'].replace('_', ' ')})": {
                titles[method]: format_cell(report, method, task) for method in titles
            }
            for task, options in report.plan["tasks"].items()
        }
    )
    if report.majority:  # a floor
        scores.loc["majority baseline"] = [
            f"{report.majority[task]:.1f}" if task in report.majority else "" for task in report.plan["tasks"]
        ]
    costs = pd.DataFrame.from_dict({titles[m]: row for m, row in report.costs.items()}, orient="index")
    costs = costs.map(lambda value: "" if pd.isna(value) else f"{value:,.0f}" if value >= 100 else f"{value:.1f}")
    if "inference ms" in costs:
        of_cached = costs.index.isin([titles[method] for method in report.cached]) & (costs["inference ms"] != "")
        costs.loc[of_cached, "inference ms"] += " (cached)"
    losses = pd.DataFrame.from_dict(report.losses, orient="index")
    losses = losses.map(lambda value: "" if pd.isna(value) else f"{value:.3f}")
    of_others = losses.index.isin(report.other_tokens)
    losses[of_others] = losses[of_others].map(lambda cell: cell and f"{cell} (own tokens)")
    return {"Scores": scores, "Costs": costs, "Masked-LM loss on held-out text": losses}


def format_cell(report: Report, method: str, task: str) -> str:
    """Write a cell: mean and interval over the seeds, and the difference to the baseline with its p."""
    scores = list(report.scores[method][task].values())
    tasks = report.plan["methods"][method]["tasks"]
    if tasks is not None and task not in tasks:
        return ""
    if not scores:
        return "no result"
    cell = f"{statistics.mean(scores):.1f}"
    if len(scores) > 1:
        cell += f" ± {compute_interval(scores):.1f}"
    if len(scores) < len(report.plan["seeds"]):
        cell += f" [{len(scores)} of {len(report.plan['seeds'])} seeds]"
    if seeds := report.unlearned[method].get(task):
        cell += " [did not learn]" if len(seeds) == len(scores) else f" [{len(seeds)} of {len(scores)} did not learn]"
    if difference := report.differences[method].get(task):
        p = "one seed: no test" if difference.p is None else f"p {difference.p:.3f}".replace("p 0.000", "p < 0.001")
        cell += f" ({difference.mean:+.1f}, {p})"
    return cell


def describe_unlearned(report: Report) -> str:
    """Say how many fine-tunings are no better than the majority baseline, and of which rows; empty if none is."""
    total = sum(len(seeds) for row in report.scores.values() for seeds in row.values())
    rows = [
        f"{report.plan['titles'][method]} on {task} ({len(seeds)} of {len(report.scores[method][task])} runs)"
        for method, row in report.unlearned.items()
        for task, seeds in row.items()
        if task in report.plan["tasks"]
    ]
    count = sum(len(seeds) for row in report.unlearned.values() for seeds in row.values())
    if not rows:
        return ""
    if count == total:
        return (
            f"No row learned: all {total} fine-tunings are no better than the majority baseline, so the table says "
            "nothing about the methods. Train longer, choose another learning rate, or give more examples."
        )
    return (
        f"{count} of {total} fine-tunings did not learn: they are no better than the majority baseline. These are "
        f"{'; '.join(rows)}."
    )


def summarize(report: Report) -> list[str]:
    """Say of every method where it is better or worse than the baseline."""
    lines = []
    for method, row in report.differences.items():
        sure = {task: d.mean for task, d in row.items() if d.p is not None and d.p < 0.05}
        better = [task for task, mean in sure.items() if mean > 0]
        worse = [task for task, mean in sure.items() if mean < 0]
        unsure = [task for task, d in row.items() if d.p is not None and task not in sure]
        parts = [
            f"{word} {', '.join(tasks)}"
            for word, tasks in (("better on", better), ("worse on", worse), ("no clear difference on", unsure))
            if tasks
        ]
        if parts:
            lines.append(f"{report.plan['titles'][method]}: {'; '.join(parts)}.")
    return lines


def explain(report: Report) -> str:
    """Say how to read the tables."""
    budget = report.plan["budget"]
    cost = f"{budget['tokens']:,} tokens" if budget["tokens"] else f"{budget['minutes']:g} minutes"
    if not budget["tokens"] and report.minutes:
        cost += f" (measured, with loading and saving: {min(report.minutes):.1f} to {max(report.minutes):.1f})"
    parts = [
        f"Every pre-training had the same budget: {cost}; a method that starts from the encoder of another has both, "
        "as its costs show.",
        f"Scores are in percent, on the test sets: mean over {len(report.plan['seeds'])} seeds of fine-tuning ± half "
        "the 95 % t interval.",
        "In brackets the difference to DAPT over the seeds that both have, and the two-sided p of a t test whose "
        "variance is that of the test examples (paired bootstrap) and of the seeds, not corrected for the number of "
        "comparisons."
        if any(report.differences.values())
        else "",
        "Inference that is (cached) read states of the memory or of the passages that were computed before. "
        "Preparation is expanding a vocabulary or building a datastore. Masked-LM losses compare between encoders with "
        "the same vocabulary; those of (own tokens) do not, and no plot sets them beside others.",
    ]
    if len(report.codes) > 1:
        states = ", ".join(f"{code[:8]} ({len(names)} results)" for code, names in sorted(report.codes.items()))
        parts.append(f"The code changed between the results, without a new version; digests of it: {states}.")
    return " ".join(filter(None, parts))


def make_markdown(report: Report, tables: dict[str, pd.DataFrame], pictures: list[str]) -> str:
    """Write the report as Markdown."""
    encoder = report.plan["encoder"].rstrip("/").rpartition("/")[2]
    parts = [f"# Comparison: {escape_cell(encoder)}"]
    if unlearned := describe_unlearned(report):
        parts.append(f"**{escape_cell(unlearned)}**")
    parts.append(explain(report))
    if summary := summarize(report):
        parts.append("Against DAPT, at p < 0.05:\n\n" + "\n".join(f"- {line}" for line in summary))
    parts += [f"## {title}\n\n{format_markdown_table(table)}" for title, table in tables.items()]
    parts += [f"![{name.partition('.')[0]}]({name})" for name in pictures]
    if report.failed:
        lines = "\n".join(f"- {name}: {escape_cell(error)}" for name, error in report.failed.items())
        parts.append(f"## Runs that failed\n\n{lines}")
    return "\n\n".join(parts) + "\n"


def format_markdown_table(table: pd.DataFrame) -> str:
    """Write a table as Markdown."""
    header = [" ", *map(str, table.columns)]
    rows = [[str(name), *row] for name, row in zip(table.index, table.to_numpy(), strict=True)]
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(escape_cell, line)) + " |" for line in lines)


def escape_cell(text: Any) -> str:
    """Keep a text inside its cell, and its markup shown as text: viewers of Markdown render HTML."""
    return " ".join(html.escape(str(text), quote=False).replace("|", "\\|").split())


def make_html(report: Report, tables: dict[str, pd.DataFrame], pictures: list[str]) -> str:
    """Write the report as a page; every text is escaped."""
    title = html.escape(f"Comparison: {report.plan['encoder'].rstrip('/').rpartition('/')[2]}")
    parts = [f"<h1>{title}</h1>"]
    if unlearned := describe_unlearned(report):
        parts.append(f"<p><strong>{html.escape(unlearned)}</strong></p>")
    parts.append(f"<p>{html.escape(explain(report))}</p>")
    if summary := summarize(report):
        items = "".join(f"<li>{html.escape(line)}</li>" for line in summary)
        parts.append(f"<p>Against DAPT, at p &lt; 0.05:</p><ul>{items}</ul>")
    for name, table in tables.items():
        parts.append(f"<h2>{html.escape(name)}</h2>{table.to_html(escape=True, border=0)}")
    parts += [f'<img src="{html.escape(name)}" alt="{html.escape(name)}">' for name in pictures]
    if report.failed:
        items = "".join(f"<li>{html.escape(f'{name}: {error}')}</li>" for name, error in report.failed.items())
        parts.append(f"<h2>Runs that failed</h2><ul>{items}</ul>")
    style = (
        "body{font-family:system-ui;max-width:72rem;margin:2rem auto;padding:0 1rem}table{border-collapse:collapse}"
        "td,th{padding:.3rem .7rem;border-bottom:1px solid #ddd;text-align:left}img{max-width:100%}"
    )
    head = f'<meta charset="utf-8"><title>{title}</title><style>{style}</style>'
    return f"<!doctype html><html><head>{head}</head><body>{''.join(parts)}</body></html>\n"


# ----------------------------------------------------------------------------------------------------- pictures


def draw(report: Report, output_dir: Path) -> list[str]:
    """Draw the pictures for which there is something to show; returns their names."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pictures = []
    for name, draw_picture in (
        ("differences.png", _draw_differences),
        ("cost.png", _draw_costs),
        ("forgetting.png", _draw_losses),
    ):
        figure = draw_picture(report, pyplot)
        if figure is not None:
            figure.tight_layout()
            with write_whole(output_dir / name) as unfinished:
                figure.savefig(unfinished, dpi=120, format="png")
            pyplot.close(figure)
            pictures.append(name)
    return pictures


def _draw_differences(report: Report, pyplot: Any) -> Any:
    """Differences to the baseline with their intervals, a panel a task."""
    methods = [method for method, row in report.differences.items() if row]
    tasks = list(report.plan["tasks"])
    if not methods:
        return None
    size = (2.2 + 2.2 * len(tasks), 1 + 0.35 * len(methods))
    figure, panels = pyplot.subplots(1, len(tasks), figsize=size, sharey=True, squeeze=False)
    for axes, task in zip(panels[0], tasks, strict=True):
        for row, method in enumerate(methods):
            if difference := report.differences[method].get(task):
                if difference.low is not None:
                    axes.plot([difference.low, difference.high], [row, row], color=f"C{row}")
                axes.plot(difference.mean, row, "o", color=f"C{row}")
        axes.axvline(0, color="grey", linewidth=0.8)
        axes.set_ylim(len(methods) - 0.5, -0.5)
        axes.set_title(task)
        axes.set_yticks(range(len(methods)), [report.plan["titles"][method] for method in methods])
        axes.set_xlabel("points over DAPT")
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_costs(report: Report, pyplot: Any) -> Any:
    """Difference to the baseline, mean over the tasks of a method, against the seconds of pre-training."""
    titles = report.plan["titles"]
    points = {method: (0.0 if method == BASELINE else None) for method in titles}
    points |= {m: statistics.mean(d.mean for d in row.values()) for m, row in report.differences.items() if row}
    if BASELINE not in titles or not any(report.differences.values()):
        return None
    figure, axes = pyplot.subplots(figsize=(9, 5))
    for row, (method, difference) in enumerate(points.items()):
        if difference is not None:
            seconds = report.costs[method].get("pre-training s", 0.0)
            axes.plot(seconds, difference, linestyle="", label=titles[method], **_choose_marker(row))
    axes.axhline(0, color="grey", linewidth=0.8)
    axes.set_xlabel("seconds of pre-training")
    axes.set_ylabel("points over DAPT, mean of the method's tasks")
    return _finish_scatter(figure, axes)


def _draw_losses(report: Report, pyplot: Any) -> Any:
    """Gain on text of the domain against forgetting of general text, from the encoder as it was."""
    general, start = report.plan["general"], report.losses.get(START, {})
    if general is None or general not in start:
        return None
    figure, axes = pyplot.subplots(figsize=(9, 5))
    for row, (title, losses) in enumerate(report.losses.items()):
        corpora = [corpus for corpus in losses if corpus != general and corpus in start]
        if losses is not start and title not in report.other_tokens and general in losses and corpora:
            gains = [start[corpus] - losses[corpus] for corpus in corpora]
            forgotten = [losses[general] - start[general]] * len(corpora)
            axes.plot(gains, forgotten, linestyle="", label=title, **_choose_marker(row))
    axes.axhline(0, color="grey", linewidth=0.8)
    axes.set_xlabel("masked-LM loss gained on text of the domain")
    axes.set_ylabel("lost on general text")
    return _finish_scatter(figure, axes)


def _choose_marker(row: int) -> dict[str, str]:
    """Return what tells one of many points from the others: ten colors, then another shape."""
    return {"color": f"C{row % 10}", "marker": "os^D"[row // 10 % 4]}


def _finish_scatter(figure: Any, axes: Any) -> Any:
    """Name the points beside the axes: names at the points would lie on each other."""
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure

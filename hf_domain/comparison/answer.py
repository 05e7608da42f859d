"""The answer of a comparison: the method to use on this corpus, how certain that is, and what limits it."""

import math
import shlex
import statistics

import numpy as np

from hf_domain.comparison.curves import say_price, say_where_rows_pay
from hf_domain.comparison.plan import Plan
from hf_domain.comparison.race import describe_left
from hf_domain.comparison.rows import RECIPES
from hf_domain.comparison.statistics import (
    CONFIDENCE,
    POWER,
    Difference,
    average_tasks,
    count_needed_seeds,
    find_visible_difference,
)
from hf_domain.comparison.summary import START_TITLE, Report
from hf_domain.methods import BASELINE, NO_ADAPTATION
from hf_domain.tasks.scores import count_examples

# An extrapolation of a curve ends at this many doublings of its largest budget.
MOST_DOUBLINGS = 4
TOGETHER = "Three fine-tunings together"
# Rows that the answer names by their validation scores.
LEADERS = 4


def answer(report: Report) -> list[str]:
    """Return the first sentences of a report: the answer, then its limits."""
    left = describe_left(report.plan.get("left", {}), report.titles)
    limits = [left, list_unlearned(report), describe_unjudged(report), describe_failures(report)]
    limits += [describe_power(report), describe_validation(report)]
    lines = [] if count_unlearned(report) == count_runs(report) else [*recommend(report), describe_models(report)]
    return [line for line in (describe_missing(report), *lines, *limits) if line]


def is_command(line: str) -> bool:
    """Return whether a line of the answer is a command."""
    return line.startswith("hf-domain ")


def recommend(report: Report) -> list[str]:
    """Name the method to use, its certainty, its costs, what it forgets, and the command that trains it."""
    chosen, lines = choose(report)
    if chosen is None:
        return []
    curves = say_where_rows_pay(report), say_price(report)
    last = describe_costs(chosen, report), describe_together(report)
    return [*lines, *curves, describe_floors(chosen, report), *last, *list_command_lines(chosen, report)]


def choose(report: Report) -> tuple[str | None, list[str]]:
    """Choose the method to use, and say why; None if no row learned."""
    titles, learned = report.titles, [m for m in report.titles if any(report.scores[m].values())]
    learned = [m for m in learned if not report.unlearned[m] and m not in report.unjudged]
    rivals = {own: d for (own, other), d in report.decisions.items() if other == BASELINE and d and own in learned}
    better = {own: d for own, d in rivals.items() if d.is_sure and d.mean > 0}
    adapted = rivals.get(NO_ADAPTATION)
    if better:
        chosen = max(better, key=lambda own: better[own].mean)
        lines = [f"Use {titles[chosen]}: {describe(better[chosen], report)} over {titles[BASELINE]}."]
    elif adapted is not None and adapted.is_sure:
        chosen = BASELINE
        reverse = f"{describe(adapted, report, sign=-1)} over {titles[NO_ADAPTATION]}"
        lines = [f"Use {titles[BASELINE]}: {reverse}. No other method is significantly better."]
    else:
        # Seconds depend on what else the machine does, so they decide only among rows that score as high as DAPT. The
        # encoder as it was costs nothing at all: it stays unless it is significantly worse.
        below = {own for own, d in rivals.items() if d.mean < 0 and (d.is_sure or own != NO_ADAPTATION)}
        rows = [method for method in learned if method not in below]
        if not rows:
            return None, []
        chosen = min(rows, key=lambda method: sum(get_training_seconds(report, method)))
        of_those = ""
        if below and chosen != NO_ADAPTATION:
            of_those = f"of those that score as high as {titles[BASELINE]}, "
        reason = f"no row is significantly better, and {of_those}it is the cheapest"
        if BASELINE not in titles:
            reason = f"without the row {BASELINE} no difference is tested, and it is the cheapest"
        if len(learned) == 1:
            reason = "it is the only row whose runs all learned"
        lines = [f"Nothing is decided. Use {titles[chosen]}: {reason}."]
        lines += [describe_largest(rivals, report), describe_tokens(rivals, report)]
    return chosen, lines


def describe(difference: Difference, report: Report, sign: int = 1) -> str:
    """Format a difference of the plan's comparisons with its interval and its p value."""
    count = len(difference.tasks)
    tasks = f"mean of {count} tasks" if count > 1 else f"on {difference.tasks[0]} alone"
    if difference.low is None or difference.high is None:
        return f"{sign * difference.mean:+.1f} points ({tasks}, one seed: no test)"
    low, high = sorted((sign * difference.low, sign * difference.high))
    p = "" if difference.corrected is None else f", {format_p(difference.corrected)} {describe_correction(report)}"
    return f"{sign * difference.mean:+.1f} points ({tasks}, 95 % interval {low:+.1f} to {high:+.1f}{p})"


def describe_correction(report: Report) -> str:
    """Return for how many comparisons the p values are corrected."""
    count = len(report.decisions)
    return f"corrected for {count} comparisons" if count > 1 else "of one comparison"


def format_p(p: float) -> str:
    """Format a p value."""
    return "p < 0.001" if p < 0.001 else f"p {p:.3f}"


def describe_largest(rivals: dict[str, Difference], report: Report) -> str:
    """Name the row with the highest difference, and the number of seeds that would show one of its size."""
    if not rivals:
        return ""
    own = max(rivals, key=lambda name: rivals[name].mean)
    text = f"{report.titles[own]} scores highest against {report.titles[BASELINE]}: {describe(rivals[own], report)}. "
    several = len(report.plan["pretraining_seeds"]) > 1
    if report.plan["evaluation"] == "probe" and not several:
        return f"{text}A probe has no seeds. Use larger test sets, or more tasks."
    seeds = report.plan["pretraining_seeds" if several else "seeds"]
    kind = "seeds of pre-training" if several else "seeds"
    if rivals[own].p is None:
        return f"{text}Use at least three seeds."
    if (needed := count_needed_seeds(rivals[own], len(seeds), len(report.decisions))) is not None:
        return f"{text}With {needed} {kind} instead of {len(seeds)}, the plan could detect a difference of this size."
    return f"{text}More {kind} would not show it. Use larger test sets, or more tasks."


def describe_tokens(rivals: dict[str, Difference], report: Report) -> str:
    """Say how many more tokens would decide about the largest difference, by its growth over the budgets so far."""
    tokens = [at.plan["budget"]["tokens"] for at in (*report.smaller, report)]
    if not rivals or tokens[-1] is None:
        return ""
    if len(tokens) < 2:
        more = f"[{tokens[-1]}, {2 * tokens[-1]}, {5 * tokens[-1]}]"
        return f"Whether more tokens would decide, a curve shows: `budget: {{tokens: {more}}}`."
    own, title = max(rivals, key=lambda name: rivals[name].mean), report.titles[BASELINE]
    growth = measure_growth(own, report)
    needed = find_threshold(rivals[own], len(report.decisions))
    if growth is None or needed is None:
        return ""
    slope, low, high = growth
    text = f"Its difference to {title} changes by {slope:+.1f} points with each doubling of the tokens"
    text += f" (95 % interval over the test examples {low:+.1f} to {high:+.1f})"
    if low <= 0:
        return f"{text}: that more tokens would decide is not shown."
    doublings = (needed - rivals[own].mean) / slope
    if doublings > MOST_DOUBLINGS:
        return f"{text}: at this rate {2**MOST_DOUBLINGS} times the tokens would not decide."
    return f"{text}: at this rate about {tokens[-1] * 2 ** max(doublings, 0):,.0f} tokens would decide."


def measure_growth(own: str, report: Report) -> tuple[float, float, float] | None:
    """Return how much the difference of a row to the baseline grows with each doubling of the tokens.

    Returns:
        The slope of a line through the differences at all budgets, and its 95 % interval over the test examples; None
        if a budget has no results of both rows.
    """
    reports = [*report.smaller, report]
    rows = [at.draws.get(name, {}) for at in reports for name in (own, BASELINE)]
    if not (tasks := [task for task in report.plan["tasks"] if all(row.get(task) for row in rows)]):
        return None
    differences = [average_tasks(at.draws[own], tasks) - average_tasks(at.draws[BASELINE], tasks) for at in reports]
    tokens = np.log2([at.plan["budget"]["tokens"] for at in reports])
    slopes = np.polyfit(tokens, np.array(differences), 1)[0]
    return slopes[0], *np.quantile(slopes[1:], [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])


def describe_together(report: Report) -> str:
    """Say what several fine-tunings reach together: the best row, and the best one for DAPT's seconds with one."""
    # A row of few tasks may gain most only because these gain most.
    most = max((len(own.tasks) for own in report.together.values()), default=0)
    gains = {row: (own.over_baseline, own.cost) for row, own in report.together.items() if len(own.tasks) == most}
    sure = {row: (over, cost) for row, (over, cost) in gains.items() if over and over.is_sure and over.mean > 0}
    if not sure:
        return ""
    cheap = {row: (over, cost) for row, (over, cost) in sure.items() if cost is not None and cost <= 1}
    parts = []
    for row in dict.fromkeys(max(rows, key=lambda name: rows[name][0].mean) for rows in (sure, cheap) if rows):
        over, cost = sure[row]
        assert over.corrected is not None
        tasks = f"{len(over.tasks)} task{'s' * (len(over.tasks) > 1)}"
        interval = f"{tasks}, {over.low:+.1f} to {over.high:+.1f}, {format_p(over.corrected)}"
        seconds = "" if cost is None else f" for {cost:.0%} of its seconds"
        parts.append(f"{report.titles[row]} {over.mean:+.1f} ({interval}){seconds}")
    return (
        f"{TOGETHER} reach more than one of {report.titles[BASELINE]}: {'; '.join(parts)}. Each text is then read "
        "three times: `hf-domain predict --ensemble`."
    )


def describe_costs(method: str, report: Report) -> str:
    """Return a sentence on the costs of a method's encoder, and on what it forgets."""
    costs = report.costs[method]
    pretraining, preparation = get_training_seconds(report, method)
    parts = []
    if "tokens" in costs:
        parts.append(f"{costs['tokens']:,.0f} tokens")
    if pretraining:
        parts.append(f"{pretraining:,.0f} s of pre-training")
    if preparation:
        parts.append(f"{preparation:,.0f} s of preparation")
    if "fine-tuning s" in costs:
        parts.append(f"{costs['fine-tuning s']:,.0f} s for each {name_scoring(report)}")
    text = f"It costs {', '.join(parts)}." if parts else ""
    general = report.plan["general"]
    start = report.losses.get(START_TITLE, {}).get(general)
    title = report.titles[method]
    # A row of DAPT named `slow` has the title "DAPT (slow)": only names of corpora tell encoders of one row apart.
    own = [n for n in (title, *(f"{title} ({corpus})" for corpus in report.plan["corpora"])) if n in report.losses]
    losses = [report.losses[name][general] for name in own if general in report.losses[name]]
    if start is None or not losses or report.other_tokens & {*own}:
        return text
    loss = statistics.mean(losses)
    verb = "forgets" if loss > start else "forgets nothing of"
    return f"{text} It {verb} general text: the masked-LM loss goes from {start:.3f} to {loss:.3f}.".strip()


def name_scoring(report: Report) -> str:
    """Return what scores an encoder."""
    return "probe" if report.plan["evaluation"] == "probe" else "fine-tuning"


def get_training_seconds(report: Report, method: str) -> tuple[float, float]:
    """Return the seconds of pre-training and of preparation."""
    costs = report.costs[method]
    return costs.get("pre-training s", 0.0), costs.get("preparation s", 0.0)


def list_command_lines(method: str, report: Report) -> list[str]:
    """Return the commands that make a method's encoder from the plan's, to run in the folder of the plan."""
    if not (commands := report.commands[method]):
        return []
    texts = {f"{report.plan['root']}/texts/{task}.txt": task for task in report.plan["tasks"]}
    task = next((texts[part] for command in commands for part in command if part in texts), None)
    own = "" if task is None else f". Each task has an encoder of its own, of its training texts; that of {task}"
    return [
        f"To train it from the plan's encoder, run in the folder of {report.plan['path']}{own}:",
        *map(shlex.join, commands),
    ]


def describe_floors(method: str, report: Report) -> str:
    """Say on which tasks a floor, which trains nothing, scores more than a method."""
    parts = []
    for task, seeds in report.scores[method].items():
        floors = {name: row[task] for name, row in report.floors.items() if task in row}
        if (
            seeds
            and floors
            and floors[best := max(floors, key=lambda name: floors[name])] > (own := statistics.mean(seeds.values()))
        ):
            parts.append(f"on {task} the {best} scores {floors[best]:.1f} and {report.titles[method]} {own:.1f}")
    return f"Without any training, {'; '.join(parts)}." if parts else ""


def describe_models(report: Report) -> str:
    """Return where the fine-tuned models with the best validation scores are; they do not depend on the answer."""
    models = [
        f"{report.plan['root']}/steps/{run.step.address} for {task} ({report.titles[str(run.step.method)]})"
        for task, run in report.models.items()
    ]
    return f"Best fine-tuned model by validation: {', '.join(models)}." if models else ""


def predict_power(plan: Plan) -> str:
    """Return which difference a plan can detect, simulated before the first run."""
    sizes = [count_examples(task, plan.fine_tuning, plan.folder) for task in plan.tasks.values()]
    pretrained, comparisons = len(plan.pretraining_seeds), len(plan.list_pairs())
    if not comparisons:
        return ""
    seeds = None if plan.evaluation == "probe" else len(plan.seeds)
    points = find_visible_difference(sizes, seeds, pretrained, comparisons, rows=max(2, len(plan.methods)))
    if points is None:
        return "This plan can test no difference, because it has one seed. Use at least three."
    return (
        f"This plan can see differences of about {points:.1f} points between two rows (in 9 of 10 simulated "
        f"comparisons, p < 0.05 corrected for {comparisons}). More seeds, tasks and test examples see smaller ones."
    )


def describe_power(report: Report) -> str:
    """Return which difference the results could show, given their errors, and what their intervals do not cover.

    In results/NOTES.md a row beat DAPT with p 0.015 in one pre-training, and was worse in the third.
    """
    found = [find_threshold(d, len(report.decisions)) for d in report.decisions.values() if d is not None]
    visible = [points for points in found if points is not None]
    points = statistics.median(visible) if visible else 0.0
    if not math.isfinite(points) or points <= 0:
        return ""
    text = f"This plan shows a true difference of {points:.1f} points in 9 of 10 cases; a smaller one may stay hidden."
    is_trained = any(RECIPES[row["recipe"]].method for row in report.plan["methods"].values())
    if len(report.plan["pretraining_seeds"]) > 1 or not is_trained:
        return text
    return f"{text} Each encoder was trained once; another seed may change the order: `pretraining_seeds: [1, 2, 3]`."


def find_threshold(difference: Difference, comparisons: int) -> float | None:
    """Return the points that a difference with this error shows in 9 of 10 cases; None without a test."""
    from scipy.stats import norm, t

    if difference.p is None or difference.high is None:
        return None
    error = (difference.high - difference.mean) / t.ppf(0.975, difference.freedom)
    return float((t.ppf(1 - 0.025 / comparisons, difference.freedom) + norm.ppf(POWER)) * error)


def describe_missing(report: Report) -> str:
    """Say which results are still missing: the answer may change."""
    if not report.missing:
        return ""
    titles, planned = report.titles, report.plan["methods"]
    empty = [m for m in report.missing if not any(report.scores[m].values())]
    parts = [f"{len(empty)} of {len(planned)} rows"] if empty else []
    started = {m: tasks for m, tasks in report.missing.items() if m not in empty}
    shared = [task for task in report.plan["tasks"] if started and all(task in tasks for tasks in started.values())]
    parts += [f"the task {task}" for task in shared if len(started) > 1]
    rest = {m: [t for t in tasks if len(started) < 2 or t not in shared] for m, tasks in started.items()}
    parts += [f"{titles[m]} on {', '.join(tasks)}" for m, tasks in rest.items() if tasks]
    return f"This comparison is not finished: results are missing for {'; '.join(parts)}. The answer may change."


def describe_unjudged(report: Report) -> str:
    """Say which rows a probe cannot judge."""
    parts = [f"{report.titles[own]} (the states of {report.titles[start]})" for own, start in report.unjudged.items()]
    return (
        f"A probe cannot judge {', '.join(parts)}: it reads the states of the encoder, and this training leaves them "
        "unchanged. Fine-tune to judge it."
        if parts
        else ""
    )


def describe_validation(report: Report) -> str:
    """Say which rows lead on the validation sets, from which rows for a further comparison may be chosen."""
    ranked = rank_validation(report)
    if report.plan["evaluation"] != "probe" or len(ranked) < 2:
        return ""
    first = [f"{report.titles[method]} {mean:.1f}" for method, mean in ranked[:LEADERS]]
    return (
        f"On the validation sets these rows lead: {', '.join(first)}. Choose rows for another comparison on the same "
        "tasks by these scores only: a choice by test scores makes the next test scores too good."
    )


def rank_validation(report: Report) -> list[tuple[str, float]]:
    """Return the rows with their mean scores on validation, the best first; of those with scores on the most tasks."""
    rows = {m: row for m, row in report.validation.items() if row and m not in report.unjudged}
    tasks = max(rows.values(), key=len, default={}).keys()
    means = {method: statistics.mean(row.values()) for method, row in rows.items() if row.keys() == tasks}
    return sorted(means.items(), key=lambda item: -item[1])


def count_runs(report: Report) -> int:
    """Count the fine-tunings."""
    return sum(len(seeds) for row in report.scores.values() for seeds in row.values())


def count_unlearned(report: Report) -> int:
    """Count the fine-tunings that did not learn."""
    return sum(len(seeds) for row in report.unlearned.values() for seeds in row.values())


def list_unlearned(report: Report) -> str:
    """Return how many fine-tunings, and of which rows, do not beat the majority baseline; empty if all do."""
    total, count = count_runs(report), count_unlearned(report)
    rows = [
        f"{report.titles[method]} on {task} ({len(seeds)} of {len(report.scores[method][task])} runs)"
        for method, row in report.unlearned.items()
        for task, seeds in row.items()
        if task in report.plan["tasks"]
    ]
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


def describe_failures(report: Report) -> str:
    """Return how many steps failed."""
    return f"{len(report.failed)} steps failed. Repeat the command to run them again." if report.failed else ""

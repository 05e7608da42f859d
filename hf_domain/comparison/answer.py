"""The answer of a comparison: the method to use on this corpus, how certain that is, and what limits it."""

import math
import shlex
import statistics
from pathlib import Path

from hf_domain.comparison.curves import say_price, say_where_rows_pay
from hf_domain.comparison.plan import Plan
from hf_domain.comparison.race import describe_left
from hf_domain.comparison.scores import count_examples
from hf_domain.comparison.statistics import POWER, Difference, count_needed_seeds, find_visible_difference
from hf_domain.comparison.summary import START, Report
from hf_domain.methods import BASELINE, NO_ADAPTATION


def answer(report: Report) -> list[str]:
    """Return the first sentences of a report: the answer, then its limits."""
    left = describe_left(report.plan.get("left", {}), report.titles)
    limits = [left, describe_unlearned(report), describe_failures(report), describe_power(report)]
    lines = [] if count_unlearned(report) == count_runs(report) else [*recommend(report), describe_models(report)]
    return [line for line in (*lines, *limits) if line]


def recommend(report: Report) -> list[str]:
    """Name the method to use, its certainty, its costs, what it forgets, and the command that trains it."""
    chosen, lines = choose(report)
    if chosen is None:
        return []
    curves = say_where_rows_pay(report), say_price(report)
    return [*lines, *curves, describe_costs(chosen, report), describe_command(chosen, report)]


def choose(report: Report) -> tuple[str | None, list[str]]:
    """Choose the method to use, and say why; None if no row learned."""
    titles, learned = report.titles, [m for m in report.titles if any(report.scores[m].values())]
    learned = [m for m in learned if not report.unlearned[m]]
    rivals = {own: d for (own, other), d in report.decisions.items() if other == BASELINE and d and own in learned}
    better = {own: d for own, d in rivals.items() if d.is_sure and d.mean > 0}
    adapted = rivals.get(NO_ADAPTATION)
    if better:
        chosen = max(better, key=lambda own: better[own].mean)
        lines = [f"Use {titles[chosen]}: {describe(better[chosen], report)} over {titles[BASELINE]}."]
    elif adapted is not None and adapted.is_sure:
        chosen = BASELINE
        reverse = f"{describe(adapted, report, sign=-1)} over {titles[NO_ADAPTATION]}"
        lines = [f"Use {titles[BASELINE]}: {reverse}. No other method is surely better than it."]
    else:
        worse = {own for own, d in rivals.items() if d.is_sure and d.mean < 0}
        rows = [method for method in learned if method not in worse]
        if not rows:
            return None, []
        chosen = min(rows, key=lambda method: sum(get_training_seconds(report, method)))
        cheapest = "no row is surely better, and it costs the least"
        reason = cheapest if len(learned) > 1 else "it is the only row whose runs all learned"
        lines = [f"Nothing is decided. Use {titles[chosen]}: {reason}.", describe_largest(rivals, report)]
    return chosen, lines


def describe(difference: Difference, report: Report, sign: int = 1) -> str:
    """Format a difference with its interval and its p value."""
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
    """Name the largest difference, and the number of seeds that would show one of its size."""
    if not rivals:
        return ""
    own = max(rivals, key=lambda name: rivals[name].mean)
    text = f"{report.titles[own]} differs most from {report.titles[BASELINE]}: {describe(rivals[own], report)}. "
    several = len(report.plan["pretraining_seeds"]) > 1
    if report.plan["evaluation"] == "probe" and not several:
        return f"{text}A probe has no seeds: take larger test sets or more tasks."
    seeds = report.plan["pretraining_seeds" if several else "seeds"]
    kind = "seeds of pre-training" if several else "seeds"
    if rivals[own].p is None:
        return f"{text}Take at least three seeds."
    if (needed := count_needed_seeds(rivals[own], len(seeds), len(report.decisions))) is not None:
        return f"{text}With {needed} {kind} instead of {len(seeds)} a true difference of this size would show."
    return f"{text}More {kind} would not show it: take larger test sets, or more tasks."


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
        parts.append(f"{costs['fine-tuning s']:,.0f} s for each fine-tuning")
    text = f"It costs {', '.join(parts)}." if parts else ""
    general = report.plan["general"]
    start = report.losses.get(START, {}).get(general)
    title = report.titles[method]
    own = [name for name in report.losses if name == title or name.startswith(f"{title} (")]
    losses = [report.losses[name][general] for name in own if general in report.losses[name]]
    if start is None or not losses or report.other_tokens & {*own}:
        return text
    loss = statistics.mean(losses)
    verb = "forgets" if loss > start else "forgets nothing of"
    return f"{text} It {verb} general text: the masked-LM loss goes from {start:.3f} to {loss:.3f}.".strip()


def get_training_seconds(report: Report, method: str) -> tuple[float, float]:
    """Return the seconds of pre-training and of preparation."""
    costs = report.costs[method]
    return costs.get("pre-training s", 0.0), costs.get("preparation s", 0.0)


def describe_command(method: str, report: Report) -> str:
    """Return the command that trains a method, to run in the folder of the plan."""
    return f"The command: {shlex.join(report.commands[method])}" if report.commands[method] else ""


def describe_models(report: Report) -> str:
    """Return where the fine-tuned models with the best validation scores are; they do not depend on the answer."""
    home = Path(report.plan["path"]).stem
    models = [
        f"{home}/steps/{run.step.address} for {task} ({report.titles[str(run.step.method)]})"
        for task, run in report.models.items()
    ]
    return f"Best fine-tuned model by validation: {', '.join(models)}." if models else ""


def foresee_power(plan: Plan) -> str:
    """Return which difference a plan can detect, simulated before the first run."""
    sizes = [count_examples(task, plan) for task in plan.tasks.values()]
    pretrained, comparisons = len(plan.pretraining_seeds), len(plan.list_pairs())
    if not comparisons:
        return ""
    seeds = None if plan.evaluation == "probe" else len(plan.seeds)
    points = find_visible_difference(sizes, seeds, pretrained, comparisons, rows=max(2, len(plan.methods)))
    if points is None:
        return "This plan can test no difference: it has one seed. Take at least three."
    return (
        f"This plan can see differences of about {points:.1f} points between two rows (in 9 of 10 simulated "
        f"comparisons, p < 0.05 corrected for {comparisons}). More seeds, tasks and test examples see smaller ones."
    )


def describe_power(report: Report) -> str:
    """Return which difference the results could show, given their errors."""
    from scipy.stats import norm, t

    visible = []
    for difference in report.decisions.values():
        if difference is not None and difference.p is not None and difference.high is not None:
            error = (difference.high - difference.mean) / t.ppf(0.975, difference.freedom)
            threshold = t.ppf(1 - 0.025 / len(report.decisions), difference.freedom)
            visible.append((threshold + norm.ppf(POWER)) * error)
    if not visible:
        return ""
    points = statistics.median(visible)
    return (
        f"This plan shows a true difference of {points:.1f} points in 9 of 10 cases; a smaller one may stay hidden."
        if math.isfinite(points) and points > 0
        else ""
    )


def count_runs(report: Report) -> int:
    """Count the fine-tunings."""
    return sum(len(seeds) for row in report.scores.values() for seeds in row.values())


def count_unlearned(report: Report) -> int:
    """Count the fine-tunings that did not learn."""
    return sum(len(seeds) for row in report.unlearned.values() for seeds in row.values())


def describe_unlearned(report: Report) -> str:
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

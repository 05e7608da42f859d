"""Decide what to use: the expected gain of each row, the chance that it is one, and its price.

Every row is a bet against what the user has now: the encoder without adaptation, or DAPT if the plan has no such row.
What was measured is one draw around the true gain. Most rows of most plans gain little, so a large gain that was
measured with much noise is mostly noise. The expected gain is the measured one, shrunk towards zero: the less, the
smaller its error is against the gains that the rows of this plan have. `benchmarks/decisions.py` measures how often a
stated chance comes true, and what following the advice costs.
"""

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hf_domain.comparison.rows import RECIPES
from hf_domain.comparison.statistics import SEED_DEVIATION, Difference
from hf_domain.comparison.summary import Report
from hf_domain.methods import BASELINE, NO_ADAPTATION
from hf_domain.tasks.trivial_baselines import LINEAR

# Before anything is measured, true gains are of this size: the standard deviation of the rows of our published
# comparisons, in points. It counts as much as this number of rows that were measured.
USUAL_GAIN, ROWS_BEFORE = 2.0, 2
# What another seed of pre-training moves the mean over the tasks by: standard deviation in points.
PRETRAINING_DEVIATION = 0.4
# The chance from which the answer names a row.
SURE = 0.75
# Points that a cheaper row may be expected to lose against the best one, to be named beside it, and its share of the
# time.
NEAR, CHEAPER = 1.0, 0.8


@dataclass(frozen=True)
class Bet:
    """A row against what the user has now."""

    row: str
    gain: float
    """The gain in points that is to be expected."""
    chance: float
    """The probability that there is a gain."""
    seconds: float
    """What its encoder and one fine-tuning of a task took."""
    difference: Difference
    """What was measured."""


def answer(report: Report) -> list[str]:
    """Return the first sentences of a report: the decision, then its limits. Commands are lines of their own."""
    has_learned = any(run.did_learn for run in report.runs.values())
    lines = [*decide(report), describe_floors(report)] if has_learned else []
    failed = len(report.failed)
    failures = f"{failed} step{'s' * (failed != 1)} failed. Repeat the command to run them again." if failed else ""
    return [line for line in (describe_missing(report), *lines, failures, list_unlearned(report)) if line]


def is_command(line: str) -> bool:
    """Return whether a line of the answer is a command."""
    return line.startswith("hf-domain ")


# -------------------------------------------------------------------------------------------------------------- bets


def find_reference(report: Report) -> str | None:
    """Return the row that is what the user has now; None if neither of the two has results."""
    known = {row for (row, _, _) in report.runs}
    return next((row for row in (NO_ADAPTATION, BASELINE) if row in known), None)


def list_bets(report: Report) -> list[Bet]:
    """Return all rows that learned as bets against the reference, the highest expected gain first."""
    reference, found = find_reference(report), dict[str, Difference]()
    if reference == NO_ADAPTATION:
        found = dict(report.gains)
    elif reference == BASELINE:
        found = {own: d for (own, other), d in report.decisions.items() if other == BASELINE and d is not None}
    unlearned = report.unlearned
    found = {row: difference for row, difference in found.items() if not unlearned[row]}
    errors = {row: measure_error(difference, report, row) for row, difference in found.items()}
    spread = measure_spread((difference.mean for difference in found.values()), errors.values())
    bets = []
    for row, difference in found.items():
        gain, chance = shrink(difference.mean, errors[row], spread, difference.freedom)
        bets.append(Bet(row, gain, chance, count_seconds(report, row), difference))
    return sorted(bets, key=lambda bet: -bet.gain)


def measure_error(difference: Difference, report: Report, row: str) -> float:
    """Return the variance of a difference, with what a plan of one seed or one pre-training cannot show."""
    variance = difference.of_examples + difference.of_seeds
    if difference.low is None:
        variance += 2 * SEED_DEVIATION**2 / len(difference.tasks)
    is_trained = any(RECIPES[report.plan["methods"][each]["recipe"]].method for each in list_starts(report.plan, row))
    if is_trained and len(report.plan["pretraining_seeds"]) == 1:
        variance += PRETRAINING_DEVIATION**2
    return variance


def list_starts(plan: dict[str, Any], row: str) -> list[str]:
    """List a row and the rows that it starts from."""
    rows = [row]
    while (after := plan["methods"][rows[-1]]["after"]) is not None:
        rows.append(after)
    return rows


def measure_spread(gains: Iterable[float], errors: Iterable[float]) -> float:
    """Return the variance of the true gains of a plan's rows, from what was measured and what is usual."""
    beyond = [max(0.0, gain**2 - error) for gain, error in zip(gains, errors, strict=True)]
    return (ROWS_BEFORE * USUAL_GAIN**2 + sum(beyond)) / (ROWS_BEFORE + len(beyond))


def shrink(gain: float, error: float, spread: float, freedom: float = math.inf) -> tuple[float, float]:
    """Return the expected gain, and the chance that there is one.

    Args:
        gain: As measured.
        error: Its variance.
        spread: The variance of true gains.
        freedom: Degrees of freedom of the error.
    """
    from scipy.stats import t

    share = spread / (spread + error)
    if error == 0:
        return gain, float(gain > 0) if gain else 0.5
    return share * gain, float(t.cdf(share * gain / math.sqrt(share * error), freedom))


def count_seconds(report: Report, row: str) -> float:
    """Return the seconds of a row's encoder and of one fine-tuning."""
    costs = report.costs[row]
    return sum(costs.get(name, 0.0) for name in ("preparation s", "pre-training s", "fine-tuning s"))


def choose(report: Report) -> str | None:
    """Return the row to use: that with the highest expected gain, else what the user has; None if no row learned."""
    bets, reference = list_bets(report), find_reference(report)
    if bets and bets[0].gain > 0:
        return bets[0].row
    unlearned = report.unlearned
    learned = [row for row in report.titles if any(report.scores[row].values()) and not unlearned[row]]
    return reference if reference in learned else next(iter(learned), None)


# --------------------------------------------------------------------------------------------------------- sentences


def decide(report: Report) -> list[str]:
    """Return the sentences of the decision: the best bet, a cheaper one, what could change it, and the commands."""
    bets, chosen, reference = list_bets(report), choose(report), find_reference(report)
    if chosen is None:
        return []
    if not bets or reference is None:
        alone = f"Use {report.titles[chosen]}: no other row can be compared with it."
        return [alone, *list_next_commands(report)]
    now = "the encoder as it is" if reference == NO_ADAPTATION else report.titles[reference]
    best, surest = bets[0], max(bet.chance for bet in bets)
    if best.gain > 0 and best.chance >= SURE:
        first = (
            f"Use {report.titles[best.row]}: {format_points(best.gain)} points, better than {now} with "
            f"{format_chance(best.chance)} chance; {format_seconds(best.seconds)}."
        )
        lines = [first, describe_runner_up(report, bets, reference), describe_doubt(report, best)]
    elif surest <= 1 - SURE:
        lines = [f"Use {now}: no other row is better with more than {format_chance(surest)} chance."]
        lines.append(describe_doubt(report, best))
    else:
        more = 2 * len(report.plan["seeds"])
        title = report.titles[best.row]
        leads = "is the best bet" if best.gain > 0 else f"comes nearest to {now}, the best bet"
        lines = [
            f"Nothing is decided. {title[0].upper()}{title[1:]} {leads}: {format_points(best.gain)} points, "
            f"better than {now} with {format_chance(best.chance)} chance; {format_seconds(best.seconds)}. To decide, "
            "run more seeds:",
            f"hf-domain compare {report.plan['path']} --num_seeds {more}",
            describe_doubt(report, best),
        ]
    return [*lines, *list_next_commands(report)]


def format_chance(chance: float) -> str:
    """Write a chance in whole percent; none is certain."""
    return f"{min(99, max(1, round(100 * chance)))} %"


def format_points(points: float) -> str:
    """Write a difference in points, and no negative zero."""
    return f"{round(points, 1) + 0.0:+.1f}"


def format_seconds(seconds: float) -> str:
    """Write a time in the unit that a person would choose."""
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def describe_runner_up(report: Report, bets: list[Bet], reference: str) -> str:
    """Name a row that is cheaper than the best one and expected to be within a point of it."""
    best, rest = bets[0], bets[1:]
    if best.gain < NEAR and reference == NO_ADAPTATION:
        seconds = format_seconds(count_seconds(report, reference))
        return f"The encoder as it is costs {seconds}, and loses less than a point."
    cheaper = [bet for bet in rest if bet.seconds < CHEAPER * best.seconds and bet.gain >= best.gain - NEAR]
    if not cheaper:
        return ""
    second = cheaper[0]
    return (
        f"{report.titles[second.row]} is cheaper and within a point: {format_points(second.gain)}, "
        f"{format_chance(second.chance)}; {format_seconds(second.seconds)}."
    )


def describe_doubt(report: Report, best: Bet) -> str:
    """Say what could change the answer, with the time that this took here."""
    parts, plan = [], report.plan
    runs = [run.seconds for run in report.runs.values() if run.seconds is not None]
    if runs:
        parts.append(f"twice the seeds ({format_seconds(sum(runs))})")
    # Of a row without a training of its own, such as the vote, these are the seconds of the row it starts from.
    untrained = [name for name, recipe in RECIPES.items() if recipe.method is None]
    trained = [
        own.get("pre-training s", 0.0)
        for row, own in report.costs.items()
        if "tokens" in own and plan["methods"][row]["recipe"] not in untrained
    ]
    if trained:
        again = sum(trained) + sum(runs) / len(plan["pretraining_seeds"])
        parts.append(f"another seed of pre-training ({format_seconds(again)})")
        parts.append(f"twice the tokens ({format_seconds(2 * sum(trained) + sum(runs))})")
    error = best.difference.of_examples + best.difference.of_seeds
    if error and best.difference.of_examples > 0.7 * error:
        parts.append("above all more test examples or tasks, which make most of the doubt")
    return f"What could change this: {', '.join(parts)}." if parts else ""


def list_next_commands(report: Report) -> list[str]:
    """Return the commands that use and publish the best model, that of the first task; or keep one where none is."""
    if report.plan["keep_models"] == "none":
        return [
            "No model was kept. To train the best one again, set keep_models: best in the plan, and repeat:",
            f"hf-domain compare {report.plan['path']}",
        ]
    if not report.models:  # results of another machine
        return []
    root, task = report.plan["root"], next(name for name in report.plan["tasks"] if name in report.models)
    # The folder of a comparison stands for its model only if it has one.
    model = root if len(report.models) == 1 else f"{root}/steps/{report.models[task].step.id}"
    return [
        "Predict with the model that is best on validation:",
        f"hf-domain predict {model} new.jsonl",
        "Publish it:",
        f"hf-domain publish --comparison {root} --task {task} --repo_id you/{task}",
    ]


# ------------------------------------------------------------------------------------------------------------ limits


def describe_missing(report: Report) -> str:
    """Say which rows still lack results: the answer may change."""
    rows = ", ".join(report.titles[row] for row in report.missing)
    return f"This comparison is not finished: results are missing for {rows}. The answer may change." if rows else ""


def list_unlearned(report: Report) -> str:
    """Return how many fine-tunings, and of which rows, do not beat the majority baseline; empty if all do."""
    total, scores = len(report.runs), report.scores
    count = sum(not run.did_learn for run in report.runs.values())
    rows = [
        f"{report.titles[row]} on {task} ({len(seeds)} of {len(scores[row][task])} runs)"
        for row, tasks in report.unlearned.items()
        for task, seeds in tasks.items()
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


def describe_floors(report: Report) -> str:
    """Say on which tasks something without an encoder scores more than every row."""
    parts, floors, scores = [], report.floors, report.scores
    for task in report.plan["tasks"]:
        best = max((statistics.mean(row[task].values()) for row in scores.values() if row[task]), default=None)
        known = {name: row[task] for name, row in floors.items() if task in row}
        if known and best is not None and known[name := max(known, key=lambda name: known[name])] > best:
            of_words = ", so this is a task of words" if name == LINEAR else ""
            parts.append(f"on {task} the {name} scores {known[name]:.1f}, and the best row {best:.1f}{of_words}")
    return f"Without an encoder, {'; '.join(parts)}." if parts else ""

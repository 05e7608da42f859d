"""Curves: what each row scores at each number of tokens or of labels, and what adapting is worth in either."""

import statistics
from dataclasses import dataclass

import numpy as np
import pandas as pd

from hf_domain.comparison.statistics import CONFIDENCE, average_tasks
from hf_domain.comparison.summary import Report, say_nothing
from hf_domain.methods import BASELINE, NO_ADAPTATION


def make_curve_table(report: Report) -> pd.DataFrame:
    """Return the mean of each row over the tasks, by the tokens of the budget, with its gain over no adaptation."""
    return pd.DataFrame(
        {
            f"{at.plan['budget']['tokens']:,} tokens": {
                title: format_point(at, method) for method, title in report.titles.items()
            }
            for at in (*report.smaller, report)
        }
    )


def format_point(report: Report, method: str) -> str:
    """Write the mean of a row over its tasks, and its gain with its 95 % interval."""
    if (mean := average_scores(report, method)) is None:
        return say_nothing(report, method)
    gain = report.gains.get(method)
    if gain is None or gain.low is None:
        return f"{mean:.1f}"
    return f"{mean:.1f} ({gain.mean:+.1f} [{gain.low:+.1f} to {gain.high:+.1f}])"


def average_scores(report: Report, method: str) -> float | None:
    """Return the mean of a row over the tasks that it was tested on."""
    means = [statistics.mean(runs.values()) for runs in report.scores[method].values() if runs]
    return statistics.mean(means) if means else None


def say_where_rows_pay(report: Report) -> str:
    """Say from how many tokens on the baseline significantly beats no adaptation, and each row the baseline."""
    if not report.smaller:
        return ""
    titles = report.titles
    pairs = [(BASELINE, NO_ADAPTATION), *((method, BASELINE) for method in titles if method != NO_ADAPTATION)]
    parts = []
    for own, other in pairs:
        if (tokens := find_first_tokens(report, own, other)) is not None:
            parts.append(f"{titles[own]} pays over {titles[other]} from about {tokens:,} tokens on")
    return f"{'; '.join(parts)}." if parts else ""


def find_first_tokens(report: Report, own: str, other: str) -> int | None:
    """Return the least tokens from which on a row significantly beats another one, up to the largest budget."""
    first = None
    for at in (report, *reversed(report.smaller)):
        difference, sign = at.decisions.get((own, other)), 1
        if difference is None:
            difference, sign = at.decisions.get((other, own)), -1
        if difference is None or not difference.is_sure or sign * difference.mean <= 0:
            break
        first = at.plan["budget"]["tokens"]
    return first


# ------------------------------------------------------------------------------------------------------- labels


def list_label_reports(report: Report) -> dict[float, Report]:
    """Return the reports by the share of the training examples; the last is that of all of them."""
    return {**report.fewer_labels, 1.0: report} if report.fewer_labels else {}


def make_label_table(report: Report) -> pd.DataFrame:
    """Return the mean of each row over the tasks, by the share of the training examples."""
    return pd.DataFrame(
        {
            f"{share:.0%} of the examples": {title: format_point(at, method) for method, title in report.titles.items()}
            for share, at in list_label_reports(report).items()
        }
    )


@dataclass(frozen=True)
class Price:
    """What adapting is worth in labeled examples."""

    share: float
    """Share of the training examples at which it is read off."""
    examples: float
    """That fine-tuning alone would need beside those, over all tasks."""
    low: float
    """Lower end of the 95 % interval over the test examples."""
    high: float


def price_in_labels(report: Report, method: str = BASELINE) -> Price | None:
    """Return how many more labeled examples fine-tuning alone needs to score as much as a row.

    That is the horizontal distance of two curves of scores against the logarithm of the number of examples. It is read
    off at the largest share at which fine-tuning alone reaches the score of the row with more examples. A curve that
    falls somewhere is taken to stay where it was.

    Returns:
        None if fine-tuning alone never reaches the row, or something has no result.
    """
    reports = list_label_reports(report)
    if not (tasks := list_priced_tasks(report, method)):
        return None
    shares = np.array([*reports])
    adapted, alone = (
        np.array([average_tasks(at.draws[name], tasks) for at in reports.values()]) for name in (method, NO_ADAPTATION)
    )
    alone = np.maximum.accumulate(alone, axis=0)
    within = [number for number in range(len(shares)) if adapted[number, 0] <= alone[-1, 0]]
    if not within:
        return None
    at, total = within[-1], sum(report.examples[task] for task in tasks)
    needed = [np.interp(one, curve, np.log(shares)) for one, curve in zip(adapted[at], alone.T, strict=True)]
    worth = (np.exp(needed) - shares[at]) * total
    low, high = np.quantile(worth[1:], [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Price(float(shares[at]), float(worth[0]), float(low), float(high))


def list_priced_tasks(report: Report, method: str) -> list[str]:
    """List the tasks on which a row and fine-tuning alone have results at every share of the training examples."""
    rows = [at.draws.get(row, {}) for at in list_label_reports(report).values() for row in (method, NO_ADAPTATION)]
    return [task for task in report.plan["tasks"] if rows and all(row.get(task) for row in rows)]


def say_price(report: Report) -> str:
    """Say what adapting by the baseline is worth in labeled examples; nothing without the results of both rows."""
    if not list_priced_tasks(report, BASELINE):
        return ""
    price, title = price_in_labels(report), report.titles[BASELINE]
    if price is None:
        return f"{report.titles[NO_ADAPTATION]} reaches {title} at none of the shares of labels."
    return (
        f"With {price.share:.0%} of the training examples, {title} is worth about {price.examples:,.0f} more labeled "
        f"examples over all tasks (95 % interval over the test examples {price.low:,.0f} to {price.high:,.0f})."
    )

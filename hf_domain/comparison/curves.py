"""Curves over the budget: what each row scores at each number of tokens, and from which number on it pays."""

import statistics

import pandas as pd

from hf_domain.comparison.summary import Report
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
        return "no result"
    gain = report.gains.get(method)
    if gain is None or gain.low is None:
        return f"{mean:.1f}"
    return f"{mean:.1f} ({gain.mean:+.1f} [{gain.low:+.1f} to {gain.high:+.1f}])"


def average_scores(report: Report, method: str) -> float | None:
    """Return the mean of a row over the tasks that it was tested on."""
    means = [statistics.mean(runs.values()) for runs in report.scores[method].values() if runs]
    return statistics.mean(means) if means else None


def say_where_rows_pay(report: Report) -> str:
    """Say from how many tokens on the baseline is surely better than no adaptation, and each row than the baseline."""
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
    """Return the least tokens from which on a row is surely better than another one, up to the largest budget."""
    first = None
    for at in (report, *reversed(report.smaller)):
        difference, sign = at.decisions.get((own, other)), 1
        if difference is None:
            difference, sign = at.decisions.get((other, own)), -1
        if difference is None or not difference.is_sure or sign * difference.mean <= 0:
            break
        first = at.plan["budget"]["tokens"]
    return first

"""Curves over the budget: what each row scores at each number of tokens, and from which number on it pays."""

import statistics
from typing import Any

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


def draw_curves(report: Report, pyplot: Any) -> Any:
    """Draw the gain of each row over no adaptation, against the tokens and against the seconds of pre-training."""
    methods = [method for method in report.titles if method in report.gains]
    if not report.smaller or not methods:
        return None
    figure, panels = pyplot.subplots(1, 2, figsize=(12, 2.5 + 0.3 * len(methods)), sharey=True)
    for row, method in enumerate(methods):
        points = [
            (at.plan["budget"]["tokens"], at.costs[method].get("pre-training s"), at.gains[method])
            for at in (*report.smaller, report)
            if method in at.gains
        ]
        for axes, column in zip(panels, (0, 1), strict=True):
            known = [(point[column], point[2]) for point in points if point[column]]
            if not known:
                continue
            across, gains = zip(*known, strict=True)
            low, high = ([getattr(g, side) or g.mean for g in gains] for side in ("low", "high"))
            means = [gain.mean for gain in gains]
            axes.fill_between(across, low, high, color=f"C{row % 10}", alpha=0.12, linewidth=0)
            axes.plot(across, means, marker="o", color=f"C{row % 10}")
            axes.annotate(
                report.titles[method], (across[-1], means[-1]), xytext=(6, 0), textcoords="offset points",
                color=f"C{row % 10}", va="center", fontsize=9,
            )  # fmt: skip
    for axes, label in zip(panels, ("tokens of pre-training", "seconds of pre-training"), strict=True):
        axes.axhline(0, color="grey", linewidth=0.8)
        axes.set_xscale("log")
        axes.margins(x=0.15)
        axes.set_xlabel(label)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("points over no adaptation, mean of tasks")
    return figure

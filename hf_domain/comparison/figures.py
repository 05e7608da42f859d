"""The figures of a report: one description of each, for the page (with values under the pointer) and as a PNG.

Every figure gives a row the same color. Names stand at their points: a legend of thirty rows cannot be read.
"""

import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from hf_domain.comparison.curves import average_scores, list_label_reports
from hf_domain.comparison.rows import RECIPES
from hf_domain.comparison.statistics import Difference
from hf_domain.comparison.summary import START_TITLE, Report
from hf_domain.methods import BASELINE, NO_ADAPTATION
from hf_domain.safe_io import write_whole

# Pixels of a PNG for one of the page: text of 12 points is read at half of the size.
SCALE = 2
# Names that fit beside points of one figure; the others are under the pointer.
NAMED = 12
# Panels beside each other.
NUM_PANELS = 3
MEAN = "mean of tasks"
# A color for each recipe, in the order of `RECIPES`: a method looks the same in every report. Dark enough for text.
PALETTE = (
    "#5f6770", "#9c755f", "#c2542d", "#2f5fa8", "#8a6d00", "#3d8b40", "#3b2fbf", "#8e4fa8", "#9aa100", "#0b7a75",
    "#b5179e", "#d1495b", "#4a8fc7", "#7a5195", "#e07b00", "#a65a00", "#1b7f5c", "#0f4d2a", "#c0306f", "#7d2147",
    "#a34d8f", "#264f73", "#3f6f8f", "#5a5a9e", "#6b7f23", "#49652a", "#86731c", "#3b4a1a", "#6e4b2a",
    "#2b2f8f", "#8c1c13",
)  # fmt: skip


def draw(report: Report, output_dir: Path) -> dict[str, dict[str, Any]]:
    """Write a PNG of each figure for which there is something to show.

    Returns:
        The figures as Vega-Lite has them, by name: `<name>.png` is the file.
    """
    import altair
    import vl_convert

    # What altair's own `save` does, but that makes and checks each figure once more.
    version = "_".join(altair.SCHEMA_VERSION.split(".")[:2])
    figures = {name: figure.to_dict() for name, figure in make_figures(report).items()}
    for name, figure in figures.items():
        with write_whole(output_dir / f"{name}.png") as unfinished:
            unfinished.write_bytes(vl_convert.vegalite_to_png(figure, vl_version=version, scale=SCALE))
    return figures


def make_figures(report: Report) -> dict[str, Any]:
    """Return the figures as charts of altair, by name, in the order of a reader."""
    makers = {
        "differences": make_differences,
        "curves": make_curves,
        "labels": make_label_curves,
        "cost": make_costs,
        "forgetting": make_forgetting,
    }
    figures = {name: make(report) for name, make in makers.items()}
    return {
        name: figure.configure(font="sans-serif")
        .configure_view(stroke=None)
        .configure_axis(grid=False, labelFontSize=12, titleFontSize=12)
        .configure_header(labelFontSize=12)
        for name, figure in figures.items()
        if figure is not None
    }


def make_differences(report: Report) -> Any:
    """Differences to the baseline with their intervals: a panel for the mean, and one for each task."""
    import altair

    means = {own: d for (own, other), d in report.decisions.items() if other == BASELINE and d is not None}
    panels = {MEAN: means} if len(report.plan["tasks"]) > 1 else {}
    for task in report.plan["tasks"]:
        panels[task] = {own: row[task] for own, row in report.differences.items() if task in row}
    rows = [
        describe_difference(report, own, difference) | {"panel": panel}
        for panel, differences in panels.items()
        for own, difference in differences.items()
    ]
    if not rows:
        return None
    titles = [title for title in report.titles.values() if title in {row["row"] for row in rows}]
    base = altair.Chart().encode(  # the panels give it its data
        y=altair.Y("row:N", sort=titles, title=None, axis=altair.Axis(labelLimit=300)),
        color=choose_colors(report),
        tooltip=["row:N", "panel:N", altair.Tooltip("difference:Q", format="+.1f"), "interval:N", "p:N"],
    )
    across = altair.X("difference:Q", title="points over DAPT")
    layers = [
        altair.Chart(pd.DataFrame({"zero": [0]})).mark_rule(color="grey").encode(x="zero:Q"),
        base.mark_rule(strokeWidth=2).encode(x=altair.X("low:Q", title="points over DAPT"), x2="high:Q"),
        # A filled point is a difference that decides; a single task never does.
        base.mark_point(size=70, strokeWidth=2, opacity=1).encode(
            x=across,
            fill=choose_colors(report, altair.Fill),
            fillOpacity=altair.condition("datum.sure", altair.value(1), altair.value(0)),
        ),
    ]
    chart = altair.layer(*layers, data=pd.DataFrame(rows)).properties(width=150, height=18 * len(titles) + 10)
    # Rows of panels are not always full: each panel has an axis of its own.
    panel = altair.Facet("panel:N", sort=[*panels], title=None)
    return chart.facet(facet=panel, columns=NUM_PANELS).resolve_axis(x="independent")


def describe_difference(report: Report, own: str, difference: Difference) -> dict[str, Any]:
    """Return a difference as a figure needs it."""
    low, high = (difference.mean if side is None else side for side in (difference.low, difference.high))
    return {
        "row": report.titles[own],
        "difference": difference.mean,
        "low": low,
        "high": high,
        "interval": f"{low:+.1f} to {high:+.1f}" if difference.low is not None else "none: one seed",
        "p": "" if difference.corrected is None else f"{difference.corrected:.3f}",
        "sure": difference.is_sure,
    }


def make_curves(report: Report) -> Any:
    """Gain of each row over no adaptation, against the tokens and against the seconds of pre-training."""
    import altair

    rows = []
    for at in (*report.smaller, report):
        for method, gain in at.gains.items():
            seconds = at.costs[method].get("pre-training s")
            if seconds:
                spent = {"tokens": at.plan["budget"]["tokens"], "seconds": seconds}
                rows.append(describe_difference(at, method, gain) | spent | {"last": at is report})
    if not report.smaller or not rows:
        return None
    spread = max(row["high"] for row in rows) - min(row["low"] for row in rows)
    place_names([row for row in rows if row["last"]], "difference", spread)
    panels = []
    for name in ("tokens", "seconds"):
        place = "place:Q" if name == "tokens" else "difference:Q"  # rows end at different seconds
        largest = max(row[name] for row in rows)
        ends = [min(row[name] for row in rows) / 1.1, 3 * largest]
        budgets = sorted({row["tokens"] for row in rows}) if name == "tokens" else altair.Undefined
        axis = altair.Axis(format=".3~s", values=budgets, tickCount=5, labelOverlap="greedy")
        across = altair.X(
            f"{name}:Q",
            scale=altair.Scale(type="log", nice=False, domain=ends),
            title=f"{name} of pre-training",
            axis=axis,
        )
        base = altair.Chart(pd.DataFrame(rows)).encode(
            x=across,
            color=choose_colors(report),
            tooltip=["row:N", "tokens:Q", "seconds:Q", altair.Tooltip("difference:Q", format="+.1f"), "interval:N"],
        )
        title = f"points over {report.titles[NO_ADAPTATION]}"
        last = base.transform_filter("datum.last")
        zero = pd.DataFrame({name: [ends[0], largest], "zero": [0, 0]})  # not through the names
        layers = (
            altair.Chart(zero).mark_line(color="grey", strokeWidth=1).encode(x=across, y="zero:Q"),
            base.mark_rule(opacity=0.35).encode(y=altair.Y("low:Q", title=title), y2="high:Q"),
            base.mark_line(point=True).encode(y=altair.Y("difference:Q", title=title)),
            *write_names(last, y=altair.Y(place, title=title)),
        )
        panels.append(altair.layer(*layers).properties(width=400, height=320))
    return altair.hconcat(*panels).resolve_scale(y="shared")


def place_names(rows: list[dict[str, Any]], key: str, spread: float) -> None:
    """Set where the name of each row stands (`place`): at its value, but no two on each other.

    Args:
        spread: Spread of the axis.
    """
    above = -float("inf")
    for row in sorted(rows, key=lambda row: row[key]):
        above = row["place"] = max(row[key], above + 0.05 * spread)


def write_names(base: Any, **channels: Any) -> list[Any]:
    """Return the names of rows on the right of their points, on a white ground: lines below must not cross them out."""
    import altair

    style: dict[str, Any] = {"align": "left", "dx": 10, "fontSize": 12}
    ground = base.mark_text(**style, strokeWidth=4, strokeOpacity=0.9)
    ground = ground.encode(text="row:N", stroke=altair.value("white"), **channels)
    return [ground, base.mark_text(**style).encode(text="row:N", **channels)]


def make_label_curves(report: Report) -> Any:
    """Mean score of each row against the share of the training examples that it was trained on."""
    import altair

    rows: list[dict[str, Any]] = [
        {"row": title, "share": share, "score": score, "last": share == 1}
        for share, at in list_label_reports(report).items()
        for method, title in report.titles.items()
        if (score := average_scores(at, method)) is not None
    ]
    if not rows:
        return None
    spread = max(row["score"] for row in rows) - min(row["score"] for row in rows)
    place_names([row for row in rows if row["last"]], "score", spread)
    scale = altair.Scale(type="log", nice=False, domain=[min(row["share"] for row in rows) / 1.1, 3.0])
    base = altair.Chart(pd.DataFrame(rows)).encode(
        x=altair.X(
            "share:Q",
            scale=scale,
            title="share of the training examples",
            axis=altair.Axis(format=".0%", values=sorted({row["share"] for row in rows})),
        ),
        color=choose_colors(report),
        tooltip=["row:N", altair.Tooltip("share:Q", format=".0%"), altair.Tooltip("score:Q", format=".1f")],
    )
    scales = altair.Scale(zero=False)
    layers = (
        base.mark_line(point=True).encode(y=altair.Y("score:Q", title=MEAN, scale=scales)),
        *write_names(base.transform_filter("datum.last"), y=altair.Y("place:Q", title=MEAN, scale=scales)),
    )
    return altair.layer(*layers).properties(width=560, height=320)


def make_costs(report: Report) -> Any:
    """Difference to the baseline against the seconds of pre-training, with the rows that no other one beats in both."""
    import altair

    rows: list[dict[str, Any]] = []
    for method in report.titles:
        tasks = report.differences[method].values()
        if method != BASELINE and not tasks:
            continue
        decision = report.decisions.get((method, BASELINE))
        known = decision or Difference((), statistics.mean(d.mean for d in tasks) if tasks else 0.0)
        rows.append(
            describe_difference(report, method, known)
            | {"seconds": report.costs[method].get("pre-training s", 0.0), "is_best": False}
        )
    if BASELINE not in report.titles or len(rows) < 2:
        return None
    best = -float("inf")
    for row in sorted(rows, key=lambda row: (row["seconds"], -row["difference"])):
        row["is_best"], best = row["difference"] > best, max(best, row["difference"])
    spread = max(row["high"] for row in rows) - min(row["low"] for row in rows)
    place_names(rows if len(rows) <= NAMED else [row for row in rows if row["is_best"]], "difference", spread)
    # Room for a name on the right, and for the points of what costs nothing beside the axis.
    largest = max(row["seconds"] for row in rows) or 1.0
    scale = altair.Scale(domain=[-0.03 * largest, 1.25 * largest], nice=False)
    base = altair.Chart(pd.DataFrame(rows)).encode(
        x=altair.X("seconds:Q", title="seconds of pre-training", scale=scale, axis=altair.Axis(tickCount=6)),
        color=choose_colors(report),
        tooltip=[
            "row:N",
            altair.Tooltip("seconds:Q", format=",.0f"),
            altair.Tooltip("difference:Q", format="+.1f"),
            "interval:N",
            "p:N",
        ],
    )
    gain = altair.Y("difference:Q", title="points over DAPT")
    is_best = base.transform_filter("datum.is_best")
    named = base if len(rows) <= NAMED else is_best
    layers = (
        altair.Chart(pd.DataFrame({"zero": [0]})).mark_rule(color="grey").encode(y="zero:Q"),
        is_best.mark_line(strokeDash=[4, 3]).encode(y=gain, color=altair.value("grey")),
        base.mark_rule(opacity=0.5).encode(y=altair.Y("low:Q", title="points over DAPT"), y2="high:Q"),
        base.mark_point(filled=True, size=80, opacity=1).encode(y=gain),
        *write_names(named, y=altair.Y("place:Q", title="points over DAPT")),
    )
    return altair.layer(*layers).properties(width=560, height=320)


def make_forgetting(report: Report) -> Any:
    """Gain on text of the domain against what is lost on general text, from the encoder as it was."""
    import altair

    general, start = report.plan["general"], report.losses.get(START_TITLE, {})
    if general is None or general not in start:
        return None
    rows = []
    for title, losses in report.losses.items():
        corpora = [corpus for corpus in losses if corpus != general and corpus in start]
        if losses is not start and title not in report.other_tokens and general in losses:
            forgotten = losses[general] - start[general]
            gains = [{"corpus": corpus, "gained": start[corpus] - losses[corpus]} for corpus in corpora]
            rows += [{"row": title, "forgotten": forgotten, **gain} for gain in gains]
    if not rows:
        return None
    base = altair.Chart(pd.DataFrame(rows)).encode(
        x=altair.X(
            "gained:Q", title="masked-LM loss gained on text of the domain", axis=altair.Axis(tickCount=8)
        ),
        y=altair.Y("forgotten:Q", title="lost on general text"),
        color=choose_colors(report, others=report.losses),
        tooltip=[
            "row:N", "corpus:N", altair.Tooltip("gained:Q", format=".3f"), altair.Tooltip("forgotten:Q", format=".3f")
        ],
    )  # fmt: skip
    layers = (
        altair.Chart(pd.DataFrame({"zero": [0]})).mark_rule(color="grey").encode(y="zero:Q"),
        base.mark_point(filled=True, size=80, opacity=1),
        *(write_names(base) if len(rows) <= NAMED else []),
    )
    return altair.layer(*layers).properties(width=560, height=320)


def choose_colors(report: Report, channel: Any = None, others: Iterable[str] = ()) -> Any:
    """Return the colors of the rows.

    Args:
        report: Has the rows.
        channel: Channel of altair; default its `Color`.
        others: Titles that are not those of rows, such as encoders of one of several corpora.
    """
    import altair

    colors = pick_colors(report, others)
    scale = altair.Scale(domain=[*colors], range=[*colors.values()])
    return (channel or altair.Color)("row:N", scale=scale, legend=None)


def pick_colors(report: Report, others: Iterable[str] = ()) -> dict[str, str]:
    """Return the color of each title: that of its recipe; of several rows with one recipe, the others get free ones."""
    colors: dict[str, str] = {}
    recipes = {method: options["recipe"] for method, options in report.plan["methods"].items()}
    for method in sorted(report.titles, key=lambda method: method != recipes[method]):
        own = PALETTE[[*RECIPES].index(recipes[method]) % len(PALETTE)]
        if own not in colors.values():
            colors[report.titles[method]] = own
    for title in (*report.titles.values(), *others):
        free = (color for color in reversed(PALETTE) if color not in colors.values())
        colors.setdefault(title, next(free, PALETTE[len(colors) % len(PALETTE)]))
    return colors

"""The figures of a report, drawn by matplotlib. Names stand at their points, and colors show the cost."""

import io
import re
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_domain.comparison.decision import find_reference, format_points, format_seconds, list_bets
from hf_domain.comparison.rows import RECIPES
from hf_domain.comparison.summary import START_TITLE, Report
from hf_domain.safe_io import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Text and axes of a picture have this color, which a page replaces by that of its own text.
INK = "#010203"
# Points.
TEXT = 11
# A color for each recipe, in the order of `RECIPES`: a row looks the same in every report.
PALETTE = (
    "#5f6770", "#9c755f", "#2f5fa8", "#c2542d", "#8a6d00", "#3d8b40", "#8e4fa8", "#0b7a75", "#b5179e", "#d1495b",
    "#4a8fc7", "#e07b00", "#1b7f5c", "#7d2147",
)  # fmt: skip


def make_axes(height: float = 3.6) -> tuple["Figure", Any]:
    """Return an empty figure of a height in inches, and its axes. It is narrow, so that phones show its text well."""
    from matplotlib.figure import Figure  # unlike pyplot, it leaves the backend of a notebook alone

    figure = Figure(figsize=(5.4, height), layout="constrained")
    figure.patch.set_alpha(0)
    axes = figure.subplots()
    axes.patch.set_alpha(0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)
    axes.tick_params(colors=INK, labelsize=TEXT)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set(color=INK, size=TEXT)
    return figure, axes


def save_figure(figure: "Figure", file: Path) -> str:
    """Write a figure as PNG, and return it as SVG whose ink is the color of the text around it."""
    import matplotlib

    with write_whole(file) as unfinished:
        figure.savefig(unfinished, dpi=200, format="png", facecolor="white")
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "hf-domain"}):  # text stays text
        content = io.StringIO()
        figure.savefig(content, format="svg", metadata={"Date": None})
    svg = content.getvalue()[content.getvalue().index("<svg") :].replace(INK, "currentColor")
    # A page scales it to its own width.
    return re.sub(r'^<svg([^>]*?) width="[^"]*"', r"<svg\1", re.sub(r' height="[^"]*pt"', "", svg, count=1))


def draw_gains(report: Report) -> "Figure | None":
    """Draw each row by its expected gain, with what was measured; the color shows the cost."""
    bets, reference = list_bets(report)[::-1], find_reference(report)
    if not bets or reference is None:
        return None
    from matplotlib import colormaps

    figure, axes = make_axes(height=1.1 + 0.42 * len(bets))
    longest = max(bet.seconds for bet in bets) or 1.0
    axes.axvline(0, color=INK, linewidth=0.8)
    for place, bet in enumerate(bets):
        color = colormaps["viridis"](0.85 * bet.seconds / longest)
        low, high = (bet.difference.mean if end is None else end for end in (bet.difference.low, bet.difference.high))
        axes.plot([low, high], [place, place], color=color, linewidth=2)
        axes.plot(bet.gain, place, "o", color=color, markersize=8)
        mean = report.average(bet.row)
        text = f"{format_points(bet.gain)}  ({mean:.1f}; {format_seconds(bet.seconds)})"
        end = (max(high, bet.gain), place)
        axes.annotate(text, end, (8, 0), textcoords="offset points", va="center", color=INK, size=TEXT)
    axes.set_yticks(range(len(bets)), [textwrap.fill(report.titles[bet.row], 22) for bet in bets])
    axes.set_ylim(-0.6, len(bets) - 0.4)
    left, right = axes.get_xlim()
    axes.set_xlim(left, right + 0.8 * (right - left))  # room for the texts
    axes.set_xlabel(f"points over {report.titles[reference]}\nline: 95 % interval; dot: expected gain (score; cost)")
    return figure


def write_names(axes: Any, ends: Iterable[tuple[tuple[float, float], str]], colors: Mapping[str, str]) -> None:
    """Write names on the right of points, none on another one."""
    bottom, top = axes.get_ylim()
    above = -float("inf")
    for (x, y), name in sorted(ends, key=lambda end: end[0][1]):
        above = max(y, above + 0.055 * (top - bottom))
        color = colors[name]
        axes.annotate(name, (x, above), (7, 0), textcoords="offset points", va="center", color=color, size=TEXT)


def draw_forgetting(report: Report) -> "Figure | None":
    """Draw what each encoder gained on text of the domain against what it lost on general text."""
    general, start = report.plan["general"], report.losses.get(START_TITLE, {})
    if general is None or general not in start:
        return None
    points = []
    for title, losses in report.losses.items():
        corpora = [corpus for corpus in losses if corpus != general and corpus in start]
        if losses is not start and title not in report.other_tokens and general in losses:
            points += [((start[c] - losses[c], losses[general] - start[general]), title) for c in corpora]
    if not points:
        return None
    figure, axes = make_axes()
    colors = pick_colors(report)
    for (x, y), title in points:
        axes.plot(x, y, "o", color=colors[title])
    axes.axhline(0, color=INK, linewidth=0.8)
    left, right = axes.get_xlim()
    axes.set_xlim(left, right + 0.4 * (right - left))
    write_names(axes, points, colors)
    axes.set(xlabel="masked-LM loss gained on text of the domain", ylabel="lost on general text")
    return figure


def pick_colors(report: Report) -> dict[str, str]:
    """Return the color of each title: that of its recipe; of several rows with one recipe, the others get free ones.

    Encoders that are shared by rows have titles of their own.
    """
    colors: dict[str, str] = {}
    recipes = {row: options["recipe"] for row, options in report.plan["methods"].items()}
    for row in sorted(report.titles, key=lambda row: row != recipes[row]):
        own = PALETTE[[*RECIPES].index(recipes[row]) % len(PALETTE)]
        if own not in colors.values():
            colors[report.titles[row]] = own
    for title in (*report.titles.values(), *report.losses):
        free = (color for color in reversed(PALETTE) if color not in colors.values())
        colors.setdefault(title, next(free, PALETTE[len(colors) % len(PALETTE)]))
    return colors

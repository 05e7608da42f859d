"""The figure of a report, drawn by matplotlib: the rows by their gains. Colors show the cost."""

import io
import re
import textwrap
from pathlib import Path

from hf_domain.comparison.decision import find_reference, format_points, format_seconds, list_bets
from hf_domain.comparison.summary import Report
from hf_domain.safe_io import write_whole

# Text and axes of a picture have this color, which a page replaces by that of its own text.
INK = "#010203"
# Points.
TEXT = 11


def draw_gains(report: Report, file: Path) -> str:
    """Draw each row by its expected gain, with what was measured; the color shows the cost.

    Args:
        file: The PNG to write.

    Returns:
        The same as SVG, whose ink is the color of the text around it; "" if there is nothing to show.
    """
    bets, reference = list_bets(report)[::-1], find_reference(report)
    if not bets or reference is None:
        return ""
    import matplotlib
    from matplotlib import colormaps
    from matplotlib.figure import Figure  # unlike pyplot, it leaves the backend of a notebook alone

    # It is narrow, so that phones show its text well.
    figure = Figure(figsize=(5.4, 1.1 + 0.42 * len(bets)), layout="constrained")
    figure.patch.set_alpha(0)
    axes = figure.subplots()
    axes.patch.set_alpha(0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)
    axes.tick_params(colors=INK, labelsize=TEXT)
    axes.axvline(0, color=INK, linewidth=0.8)
    longest = max(bet.seconds for bet in bets) or 1.0
    for place, bet in enumerate(bets):
        color = colormaps["viridis"](0.85 * bet.seconds / longest)
        low, high = (bet.difference.mean if end is None else end for end in (bet.difference.low, bet.difference.high))
        axes.plot([low, high], [place, place], color=color, linewidth=2)
        axes.plot(bet.gain, place, "o", color=color, markersize=8)
        text = f"{format_points(bet.gain)}  ({report.average(bet.row):.1f}; {format_seconds(bet.seconds)})"
        end = (max(high, bet.gain), place)
        axes.annotate(text, end, (8, 0), textcoords="offset points", va="center", color=INK, size=TEXT)
    axes.set_yticks(range(len(bets)), [textwrap.fill(report.titles[bet.row], 22) for bet in bets])
    axes.set_ylim(-0.6, len(bets) - 0.4)
    left, right = axes.get_xlim()
    axes.set_xlim(left, right + 0.8 * (right - left))  # room for the texts
    label = f"points over {report.titles[reference]}\nline: 95 % interval; dot: expected gain (score; cost)"
    axes.set_xlabel(label, color=INK, size=TEXT)

    with write_whole(file) as unfinished:
        figure.savefig(unfinished, dpi=200, format="png", facecolor="white")
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "hf-domain"}):  # text stays text
        content = io.StringIO()
        figure.savefig(content, format="svg", metadata={"Date": None})
    svg = content.getvalue()[content.getvalue().index("<svg") :].replace(INK, "currentColor")
    # A page scales it to its own width.
    return re.sub(r'^<svg([^>]*?) width="[^"]*"', r"<svg\1", re.sub(r' height="[^"]*pt"', "", svg, count=1))

"""The pictures of a report."""

import statistics
from pathlib import Path
from typing import Any

from hf_domain.comparison.curves import draw_curves
from hf_domain.comparison.summary import START, Report
from hf_domain.files import write_whole
from hf_domain.methods import BASELINE


def draw(report: Report, output_dir: Path) -> list[str]:
    """Draw the pictures for which there is something to show; returns their names."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pictures = []
    for name, draw_picture in (
        ("curves.png", draw_curves),
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

"""Do a probe and fine-tuning put rows in the same order?

    python benchmarks/agreement.py probe/ fine_tuned/

It takes the folders of two finished comparisons with the same rows and tasks, such as one plan with `evaluation: probe`
and with `fine_tune`. It prints the gain of each row over no adaptation in both, with its 95 % interval, and Kendall's
tau of the two orders: 1 if they are equal, 0 for orders that have nothing in common. The interval of tau resamples the
test examples of both; it does not cover other rows.
"""

import argparse
import json
import statistics
from pathlib import Path

import numpy as np
from scipy.stats import kendalltau

from hf_domain.comparison.results import read_results
from hf_domain.comparison.statistics import CONFIDENCE, Difference, average_tasks
from hf_domain.comparison.summary import Report, read_report
from hf_domain.safe_io import read_json


def load(folder: Path) -> Report:
    """Read the report of a finished comparison."""
    return read_report(read_json(folder / "plan.json"), read_results(folder))


def list_rows(reports: list[Report]) -> list[str]:
    """List the rows that both comparisons have a gain of.

    Raises:
        ValueError: There are fewer than three, or the tasks differ.
    """
    tasks = [{*report.plan["tasks"]} for report in reports]
    if tasks[0] != tasks[1]:
        others = ", ".join(sorted(tasks[0] ^ tasks[1]))
        raise ValueError(f"both comparisons must have the same tasks, but only one has {others}")
    rows = [row for row in reports[0].gains if row in reports[1].gains]
    if len(rows) < 3:
        raise ValueError(f"an order needs three rows of both comparisons, but they share {', '.join(rows) or 'none'}")
    return rows


def measure_agreement(reports: list[Report], rows: list[str]) -> tuple[float, float, float]:
    """Return Kendall's tau of the means over the tasks, and its interval over resampled test examples."""
    values = [np.array([average_tasks(r.draws[row], [*r.draws[row]]) for row in rows]) for r in reports]
    taus = [float(kendalltau(own, other).statistic) for own, other in zip(values[0].T, values[1].T, strict=True)]
    low, high = np.nanquantile(taus[1:], [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return taus[0], float(low), float(high)


def format_gain(gain: Difference) -> str:
    """Write a gain with its interval."""
    return f"{gain.mean:+.1f}" if gain.low is None else f"{gain.mean:+.1f} [{gain.low:+.1f} to {gain.high:+.1f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs=2, help="of two finished comparisons")
    parser.add_argument("--output", help="file for the figures, as JSON")
    args = parser.parse_args()
    reports = [load(folder) for folder in args.folders]
    rows = list_rows(reports)
    print(f"| row | {' | '.join(folder.name for folder in args.folders)} |\n| --- | --- | --- |")
    for row in rows:
        print(f"| {reports[0].titles[row]} | {' | '.join(format_gain(report.gains[row]) for report in reports)} |")
    widths = []
    for report in reports:
        known = [gain.high - gain.low for row in rows if (gain := report.gains[row]).low is not None]
        widths.append(statistics.median(known) if known else None)
    tau, low, high = measure_agreement(reports, rows)
    told = ", ".join("no interval" if width is None else f"{width:.1f} points" for width in widths)
    print(f"Kendall's tau {tau:.2f} (95 % interval {low:.2f} to {high:.2f}); median width of the intervals: {told}")
    if args.output:
        figures = {"tau": tau, "low": low, "high": high, "widths": widths, "rows": rows}
        Path(args.output).write_text(json.dumps(figures, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()

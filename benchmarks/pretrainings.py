"""Compare rows over several comparisons that differ in the seed of pre-training, as one comparison with all of them.

    python benchmarks/pretrainings.py results/plan results/levers results/pretrainings --output pretrainings.json

Each comparison counts as one pre-training. Rows and tasks that one of them lacks are left out, and so are budgets below
the largest. Differences are those of a report: over DAPT, for the mean of the tasks, corrected for all rows shown.
"""

import argparse
import json
import lzma
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hf_domain.comparison.scores import Predictions
from hf_domain.comparison.statistics import compare_draws, correct, draw_scores
from hf_domain.methods import BASELINE, NO_ADAPTATION
from hf_domain.safe_io import read_json, write_json


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Return the results of a comparison: the lines of one file, or the files of a folder."""
    if (file := folder / "results.jsonl.xz").is_file():
        with lzma.open(file, "rt", encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]
    return [read_json(file) for file in sorted((folder / "results").glob("*.json"))]


def read_scores(folders: list[Path]) -> dict[str, dict[str, dict[tuple[int, int | None], Any]]]:
    """Return the scores by task, row, and number of the comparison, at the largest budget of each comparison."""
    scores: dict[str, dict[str, dict]] = defaultdict(lambda: defaultdict(dict))
    for number, folder in enumerate(folders):
        results = [result for result in read_results(folder) if result.get("predictions")]
        largest = max(result["step"].get("rung") or 0 for result in results)
        for result in results:
            step = result["step"]
            if step["kind"] == "fine_tuning" and step.get("rung") in (None, largest):
                # The encoder without adaptation has no budget and no seed of pre-training: one run serves all.
                is_plain = bool(largest) and step.get("rung") is None
                for place in range(len(folders)) if is_plain else [number]:
                    predictions = Predictions.from_json(result["predictions"])
                    scores[step["task"]][step["method"]][place, step.get("seed")] = predictions.score()
    return scores


def main() -> None:
    """Print the differences to DAPT."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="Output folders of comparisons.")
    parser.add_argument("--output", required=True, help="JSON file.")
    args = parser.parse_args()
    scores = read_scores(args.folders)
    everywhere = set(range(len(args.folders)))
    tasks = [task for task, rows in scores.items() if {number for number, _ in rows[BASELINE]} == everywhere]
    names = [row for row in scores[tasks[0]] if all({n for n, _ in scores[task][row]} == everywhere for task in tasks)]
    rows: dict[str, dict] = defaultdict(dict)
    for number, task in enumerate(tasks):
        for row, drawn in draw_scores({row: scores[task][row] for row in names}, seed=number).items():
            rows[row][task] = drawn
    trained = [drawn for row, drawn in rows.items() if row != NO_ADAPTATION]
    differences = correct(
        {
            (row, BASELINE): compare_draws(drawn, rows[BASELINE], trained)
            for row, drawn in rows.items()
            if row != BASELINE
        }
    )
    figures = {row: asdict(found) for (row, _), found in differences.items() if found is not None}
    for row, figure in figures.items():
        for task in tasks:
            pool = [{task: drawn[task]} for drawn in trained]
            single = compare_draws({task: rows[row][task]}, {task: rows[BASELINE][task]}, pool)
            assert single is not None  # every row has every task
            figure.setdefault("by_task", {})[task] = asdict(single)
    write_json(Path(args.output), {"folders": [folder.name for folder in args.folders], "over_dapt": figures})
    print(f"{len(args.folders)} pre-trainings, {', '.join(tasks)}")
    for row, figure in figures.items():
        for name, found in {"mean": figure, **figure["by_task"]}.items():
            interval = (
                "" if found["low"] is None else f" [{found['low']:+.1f} to {found['high']:+.1f}], p {found['p']:.4f}"
            )
            print(f"{row}, {name}: {found['mean']:+.2f}{interval}")


if __name__ == "__main__":
    main()

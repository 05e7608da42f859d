"""Measure how often a comparison reports a difference that does not exist, and how large a detectable difference is.

    python benchmarks/p_values.py --output p_values.json

The script simulates comparisons of rows on several tasks, with random effects: the examples on which a row is better in
all its runs, the examples that a single run gets right, and the effect of a seed of fine-tuning or pre-training on a
whole run. The sizes of the effects come from the published comparison, see `hf_domain/comparison/statistics.py`. Seeds
of pre-training have the same effect as seeds of fine-tuning.

- **wrong**: the share of comparisons of equal rows with p < 0.05. It should be 5 %.
- **any wrong**: the share of plans of eight equal rows with at least one p < 0.05, before and after Holm's correction.
- **covered**: how often the 95 % interval contains the true difference.
- **seen**: how often a row is detected after the correction, if it is better by the difference that the dry run calls
  visible. It should be 90 %.
"""

import argparse
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np

from hf_domain.comparison import statistics
from hf_domain.comparison.statistics import compare_rows, draw_scores, find_visible_difference
from hf_domain.safe_io import write_json
from hf_domain.tasks.scores import ExampleCounts

DESIGNS = ((1, 2), (1, 3), (1, 5), (1, 10), (2, 3), (3, 3), (5, 2))  # seeds of pre-training and of fine-tuning
ROWS = 8


def draw_plan(
    generator: np.random.Generator, sizes: list[int], runs: list[tuple[int, int]], gains: Sequence[float]
) -> list[dict]:
    """Simulate the runs of a plan, and return the draws of each row's scores by task.

    Args:
        sizes: Sizes of the test sets.
        runs: Seeds of pre-training, from 0 on, and of fine-tuning of each run.
        gains: Points by which each row is better.
    """
    pretrainings = max(runs)[0] + 1
    moved = statistics.SEED_DEVIATION * (pretrainings > 1) * generator.normal(size=(len(gains), pretrainings))
    drawn: list[dict] = [{} for _ in gains]
    for task, size in enumerate(sizes):
        scores = {}
        for row, gain in enumerate(gains):
            suits = np.sqrt(statistics.SHARED_BY_SEEDS / 2) * generator.normal(size=size)
            scores[row] = {}
            for pretraining, seed in runs:
                points = suits + np.sqrt(statistics.OF_ONE_RUN) * generator.normal(size=size)
                points += moved[row, pretraining] + gain + statistics.SEED_DEVIATION * generator.normal()
                column = points[:, None] / 100
                scores[row][pretraining, seed] = ExampleCounts(column, column, column, "mean")
        for row, tested in draw_scores(scores, seed=task).items():
            drawn[row][str(task)] = tested
    return drawn


def compare_first(
    generator: np.random.Generator, sizes: list[int], runs: list[tuple[int, int]], better: float
) -> list[statistics.Difference]:
    """Simulate a plan whose first row is better by this many points, and compare it with the others."""
    drawn = draw_plan(generator, sizes, runs, [better, *[0.0] * (ROWS - 1)])
    rows = {str(row): draws for row, draws in enumerate(drawn)}
    return list(compare_rows(rows, [("0", name) for name in rows if name != "0"]).values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=300, help="number of simulated plans for each line")
    parser.add_argument("--sizes", type=int, nargs="+", default=[300, 1000, 1000], help="sizes of the test sets")
    parser.add_argument("--output", type=Path, required=True, help="JSON file")
    args = parser.parse_args()
    statistics.RESAMPLES = 200  # instead of 2,000: the variance is still exact enough
    names = ["wrong", "covered", "any wrong, before", "any wrong", "visible", "seen"]
    print(f"| pre-trainings x seeds | {' | '.join(names)} |\n{'| --- ' * (len(names) + 1)}|", flush=True)
    figures = {}
    for pretraining_seeds, seeds in DESIGNS:
        generator = np.random.default_rng(0)
        runs = [*product(range(pretraining_seeds), range(seeds))]
        visible = find_visible_difference(args.sizes, seeds, pretraining_seeds, ROWS - 1, ROWS)
        equal = [compare_first(generator, args.sizes, runs, 0.0) for _ in range(args.trials)]
        better = [compare_first(generator, args.sizes, runs, visible) for _ in range(args.trials)]
        ps, corrected = (np.array([[getattr(d, name) for d in plan] for plan in equal]) for name in ("p", "corrected"))
        covered = [d.low < 0 < d.high for plan in equal for d in plan]
        # One comparison of each plan, corrected as the first of seven: the others depend on the same runs.
        seen = [plan[0].p < 0.05 / len(plan) for plan in better]
        shares = [(ps < 0.05).mean(), np.mean(covered), (ps < 0.05).any(1).mean(), (corrected < 0.05).any(1).mean()]
        cells = [f"{100 * share:.1f} %" for share in shares]
        cells += [f"{visible:.1f} points", f"{100 * np.mean(seen):.0f} %"]
        name = f"{pretraining_seeds} x {seeds}"
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
        figures[name] = dict(zip(names, [*map(float, shares), visible, float(np.mean(seen))], strict=True))
    write_json(args.output, figures)


if __name__ == "__main__":
    main()

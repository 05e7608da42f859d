"""Measure what following the answer of a comparison costs, and whether its chances come true.

    python benchmarks/decisions.py --output results/decisions.json

The script simulates plans with known true gains. A plan has one to five tasks of 140 to 2,000 test examples, two to
five seeds, one to three pre-trainings, and DAPT and two to six other rows beside no adaptation. Its gains are of one of
three sizes: in most plans a point or two, in some several, and in a tenth one row is far ahead, because the others were
not trained enough. Noise is that of `benchmarks/p_values.py`.

- **regret**: points between the best row and the one that a rule chooses, on average. The rules: the expected gain;
  significance after Holm's correction, and else the cheapest row, as earlier versions did; always DAPT; always nothing.
- **calibration**: stated chances of a gain in five groups, and how often there is one.
"""

import argparse
import json
from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any

import numpy as np
from p_values import draw_plan

from hf_domain.comparison import statistics
from hf_domain.comparison.decision import list_bets
from hf_domain.comparison.results import Result
from hf_domain.comparison.statistics import compare_draws, compare_rows

# Standard deviations of true gains, how often a plan has them, and points of the row that is far ahead.
SIZES, SHARES, FAR = (1.0, 2.0, 5.0), (0.45, 0.35, 0.2), (10.0, 30.0)
GROUPS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def simulate(generator: np.random.Generator) -> tuple[np.ndarray, Any]:
    """Return the true gains of a plan's rows over the first, which is no adaptation, and its report."""
    sizes = [int(size) for size in np.exp(generator.uniform(np.log(140), np.log(2000), generator.integers(1, 6)))]
    seeds, pretrainings = int(generator.integers(2, 6)), int(generator.choice([1, 1, 1, 2, 3]))
    count = int(generator.integers(4, 9))
    gains = generator.normal(size=count) * generator.choice(SIZES, p=SHARES)
    if generator.random() < 0.1:
        gains[generator.integers(1, count)] += generator.uniform(*FAR)
    gains[0] = 0.0
    names = ["no_adaptation", "dapt", *(f"row{number}" for number in range(2, count))]
    runs = [*product(range(pretrainings), range(seeds))]
    draws = dict(zip(names, draw_plan(generator, sizes, runs, gains), strict=True))
    if pretrainings == 1:  # another pre-training would move the row, which nothing here shows
        moved = statistics.SEED_DEVIATION / 3 * generator.normal(size=count)
        gains = gains - np.where(np.arange(count) > 0, moved, 0.0)
    pairs = [(name, "dapt") for name in names if name != "dapt"]
    recipe = {name: "no_adaptation" if name == "no_adaptation" else "dapt" for name in names}
    methods = {name: {"recipe": recipe[name], "after": None} for name in names}
    report = SimpleNamespace(
        plan={"pretraining_seeds": [*range(pretrainings)], "methods": methods},
        runs={(name, "a", "1"): Result(None, "done") for name in names},  # type: ignore[arg-type]
        unlearned={name: {} for name in names},
        gains={name: compare_draws(draws[name], draws["no_adaptation"], draws.values()) for name in names[1:]},
        decisions=compare_rows(draws, pairs),
        costs={name: {} for name in names},
    )
    return gains, report


def choose_by_significance(report: Any) -> str:
    """Return the row that earlier versions named: the best that is significantly better, or the cheapest."""
    known = {own: difference for (own, _), difference in report.decisions.items()}
    better = {own: d.mean for own, d in known.items() if d.is_sure and d.mean > 0}
    if better:
        return max(better, key=lambda own: better[own])
    return "dapt" if known["no_adaptation"].is_sure else "no_adaptation"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000, help="number of simulated plans")
    parser.add_argument("--seed", type=int, default=0, help="seed of the simulation")
    parser.add_argument("--output", help="file for the figures, as JSON")
    args = parser.parse_args()
    statistics.RESAMPLES = 200  # instead of 2,000: the variance is still exact enough
    generator = np.random.default_rng(args.seed)
    regrets: dict[str, list[float]] = {name: [] for name in ("expected gain", "significance", "dapt", "nothing")}
    stated, is_gain = [], []
    for _ in range(args.trials):
        gains, report = simulate(generator)
        by_name = dict(zip(report.plan["methods"], gains, strict=True))
        bets = list_bets(report)
        chosen = {
            "expected gain": bets[0].row if bets[0].gain > 0 else "no_adaptation",
            "significance": choose_by_significance(report),
            "dapt": "dapt",
            "nothing": "no_adaptation",
        }
        for rule, row in chosen.items():
            regrets[rule].append(max(gains) - by_name[row])
        stated += [bet.chance for bet in bets]
        is_gain += [by_name[bet.row] > 0 for bet in bets]
    figures: dict[str, Any] = {"regret": {rule: float(np.mean(points)) for rule, points in regrets.items()}}
    print("| rule | regret in points |\n| --- | --- |")
    for rule, points in figures["regret"].items():
        print(f"| {rule} | {points:.2f} |")
    print("\n| stated chance of a gain | true | bets |\n| --- | --- | --- |")
    chances, truths = np.array(stated), np.array(is_gain)
    figures["calibration"] = []
    for low, high in pairwise(GROUPS):
        inside = (chances >= low) & (chances < high + (high == 1))
        row = [float(chances[inside].mean()), float(truths[inside].mean()), int(inside.sum())] if inside.any() else None
        if row is not None:
            figures["calibration"].append(row)
            print(f"| {100 * row[0]:.1f} % | {100 * row[1]:.1f} % | {row[2]} |")
    if args.output:
        with open(args.output, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=2)


if __name__ == "__main__":
    main()

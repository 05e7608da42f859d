"""How often does the report of a comparison call two alike methods different?

    python benchmarks/p_values.py

Both methods have the same expected score. What differs is chance: on which examples one of them is better (the same in
all its runs), and what a seed moves, a run as a whole. The rows say how large the second is beside the first, in
standard errors of the mean.
"""

import argparse

import numpy as np

from hf_domain.comparison import scores
from hf_domain.comparison.scores import ExampleScores, compare

EXAMPLES = 300


def make_runs(generator: np.random.Generator, count: int, of_seeds: float) -> list[ExampleScores]:
    """Make the runs of a method: what suits it of the examples, and a shift for each seed."""
    suits = 0.5 + generator.normal(size=(EXAMPLES, 1))
    shifts = of_seeds / np.sqrt(EXAMPLES) * generator.normal(size=count)
    return [ExampleScores(suits + shift, np.zeros_like(suits), np.zeros_like(suits), "mean") for shift in shifts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000, help="simulated comparisons of each cell")
    args = parser.parse_args()
    scores.RESAMPLES = 200  # of 2,000: the variance is as exact as it has to be
    print("| a seed's shift / error by the examples | 2 seeds | 3 seeds | 5 seeds |\n| --- | --- | --- | --- |")
    for of_seeds in (0.3, 1.0, 3.0):
        shares = []
        for count in (2, 3, 5):
            generator = np.random.default_rng(0)
            trials = (
                compare(*(make_runs(generator, count, of_seeds) for _ in range(2)), seed) for seed in range(args.trials)
            )
            shares.append(np.mean([difference.p < 0.05 for difference in trials]))
        print(f"| {of_seeds} | " + " | ".join(f"{100 * share:.1f} %" for share in shares) + " |", flush=True)


if __name__ == "__main__":
    main()

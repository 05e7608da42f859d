"""Compare rows: intervals, p values, and the differences that a plan can detect.

The mean over the tasks that both rows share decides. Its error has two parts:

- Test examples. They are resampled task by task, the same ones for every run: a paired bootstrap.
- Seeds. A row with several pre-trainings has one value for each, its mean over tasks and fine-tunings. Otherwise each
  fine-tuning of a task is a value. These values are too few to resample: a bootstrap of three underestimates their
  variance by a third. Their variance is estimated without bias instead, as by a bootstrap that draws one value fewer
  (Rao and Wu 1988). The variance of pre-trainings, of which there may be two, is estimated over all rows together.

The test is a t test with the degrees of freedom of Welch and Satterthwaite. The examples that a single run gets right
by chance affect both parts, but are counted once. Seeds are paired only where two rows have the same fine-tuned
models, as with a vote and without: in 121 rows of seven tasks with models of their own, the same seed explained a tenth
of the variance of scores, which is worth less than the degrees of freedom. `scipy.stats.bootstrap` does not fit: it
resamples one sample, or several paired or independent ones. Here, tasks share rows but not examples, and each seed has
scores of all examples. `benchmarks/p_values.py` measures the error rates.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hf_domain.comparison.plan import Plan
from hf_domain.tasks.files import count_examples
from hf_domain.tasks.scores import ExampleScores

RESAMPLES = 2000
CONFIDENCE, ALPHA = 0.95, 0.05
# The probability of detecting a difference of the size that the report calls visible.
POWER = 0.9
# Random variation between two rows, as variances in squared points: means over the seven tasks of the published
# comparison. Those of test examples are multiplied by their number: the part that a row's seeds share, and the part of
# one run.
SHARED_BY_SEEDS, OF_ONE_RUN = 134.0, 729.0
# In addition, a seed moves a score by this many points.
SEED_DEVIATION = 1.35

RunSeeds = tuple[int | None, int | None]
"""The seeds of pre-training, None without one, and of fine-tuning."""
Draws = Mapping[str, Mapping[RunSeeds, np.ndarray]]
"""Task -> run -> its score on the test set, followed by those on the resampled test sets."""


@dataclass(frozen=True)
class Difference:
    """The difference of two rows in points, a mean over tasks.

    Args:
        tasks: The tasks that both rows were tested on.
        mean: The mean over them.
        low: Lower end of the 95 % interval; None if a row has a single run of a task, which shows no variance of seeds.
        high: Upper end.
        p: Probability of a difference as far from 0 if the rows are equal, two-sided; None as for `low`.
        new_task: The 95 % interval that also resamples the tasks: what to expect on another task like these.
        of_examples: The variance that more seeds would not reduce.
        of_seeds: The variance that more seeds would divide.
        freedom: Degrees of freedom of the t test.
        corrected: p after Holm's correction for all comparisons of the plan.
    """

    tasks: tuple[str, ...]
    mean: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    new_task: tuple[float, float] | None = None
    of_examples: float = 0.0
    of_seeds: float = 0.0
    freedom: float = math.inf
    corrected: float | None = None

    @property
    def is_sure(self) -> bool:
        """Whether the rows differ, after the correction."""
        return self.corrected is not None and self.corrected < ALPHA


def draw_scores(
    scores: Mapping[str, Mapping[RunSeeds, ExampleScores]], seed: int = 0
) -> dict[str, dict[RunSeeds, np.ndarray]]:
    """Return for each run its score, then those on `RESAMPLES` resampled test sets, which all runs share.

    Args:
        scores: Row -> run -> its scores on one task.
        seed: Seed of the resampling.
    """
    count = len(next(one for runs in scores.values() for one in runs.values()))
    generator, chunks = np.random.default_rng(seed), []
    for start in range(0, RESAMPLES, 100):  # the counts of all resamples at once may not fit into memory
        weights = generator.multinomial(count, np.full(count, 1 / count), size=min(100, RESAMPLES - start))
        chunks.append({(row, run): one.compute(weights) for row, runs in scores.items() for run, one in runs.items()})
    return {
        row: {
            run: np.concatenate([[one.compute()], *(chunk[row, run] for chunk in chunks)]) for run, one in runs.items()
        }
        for row, runs in scores.items()
    }


def compare_rows(
    rows: Mapping[str, Draws],
    pairs: Iterable[tuple[str, str]],
    stable: Collection[str] | None = None,
    same: Collection[Set[str]] = (),
) -> dict[tuple[str, str], Difference | None]:
    """Compare pairs of rows, and correct the p values by Holm's method for all of the pairs.

    Args:
        rows: The rows by name.
        pairs: Each row with the one it is compared with, including rows without results; see `correct`.
        stable: The rows whose pre-training seeds estimate their variance; default all.
        same: The pairs of rows that have the same fine-tuned models.
    """
    pool = [draws for name, draws in rows.items() if stable is None or name in stable]
    return correct(
        {
            (own, other): compare_draws(rows.get(own, {}), rows.get(other, {}), pool, {own, other} in same)
            for own, other in pairs
        }
    )


def compare_draws(
    own: Draws, other: Draws, pool: Iterable[Draws] = (), has_same_models: bool = False
) -> Difference | None:
    """Compare two rows on the tasks that they share.

    Args:
        own: The row in question.
        other: The row it is compared with.
        pool: The rows whose pre-training seeds estimate their variance, because two or three of one row show little.
            Default: these two rows.
        has_same_models: Whether a run of one row has the model of the other's run with the same seeds. Then only the
            runs of both count, and their seeds are paired.

    Returns:
        The difference `own - other`; None if they share no task.
    """
    from scipy.stats import t

    if has_same_models:
        own, other = _keep_shared(own, other), _keep_shared(other, own)
    tasks = tuple(task for task in own if own[task] and other.get(task))
    if not tasks:
        return None
    by_task = np.array([_average(own[task]) - _average(other[task]) for task in tasks])
    mean, examples = float(by_task[:, 0].mean()), float(by_task[:, 1:].mean(0).var())
    pair: list[Draws]
    if has_same_models:
        pair, pool = [{task: {run: own[task][run] - other[task][run] for run in own[task]} for task in tasks}], ()
    else:
        pair = [{task: row[task] for task in tasks} for row in (own, other)]
    seeds = _estimate_seeds(pair, pool)
    if seeds is None:
        return Difference(tasks, mean, of_examples=examples)
    # Runs alone scatter by `between`, which includes what a run owes to chance on these examples. Less than that cannot
    # be the error: with the noise of rare labels subtracted, intervals of 1,000 points came from a tenth of a degree of
    # freedom.
    variance = max(examples + sum(part.beside_examples for part in seeds), sum(part.between for part in seeds))
    of_seeds = sum(part.beside_examples + part.in_both for part in seeds)
    known: dict[str, Any] = {"of_examples": max(0.0, variance - of_seeds), "of_seeds": of_seeds}
    if variance == 0:  # equal predictions, or a difference without any variation
        return Difference(tasks, mean, mean, mean, 1.0 if mean == 0 else 0.0, **known)
    # Of Welch and Satterthwaite; the degrees of freedom of the examples count as infinite.
    uncertainty = sum(part.between**2 / part.freedom for part in seeds)
    freedom = variance**2 / uncertainty if uncertainty else math.inf
    half = float(t.ppf((1 + CONFIDENCE) / 2, freedom)) * math.sqrt(variance)
    p = float(2 * t.sf(abs(mean) / math.sqrt(variance), freedom))
    new_task = _draw_tasks(by_task[:, 0], half)
    return Difference(tasks, mean, mean - half, mean + half, p, new_task, freedom=freedom, **known)


def _keep_shared(row: Draws, other: Draws) -> Draws:
    """Return the runs of a row that another row also has."""
    return {task: {run: d for run, d in runs.items() if run in other.get(task, {})} for task, runs in row.items()}


@dataclass(frozen=True)
class _OfSeeds:
    """The contribution of seeds to the variance of a difference."""

    between: float
    """The variance between runs on the original test set."""
    in_both: float
    """The part of it that resampling the examples already covers."""
    freedom: int

    @property
    def beside_examples(self) -> float:
        """The part that resampling the examples does not cover."""
        return max(0.0, self.between - self.in_both)


def _average(runs: Mapping[RunSeeds, np.ndarray]) -> np.ndarray:
    """Return the mean over the seeds; each pre-training counts the same, whatever its number of fine-tunings."""
    means = [np.mean([draws for (p, _), draws in runs.items() if p == each], axis=0) for each in {p for p, _ in runs}]
    return np.mean(means, axis=0)


def _list_pretrainings(row: Draws) -> np.ndarray | None:
    """Return the value `[pre-trainings, 1 + resamples]` of each pre-training; None if there is only one."""
    pretrainings = set.intersection(*({p for p, _ in runs} for runs in row.values()))
    if len(pretrainings) < 2:
        return None
    return np.array(
        [
            np.mean([_average({run: d for run, d in runs.items() if run[0] == p}) for runs in row.values()], axis=0)
            for p in sorted(pretrainings, key=str)
        ]
    )


def _estimate_seeds(rows: Sequence[Draws], pool: Iterable[Draws] = ()) -> list[_OfSeeds] | None:
    """Return the contributions of the seeds of two rows, or of their differences; None if one has a single run."""
    parts, pretrained = [], []
    for row in rows:
        if (values := _list_pretrainings(row)) is not None:
            pretrained.append(values)
        elif any(len(runs) < 2 for runs in row.values()):
            return None
        else:
            parts += [_estimate(np.array([*runs.values()]), len(row)) for runs in row.values()]
    if pretrained:
        tasks = rows[0].keys()
        others = [{task: row[task] for task in tasks} for row in pool if all(row.get(task) for task in tasks)]
        pooled = [values for row in others if (values := _list_pretrainings(row)) is not None] or pretrained
        freedom = sum(len(values) - 1 for values in pooled)
        of_one = sum(float(values[:, 0].var(ddof=1)) * (len(values) - 1) for values in pooled) / freedom
        in_both = sum(_estimate(values, 1).in_both for values in pretrained)
        parts.append(_OfSeeds(sum(of_one / len(values) for values in pretrained), in_both, freedom))
    return parts


def _estimate(values: np.ndarray, num_tasks: int) -> _OfSeeds:
    """Estimate the contribution of the seeds of one task from the values `[seeds, 1 + resamples]`."""
    count = len(values)
    between = float(values[:, 0].var(ddof=1)) / count
    # A variance v of the examples leaves v / count in the mean over the runs if it is of one run alone, and v if all
    # runs share it.
    of_one, of_mean = float(values[:, 1:].var(1).mean()), float(values[:, 1:].mean(0).var())
    return _OfSeeds(between / num_tasks**2, max(0.0, of_one - of_mean) / (count - 1) / num_tasks**2, count - 1)


def _draw_tasks(by_task: np.ndarray, half: float) -> tuple[float, float] | None:
    """Return the interval of the mean with resampled tasks, never narrower than with these tasks."""
    from scipy.stats import t

    if len(by_task) < 2:
        return None
    error = float(by_task.std(ddof=1)) / math.sqrt(len(by_task))
    half = max(half, float(t.ppf((1 + CONFIDENCE) / 2, len(by_task) - 1)) * error)
    return float(by_task.mean()) - half, float(by_task.mean()) + half


def correct(differences: Mapping[tuple[str, str], Difference | None]) -> dict[tuple[str, str], Difference | None]:
    """Correct the p values of all comparisons of a plan by Holm's method.

    Args:
        differences: By the two rows. A difference without p, because it has no results yet or failed, counts too:
            leaving out what did not work would find more differences by chance.
    """
    known = {pair: found for pair, found in differences.items() if found is not None}
    ranked = sorted((found.p, pair) for pair, found in known.items() if found.p is not None)
    corrected, result = 0.0, dict(differences)
    for rank, (p, pair) in enumerate(ranked):
        corrected = min(1.0, max(corrected, (len(differences) - rank) * p))
        result[pair] = replace(known[pair], corrected=corrected)
    return result


def find_visible_difference(
    sizes: Sequence[int],
    seeds: int,
    pretraining_seeds: int = 1,
    comparisons: int = 1,
    rows: int = 2,
    trials: int = 4000,
) -> float | None:
    """Return the difference of two rows, in points, that a plan detects in 9 of 10 simulated cases.

    None if a single seed allows no test.

    Args:
        sizes: Sizes of the test sets.
        seeds: Number of fine-tuning seeds.
        pretraining_seeds: Number of pre-training seeds. If there are several, each is assumed to move the mean over
            the tasks as much as a seed of fine-tuning moves a task.
        comparisons: Number of comparisons for which the p values are corrected.
        rows: Number of rows with several pre-trainings; see `compare_draws`.
        trials: Number of simulated comparisons.
    """
    from scipy.stats import t

    if seeds == 1 and pretraining_seeds == 1:
        return None
    generator = np.random.default_rng(0)
    examples = np.array(sizes, dtype=float)
    num_tasks, runs = len(sizes), seeds * pretraining_seeds
    own_examples, deviations = OF_ONE_RUN / examples / runs, SEED_DEVIATION**2 / runs
    expected = np.tile(own_examples + deviations, 2), np.tile(own_examples, 2)  # of the seeds of both rows, by task
    fixed = float((SHARED_BY_SEEDS / examples + 2 * own_examples).sum()) / num_tasks**2
    of_pretraining = SEED_DEVIATION**2 / pretraining_seeds if pretraining_seeds > 1 else 0.0
    noise = generator.normal(size=trials) * math.sqrt(fixed + 2 * deviations / num_tasks + 2 * of_pretraining)
    if pretraining_seeds > 1:
        between, in_both = (np.array([value.sum()]) / num_tasks**2 for value in expected)
        between += 2 * of_pretraining
        freedom = rows * (pretraining_seeds - 1)
    else:
        (between, in_both), freedom = (value / num_tasks**2 for value in expected), seeds - 1
    estimated = between * generator.chisquare(freedom, size=(trials, len(between))) / freedom
    variance = fixed + np.maximum(0, estimated - in_both).sum(1)
    with np.errstate(divide="ignore"):
        freedoms = variance**2 / (estimated**2 / freedom).sum(1)
    needed = t.ppf(1 - ALPHA / 2 / comparisons, freedoms) * np.sqrt(variance) - noise
    return float(np.quantile(needed, POWER))


def predict_power(plan: Plan) -> str:
    """Return which difference a plan can detect, simulated before the first run."""
    sizes = [count_examples(task, plan.fine_tuning, plan.folder) for task in plan.tasks.values()]
    pretrained, comparisons = len(plan.pretraining_seeds), len(plan.list_pairs())
    if not comparisons:
        return ""
    points = find_visible_difference(sizes, len(plan.seeds), pretrained, comparisons, rows=max(2, len(plan.methods)))
    if points is None:
        return "This plan can test no difference, because it has one seed. Use at least three."
    return (
        f"This plan can see differences of about {points:.1f} points between two rows (in 9 of 10 simulated "
        f"comparisons, p < 0.05 corrected for {comparisons}). More seeds, tasks and test examples see smaller ones."
    )


def compute_interval(scores: Sequence[float], confidence: float = 0.95) -> float:
    """Return the half width of the t interval of the mean of several seeds; nan for a single one."""
    from scipy.stats import sem, t

    if len(scores) < 2:
        return float("nan")
    return float(sem(scores) * t.ppf((1 + confidence) / 2, len(scores) - 1))

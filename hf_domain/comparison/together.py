"""Compare several fine-tunings of a row together with a single one of DAPT: does an ensemble pay more than an encoder?

A text or a word gets the label that most members of an ensemble predict, and of several labels those that more than
half of them predict. A row's score is the mean over all ensembles of its seeds. So that `compare_draws` can test it,
each seed gets a value of its own, the pseudo-value of the jackknife (Tukey 1958): n times the mean over all ensembles,
less n - 1 times the mean over those without the seed. The mean of these values is the mean over all ensembles, and
their scatter shows its error.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from hf_domain.comparison.results import Result
from hf_domain.comparison.statistics import (
    Difference,
    Draws,
    RunSeeds,
    average_tasks,
    compare_draws,
    correct,
    draw_scores,
)
from hf_domain.methods import BASELINE
from hf_domain.tasks.files import METRICS
from hf_domain.tasks.scores import Predictions

MEMBERS = 3
# Ten seeds have 120 ensembles, which take minutes to score; six have 20.
MOST_SEEDS = 6


@dataclass(frozen=True)
class Together:
    """What the ensembles of a row score.

    Args:
        mean: Over the tasks and all ensembles, in percent.
        tasks: The tasks.
        over_baseline: The difference to a single fine-tuning of DAPT, corrected for all comparisons of the report.
        over_one: The difference to a single one of the same row, not corrected.
        cost: Seconds of preparation, pre-training and three fine-tunings of one task, as a multiple of DAPT's with one
            fine-tuning; None if they were not measured, or on other tasks than DAPT's.
    """

    mean: float
    tasks: tuple[str, ...]
    over_baseline: Difference | None
    over_one: Difference | None
    cost: float | None


def compare_together(
    runs: Mapping[tuple[str, str, str], Result],
    draws: Mapping[str, Draws],
    decisions: Mapping[tuple[str, str], Difference | None],
    same: Collection[Set[str]],
    costs: Mapping[str, Mapping[str, float]],
    tasks: Sequence[str],
    stable: Collection[str],
) -> dict[str, Together]:
    """Compare the ensembles of each row that has enough seeds.

    Args:
        runs: The fine-tunings by method, task and seeds.
        draws: The scores of single runs, see `draw_scores`.
        decisions: The comparisons of single runs, whose p values count in the correction.
        same: The pairs of rows that have the same fine-tuned models.
        costs: By method, see `Report`.
        tasks: In the order of the plan.
        stable: The rows whose pre-training seeds estimate their variance, see `compare_rows`.
    """
    joined, base = draw_ensembles(runs, tasks), draws.get(BASELINE, {})
    pool = [own for row, own in [*joined.items(), (BASELINE, base)] if row in stable]
    over = {
        (f"{MEMBERS} of {row}", BASELINE): compare_draws(own, base, pool, row == BASELINE or {row, BASELINE} in same)
        for row, own in joined.items()
    }
    corrected = correct({**decisions, **over}) if base else {}
    return {
        row: Together(
            float(average_tasks(own, [*own])[0]),
            tuple(own),
            corrected.get((f"{MEMBERS} of {row}", BASELINE)),
            compare_draws(own, draws[row], has_same_models=True),
            measure_cost(costs, row) if own.keys() == base.keys() else None,
        )
        for row, own in joined.items()
    }


def join_votes(members: Sequence[Predictions]) -> Predictions:
    """Return the labels that most members predict; of a draw, the label of the earliest member."""
    first = members[0]
    labels = sorted({label for member in members for label in member.labels})
    ids = {label: number for number, label in enumerate(labels)}
    names = [[[member.labels[number] for number in row] for row in member.predicted] for member in members]
    sizes = {len(row) for rows in (first.gold, *names) for row in rows}  # type: ignore[attr-defined]
    several = first.metric not in METRICS["ner"] and sizes != {1}
    chosen: list[list[int]] = []
    for rows in zip(*names, strict=True):
        if several:
            votes = Counter(label for row in rows for label in row)
            chosen.append([ids[label] for label, count in votes.items() if 2 * count > len(members)])
        else:
            chosen.append([ids[max(word, key=word.count)] for word in zip(*rows, strict=True)])
    gold = [[ids[first.labels[number]] for number in row] for row in first.gold]
    return replace(first, labels=labels, gold=gold, predicted=chosen)


def draw_ensembles(runs: Mapping[tuple[str, str, str], Result], tasks: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the pseudo-values of the seeds of each row on resampled test sets; of rows with more seeds than members.

    A question or a value has no votes, so its task is left out.
    """
    joined: dict[str, dict[str, dict[RunSeeds, np.ndarray]]] = defaultdict(dict)
    for number, task in enumerate(tasks):
        found: dict[str, dict[int | None, dict[int, Predictions]]] = defaultdict(lambda: defaultdict(dict))
        for run in runs.values():
            step, predictions = run.step, run.predictions
            if step.task == task and step.seed is not None and predictions is not None and predictions.labels:
                found[str(step.method)][step.pretraining_seed][step.seed] = predictions
        scores: dict[str, dict[Any, Any]] = defaultdict(dict)
        for row, pretrainings in found.items():
            for pretraining, seeds in pretrainings.items():
                if len(seeds) > MEMBERS:
                    for members in combinations(sorted(seeds)[:MOST_SEEDS], MEMBERS):
                        scores[row][pretraining, members] = join_votes([seeds[seed] for seed in members]).score()
        # The same resampled test sets as those of single runs.
        for row, drawn in (draw_scores(scores, seed=number) if scores else {}).items():
            joined[row][task] = compute_pseudo_values(drawn)  # type: ignore[arg-type]
    return dict(joined)


def compute_pseudo_values(drawn: Mapping[tuple[int | None, tuple[int, ...]], np.ndarray]) -> dict[RunSeeds, np.ndarray]:
    """Return the pseudo-value of each seed from the scores of the ensembles, by pre-training and members."""
    values: dict[RunSeeds, np.ndarray] = {}
    for pretraining in {pretraining for pretraining, _ in drawn}:
        own = {members: score for (each, members), score in drawn.items() if each == pretraining}
        mean, seeds = np.mean([*own.values()], axis=0), sorted({seed for members in own for seed in members})
        for seed in seeds:
            without = np.mean([score for members, score in own.items() if seed not in members], axis=0)
            values[pretraining, seed] = len(seeds) * mean - (len(seeds) - 1) * without
    return values


def measure_cost(costs: Mapping[str, Mapping[str, float]], row: str) -> float | None:
    """Return the seconds of a row with its ensemble, as a multiple of DAPT's with a single fine-tuning."""

    def count(method: str, fine_tunings: int) -> float | None:
        own = costs.get(method, {})
        if "fine-tuning s" not in own:
            return None
        return own.get("preparation s", 0) + own.get("pre-training s", 0) + fine_tunings * own["fine-tuning s"]

    own, base = count(row, MEMBERS), count(BASELINE, 1)
    return None if own is None or not base else own / base

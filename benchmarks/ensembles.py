"""Score the vote of several fine-tunings of each row of a comparison, against single ones of DAPT.

    python benchmarks/ensembles.py results/verdict --output ensembles.json

Each text or word gets the label that most members of an ensemble predict; with several labels, those that more than
half of them predict. The score of a row is the mean over all ensembles of its seeds. Test examples and seeds are
resampled together. An ensemble has distinct members, so it is made of the distinct seeds of a resample. One seed fewer
is drawn than there are, since a bootstrap of few seeds shows too little variance (Rao and Wu 1988). Shown are the rows
with more seeds than members, at the largest budget and the first pre-training. Seconds are sums over the tasks.
"""

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from pretrainings import read_results

from hf_domain.comparison.scores import Predictions
from hf_domain.comparison.statistics import RESAMPLES, Difference, correct, draw_scores
from hf_domain.files import write_json
from hf_domain.methods import BASELINE

Ensembles = Mapping[tuple[int, ...], np.ndarray]
"""Seeds of the members -> score on the test set, followed by those on the resampled test sets."""


def join_votes(members: Sequence[Predictions]) -> Predictions:
    """Return the labels that most members predict; of a draw, the label of the earliest member."""
    first = members[0]
    labels = sorted({label for member in members for label in member.labels})
    ids = {label: number for number, label in enumerate(labels)}
    names = [[[member.labels[number] for number in row] for row in member.predicted] for member in members]
    several = first.metric != "entity_f1" and any(len(row) != 1 for rows in (first.gold, *names) for row in rows)
    chosen = []
    for rows in zip(*names, strict=True):
        if several:
            votes = Counter(label for row in rows for label in row)
            chosen.append([ids[label] for label, count in votes.items() if 2 * count > len(members)])
        else:
            chosen.append([ids[Counter(word).most_common(1)[0][0]] for word in zip(*rows, strict=True)])
    gold = [[ids[first.labels[number]] for number in row] for row in first.gold]
    return replace(first, labels=labels, gold=gold, predicted=chosen)


def read_runs(results: list[dict[str, Any]]) -> dict[str, dict[str, dict[int, Predictions]]]:
    """Return the predictions by task, row and seed."""
    scored = [each for each in results if each["step"]["kind"] == "fine_tuning" and each.get("predictions")]
    steps = [each["step"] for each in scored]
    rungs = {None, max(step.get("rung") or 0 for step in steps)}
    pretrainings = {None, min((step["pretraining_seed"] for step in steps if step.get("pretraining_seed")), default=0)}
    runs: dict[str, dict[str, dict]] = defaultdict(lambda: defaultdict(dict))
    for step, each in zip(steps, scored, strict=True):
        if step.get("rung") in rungs and step.get("pretraining_seed") in pretrainings and not step.get("labels"):
            predictions = Predictions.from_json(each["predictions"])
            if predictions.labels:  # an answer or a value has no votes
                runs[step["task"]][step["method"]][step["seed"]] = predictions
    return runs


def draw_ensembles(
    runs: Mapping[str, Mapping[int, Predictions]], count: int, seed: int
) -> dict[str, dict[int, Ensembles]]:
    """Return for each row of a task the scores of its ensembles, by their number of members: one, and `count`."""
    scores = {
        row: {
            members: join_votes([own[each] for each in members]).score()
            for size in (1, count)
            for members in combinations(sorted(own), size)
        }
        for row, own in runs.items()
    }
    drawn = draw_scores(scores, seed)  # type: ignore[arg-type] # it takes any name for a run
    return {
        row: {size: {members: values for members, values in own.items() if len(members) == size} for size in (1, count)}
        for row, own in drawn.items()
    }


def resample(ensembles: Ensembles, generator: np.random.Generator) -> np.ndarray:
    """Return the mean score of a row's ensembles, then those on resampled test sets with resampled seeds."""
    seeds = sorted({seed for members in ensembles for seed in members})
    size = len(next(iter(ensembles)))
    values = [np.mean([each[0] for each in ensembles.values()])]
    for number in range(1, RESAMPLES + 1):
        drawn: set[int] = set()
        while len(drawn) < size:
            drawn = {*generator.choice(seeds, len(seeds) - 1).tolist()}
        values.append(np.mean([own[number] for members, own in ensembles.items() if drawn.issuperset(members)]))
    return np.array(values)


def compare(own: np.ndarray, other: np.ndarray, tasks: tuple[str, ...]) -> Difference:
    """Return the difference of two means over tasks, with the percentile interval of its resamples."""
    gaps = own - other
    low, high = np.quantile(gaps[1:], [0.025, 0.975])
    p = 2 * min((1 + np.sum(gaps[1:] <= 0)) / (1 + RESAMPLES), (1 + np.sum(gaps[1:] >= 0)) / (1 + RESAMPLES))
    return Difference(tasks, float(gaps[0]), float(low), float(high), min(1.0, float(p)))


def list_seconds(results: list[dict[str, Any]], row: str) -> dict[str, float]:
    """Return the seconds of a row's pre-trainings, and of one fine-tuning of each of its tasks."""
    seconds: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for each in results:
        step = each["step"]
        if (
            step.get("method") == row
            and step["kind"] in ("pretraining", "trunk", "fine_tuning")
            and each.get("seconds")
        ):
            name = step.get("task") if step["kind"] == "fine_tuning" else step.get("task") or step.get("corpus")
            seconds[step["kind"].replace("trunk", "pretraining")][str(name)].append(each["seconds"])
    return {kind: sum(float(np.mean(of_one)) for of_one in own.values()) for kind, own in seconds.items()}


def main() -> None:
    """Print what ensembles gain over single fine-tunings of DAPT, and over their own members."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="Output folder of a comparison.")
    parser.add_argument("--members", type=int, default=3, help="Fine-tunings of an ensemble.")
    parser.add_argument("--output", required=True, help="JSON file.")
    args = parser.parse_args()
    results = read_results(args.folder)
    runs = read_runs(results)
    tasks = [task for task, rows in runs.items() if len(rows[BASELINE]) > args.members]
    names = [row for row in runs[tasks[0]] if all(len(runs[task][row]) > args.members for task in tasks)]
    drawn: dict[tuple[str, int], list[np.ndarray]] = defaultdict(list)
    for number, task in enumerate(tasks):
        generator = np.random.default_rng(number)
        for row, sizes in draw_ensembles({row: runs[task][row] for row in names}, args.members, number).items():
            for size, ensembles in sizes.items():
                drawn[row, size].append(resample(ensembles, generator))
    means = {name: np.mean(values, 0) for name, values in drawn.items()}
    base = means[BASELINE, 1]
    over_dapt = correct({(row, BASELINE): compare(means[row, args.members], base, tuple(tasks)) for row in names})
    rows = {
        row: {
            "single": means[row, 1][0],
            "ensemble": means[row, args.members][0],
            "by_task": {
                task: [drawn[row, size][number][0] for size in (1, args.members)] for number, task in enumerate(tasks)
            },
            "over_dapt": asdict(difference),
            "over_single": asdict(compare(means[row, args.members], means[row, 1], tuple(tasks))),
            "seconds": list_seconds(results, row),
        }
        for (row, _), difference in over_dapt.items()
        if difference is not None
    }
    write_json(Path(args.output), {"folder": args.folder.name, "members": args.members, "rows": rows})
    print(f"{args.members} fine-tunings, {', '.join(tasks)}")
    for row, own in rows.items():
        print(f"{row}: {own['single']:.1f} alone, {own['ensemble']:.1f} together, {json.dumps(own['seconds'])}")
        for name in ("over_single", "over_dapt"):
            found = own[name]
            p = f", p {found['corrected']:.4f}" if found["corrected"] is not None else ""
            print(f"    {name}: {found['mean']:+.2f} [{found['low']:+.1f} to {found['high']:+.1f}]{p}")


if __name__ == "__main__":
    main()

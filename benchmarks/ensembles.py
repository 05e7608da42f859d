"""Score several fine-tunings of each row of a comparison together, against single ones of DAPT.

    python benchmarks/ensembles.py results/verdict --output ensembles.json

Each text or word gets the label that most members of an ensemble predict; with several labels, those that more than
half of them predict. The score of a row is the mean over all ensembles of its seeds. The error of a difference has two
parts, which are added: test examples are resampled, the same ones for every run, and the variance of seeds is estimated
by leaving one out (a jackknife). Seeds are left out together where both sides have the same fine-tunings: those of an
ensemble and of its members, and those of `--same`, such as a row that only adds a vote to DAPT's. Shown are the rows
with more seeds than members, at the largest budget and the first pre-training. Seconds are sums over the tasks.
"""

import argparse
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from pretrainings import read_results
from scipy.stats import t

from hf_domain.comparison.scores import Predictions
from hf_domain.comparison.statistics import CONFIDENCE, Difference, correct, draw_scores
from hf_domain.files import write_json
from hf_domain.methods import BASELINE


@dataclass(frozen=True)
class Ensembles:
    """The mean score of all ensembles of a size, on one task.

    Args:
        score: On the test set, then on the resampled test sets.
        without: On the test set without the ensembles that a seed is in, by seed.
    """

    score: np.ndarray
    without: np.ndarray


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


def score_ensembles(
    runs: Mapping[str, Mapping[int, Predictions]], sizes: Sequence[int], seed: int
) -> dict[tuple[str, int], Ensembles]:
    """Return the scores of each row of a task, by the number of members of its ensembles.

    Args:
        runs: The predictions by row and seed.
        seed: Seed of the resampling of the test set.
    """
    names = {
        row: [members for size in sizes for members in combinations(sorted(own), size)] for row, own in runs.items()
    }
    scores: Any = {
        row: {members: join_votes([runs[row][each] for each in members]).score() for members in own}
        for row, own in names.items()
    }
    drawn: Any = draw_scores(scores, seed)
    found = {}
    for row, own in drawn.items():
        for size in sizes:
            of_size = {members: values for members, values in own.items() if len(members) == size}
            without = [
                np.mean([values[0] for members, values in of_size.items() if left not in members])
                for left in sorted(runs[row])
            ]
            found[row, size] = Ensembles(np.mean([*of_size.values()], axis=0), np.array(without))
    return found


def compare(own: Mapping[str, Ensembles], other: Mapping[str, Ensembles], is_same: bool) -> Difference:
    """Return the difference of two means over tasks.

    Args:
        own: The scores by task.
        other: The same tasks.
        is_same: Whether both have the same fine-tunings.
    """
    gaps = np.mean([own[task].score - other[task].score for task in own], axis=0)
    parts = []
    for task in own:
        left = [own[task].without - other[task].without] if is_same else [own[task].without, other[task].without]
        parts += [((len(each) - 1) ** 2 / len(each) * each.var(ddof=1) / len(own) ** 2, len(each) - 1) for each in left]
    variance = float(gaps[1:].var()) + sum(part for part, _ in parts)
    uncertainty = sum(part**2 / freedom for part, freedom in parts)
    freedom = variance**2 / uncertainty if uncertainty else math.inf
    half, mean = float(t.ppf((1 + CONFIDENCE) / 2, freedom)) * math.sqrt(variance), float(gaps[0])
    p = float(2 * t.sf(abs(mean) / math.sqrt(variance), freedom)) if variance else float(mean == 0)
    return Difference(tuple(own), mean, mean - half, mean + half, p)


def list_seconds(results: list[dict[str, Any]], row: str) -> dict[str, float]:
    """Return the seconds of a row's pre-trainings, and of one fine-tuning of each of its tasks."""
    seconds: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for each in results:
        step, kind = each["step"], each["step"]["kind"].replace("trunk", "pretraining")
        if step.get("method") == row and kind in ("pretraining", "fine_tuning") and each.get("seconds"):
            seconds[kind][str(step.get("task") or step.get("corpus"))].append(each["seconds"])
    return {kind: sum(float(np.mean(of_one)) for of_one in own.values()) for kind, own in seconds.items()}


def main() -> None:
    """Print what ensembles gain over single fine-tunings of DAPT, and over their own members."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="Output folder of a comparison.")
    parser.add_argument("--members", type=int, default=3, help="Fine-tunings of an ensemble.")
    parser.add_argument("--same", nargs="+", default=[], help="Rows that have DAPT's own fine-tunings.")
    parser.add_argument("--output", required=True, help="JSON file.")
    args = parser.parse_args()
    results, count = read_results(args.folder), args.members
    runs = read_runs(results)
    tasks = [task for task, rows in runs.items() if len(rows[BASELINE]) > count]
    names = [row for row in runs[tasks[0]] if all(len(runs[task][row]) > count for task in tasks)]
    scores: dict[tuple[str, int], dict[str, Ensembles]] = defaultdict(dict)
    for number, task in enumerate(tasks):
        for name, found in score_ensembles({row: runs[task][row] for row in names}, (1, count), number).items():
            scores[name][task] = found
    base, same = scores[BASELINE, 1], {BASELINE, *args.same}
    over_dapt = correct(
        {(row, str(size)): compare(own, base, row in same) for (row, size), own in scores.items() if own is not base}
    )
    rows = {
        row: {
            "by_task": {task: [scores[row, size][task].score[0] for size in (1, count)] for task in tasks},
            "over_single": asdict(compare(scores[row, count], scores[row, 1], is_same=True)),
            "over_dapt": {size: asdict(found) for (own, size), found in over_dapt.items() if own == row and found},
            "seconds": list_seconds(results, row),
        }
        for row in names
    }
    write_json(Path(args.output), {"folder": args.folder.name, "members": count, "rows": rows})
    print(f"{', '.join(tasks)}; over a single {BASELINE}, by the number of members:")
    for row, own in rows.items():
        for size, found in own["over_dapt"].items():
            interval = f"[{found['low']:+.1f} to {found['high']:+.1f}], p {found['corrected']:.4f}"
            print(f"{row}, {size}: {found['mean']:+.2f} {interval}")


if __name__ == "__main__":
    main()

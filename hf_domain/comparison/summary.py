"""Summarize the results of a comparison: scores, differences between its rows, costs, and what encoders forgot."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field
from itertools import chain, combinations
from typing import Any

from hf_domain.comparison.results import Result
from hf_domain.comparison.statistics import Difference, Draws, RunSeeds, compare_draws, compare_rows, draw_scores
from hf_domain.comparison.steps import CACHE_FLAGS, Step, list_suffixes
from hf_domain.methods import BASELINE, NO_ADAPTATION

START_TITLE = "the encoder as it was"
# Kinds of steps that train an encoder; those of earlier versions among them.
TRAINED = ("pretraining", "trunk", "average")
PREPARED = ("vocabulary", "datastore", "selection")

Runs = Mapping[tuple[str, str, str], Result]
"""Fine-tunings by row, task and seeds."""


@dataclass
class Report:
    """The summary of a comparison.

    Args:
        plan: See `read_plan_file`.
        results: By the names of the steps.
        runs: The fine-tunings that ended.
        decisions: Differences of the means over tasks, for the pairs of the plan.
        differences: Differences to the baseline by row and task.
        gains: Differences of the means over tasks to the encoder without adaptation, by row.
        costs: Costs of the encoder and of its use, by row.
        losses: Masked-LM losses by title of the encoder and corpus.
        other_tokens: Titles of encoders with another vocabulary than the plan's encoder; losses are not comparable.
        models: For each task the fine-tuning with the best validation score, if its model was kept.
    """

    plan: dict[str, Any]
    results: Mapping[str, Result]
    runs: Runs
    decisions: dict[tuple[str, str], Difference | None]
    differences: dict[str, dict[str, Difference]]
    gains: dict[str, Difference]
    costs: dict[str, dict[str, float]]
    losses: dict[str, dict[str, float]]
    other_tokens: set[str]
    models: Mapping[str, Result] = field(default_factory=dict)

    @property
    def titles(self) -> dict[str, str]:
        """The titles of the rows."""
        return self.plan["titles"]

    @property
    def scores(self) -> dict[str, dict[str, dict[str, float]]]:
        """Scores on the test sets by row, task and seeds, in percent."""
        scores: dict[str, dict[str, dict[str, float]]] = {
            row: {t: {} for t in self.plan["tasks"]} for row in self.titles
        }
        for (row, task, seeds), run in self.runs.items():
            assert run.score is not None
            scores[row][task][seeds] = run.score
        return scores

    @property
    def floors(self) -> dict[str, dict[str, float]]:
        """Scores without any training, by name and task."""
        floors: dict[str, dict[str, float]] = defaultdict(dict)
        for (_, task, _), run in self.runs.items():
            for name, score in run.floors.items():
                floors[name][task] = score
        return dict(floors)

    @property
    def unlearned(self) -> dict[str, dict[str, list[str]]]:
        """The seeds whose score is no better than the majority baseline, by row and task."""
        unlearned: dict[str, dict[str, list[str]]] = {row: {} for row in self.titles}
        for (row, task, seeds), run in self.runs.items():
            if not run.did_learn:
                unlearned[row].setdefault(task, []).append(seeds)
        return unlearned

    @property
    def failed(self) -> dict[str, str]:
        """Steps without a result -> the reason."""
        return {name: result.error for name, result in self.results.items() if not result.is_done}

    @property
    def missing(self) -> dict[str, list[str]]:
        """The tasks without all of their results, by the row that they are missing for."""
        return find_missing(self.plan, list(self.results.values()))

    def average(self, row: str) -> float | None:
        """Return the mean of a row over the tasks that it was tested on."""
        means = [statistics.mean(runs.values()) for runs in self.scores[row].values() if runs]
        return statistics.mean(means) if means else None


def read_report(plan: dict[str, Any], results: Mapping[str, Result]) -> Report:
    """Summarize results, by the names of their steps."""
    done = [result for result in results.values() if result.is_done]
    runs = gather_runs(done)
    same, draws = find_same_models(runs), draw_runs(runs.values(), [*plan["tasks"]])
    stable = {*plan["titles"]} - {row for (row, _, _), run in runs.items() if not run.did_learn}
    losses, other_tokens = read_losses(plan, done)
    return Report(
        plan=plan,
        results=results,
        runs=runs,
        decisions=compare_rows(draws, [(own, other) for own, other in plan["pairs"]], stable, same),
        differences={row: compare_tasks(row, draws, same) for row in plan["titles"]},
        gains=compare_with_start(draws, same),
        costs={row: read_costs(row, plan, done) for row in plan["titles"]},
        losses=losses,
        other_tokens=other_tokens,
    )


# ------------------------------------------------------------------------------------------------------------- runs


def gather_runs(done: Iterable[Result]) -> dict[tuple[str, str, str], Result]:
    """Return the fine-tunings by row, task and seeds."""
    runs = {
        (str(result.step.method), str(result.step.task), name_run(result.step)): result
        for result in done
        if result.step.kind == "fine_tuning"
    }
    return dict(sorted(runs.items()))


def name_run(step: Step) -> str:
    """Name a run by its seeds."""
    return "-".join(str(seed) for seed in (step.pretraining_seed, step.seed) if seed is not None)


def find_missing(plan: dict[str, Any], results: list[Result]) -> dict[str, list[str]]:
    """Return the tasks that lack results, also failed ones, by row."""
    steps = [result.step for result in results if result.step.kind == "fine_tuning"]
    counts = Counter((str(step.method), str(step.task)) for step in steps)
    pretrained = {step.method for step in steps if step.pretraining_seed is not None}
    missing = {}
    for row, options in plan["methods"].items():
        expected = count_runs(plan, row, row in pretrained)
        lacking = [
            task
            for task in plan["tasks"]
            if (options["tasks"] is None or task in options["tasks"]) and counts[row, task] < expected
        ]
        if lacking:
            missing[row] = lacking
    return missing


def count_runs(plan: dict[str, Any], row: str, is_pretrained: bool) -> int:
    """Return the number of runs of a row on a task in a complete comparison."""
    seeds = len(plan["methods"][row].get("seeds") or plan["seeds"])
    return seeds * (len(plan["pretraining_seeds"]) if is_pretrained else 1)


# ------------------------------------------------------------------------------------------------------- differences


def draw_runs(runs: Iterable[Result], tasks: list[str]) -> dict[str, Draws]:
    """Return the scores of all rows on resampled test sets, see `draw_scores`."""
    runs, draws = [*runs], defaultdict[str, dict[str, dict[RunSeeds, Any]]](dict)
    for number, task in enumerate(tasks):
        scores: dict[str, dict[RunSeeds, Any]] = defaultdict(dict)
        for run in runs:
            if run.step.task == task and run.predictions is not None:
                scores[str(run.step.method)][run.step.pretraining_seed, run.step.seed] = run.predictions.score()
        for row, drawn in (draw_scores(scores, seed=number) if scores else {}).items():
            draws[row][task] = drawn
    return dict(draws)


def find_same_models(runs: Runs) -> list[Set[str]]:
    """Return the pairs of rows whose runs with the same seeds have the same model: only a vote differs."""
    trainings: dict[str, dict[tuple[str, str], Any]] = defaultdict(dict)
    for (row, task, seeds), run in runs.items():
        flags = {name: value for name, value in run.step.flags.items() if name != "nearest_vote"}
        trainings[row][task, seeds] = flags, run.step.needs
    pairs: list[Set[str]] = []
    for own, other in combinations(trainings, 2):
        shared = trainings[own].keys() & trainings[other].keys()
        if shared and all(trainings[own][run] == trainings[other][run] for run in shared):
            pairs.append({own, other})
    return pairs


def compare_tasks(row: str, draws: Mapping[str, Draws], same: Collection[Set[str]]) -> dict[str, Difference]:
    """Return the difference to the baseline on each task, which explains the mean but does not decide."""
    if row == BASELINE:
        return {}
    own, baseline, is_same = draws.get(row, {}), draws.get(BASELINE, {}), {row, BASELINE} in same
    pairs = {
        task: compare_draws({task: own[task]}, {task: baseline.get(task, {})}, has_same_models=is_same) for task in own
    }
    return {task: difference for task, difference in pairs.items() if difference is not None}


def compare_with_start(draws: Mapping[str, Draws], same: Collection[Set[str]]) -> dict[str, Difference]:
    """Return the difference of each row to the encoder without adaptation, with intervals of single comparisons."""
    start = draws.get(NO_ADAPTATION, {})
    gains = {
        row: compare_draws(own, start, draws.values(), {row, NO_ADAPTATION} in same)
        for row, own in draws.items()
        if row != NO_ADAPTATION
    }
    return {row: gain for row, gain in gains.items() if gain is not None}


# -------------------------------------------------------------------------------------------------- costs and losses


def read_costs(row: str, plan: dict[str, Any], done: list[Result]) -> dict[str, float]:
    """Return the costs of a row: mean costs of its encoders with all that they start from, and of their use."""
    own = [result for result in done if result.step.method == row]
    encoders = [result for result in own if result.step.kind in ("pretraining", "average")]
    runs = [result for result in own if result.step.kind == "fine_tuning"]
    by_id = {result.step.id: result for result in done}
    chains = [list_chain(encoder, by_id) for encoder in encoders]
    needed = {need for result in own for need in result.step.needs}
    prepared = [result for result in done if result.step.kind in PREPARED and result.step.id in needed]
    if not encoders and not runs:
        return {}
    costs = {}
    for name, values in (
        ("preparation s", [result.seconds for result in prepared]),
        ("pre-training s", [sum_known(part.seconds for part in parts) for parts in chains]),
        ("tokens", [sum_known(part.tokens for part in parts) for parts in chains]),
        ("trained parameters", [encoder.trainable_parameters for encoder in encoders]),
        ("checkpoint MB", [encoder.checkpoint_bytes and encoder.checkpoint_bytes / 1e6 for encoder in encoders]),
        ("fine-tuning s", [run.seconds for run in runs]),
        ("inference ms", [run.milliseconds_per_text for run in runs]),
    ):
        if measured := [value for value in values if value is not None]:
            costs[name] = statistics.mean(measured)
    after = plan["methods"][row]["after"]
    if after is not None:
        before = read_costs(after, plan, done)
        # What trains no encoder of its own uses the other row's.
        for name in ("preparation s",) if encoders else ("preparation s", "pre-training s", "tokens"):
            if name in before:
                costs[name] = costs.get(name, 0) + before[name]
    return costs


def sum_known(values: Iterable[float | None]) -> float | None:
    """Return the sum of what was measured; None if nothing was: lines of text have no count of tokens."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def list_chain(encoder: Result, by_id: Mapping[str, Result]) -> list[Result]:
    """List an encoder's result and those of all that it was trained from; empty if one of them is missing."""
    found: dict[str, Result] = {}
    needed = [encoder.step.id]
    while needed:
        step_id = needed.pop()
        if (result := by_id.get(step_id)) is None:
            return []
        if step_id not in found and result.step.kind in TRAINED:
            found[step_id] = result
            needed += result.step.needs
    return [*found.values()]


def is_cached(report: Report, row: str) -> bool:
    """Return whether predictions of a row read states from a cache."""
    return any(name == row and {*CACHE_FLAGS} & run.step.flags.keys() for (name, _, _), run in report.runs.items())


def read_losses(plan: dict[str, Any], done: Iterable[Result]) -> tuple[dict[str, dict[str, float]], set[str]]:
    """Return the mean masked-LM losses by title of the encoder and corpus; encoders of TAPT may share a title.

    Also return the titles whose tokens differ from those of the unadapted encoder, or if that was not evaluated, from
    those of most encoders.
    """
    titles = name_encoders(plan)
    losses: dict[str, dict[str, list[float]]] = {title: {} for title in titles.values()}
    vocabularies: dict[str, list[str | None]] = {title: [] for title in titles.values()}
    for result in done:
        step = result.step
        if step.kind == "held_out_loss" and result.masked_lm_loss is not None:
            title = titles[step.name.removesuffix(f"-on-{step.corpus}")]
            losses[title].setdefault(str(step.corpus), []).append(result.masked_lm_loss)
            vocabularies[title].append(result.vocabulary)
    known = [*chain.from_iterable(vocabularies.values())]
    usual = statistics.mode(vocabularies[START_TITLE] or known or [None])
    means = {
        title: {corpus: statistics.mean(values) for corpus, values in sorted(own.items())}
        for title, own in losses.items()
        if own
    }
    return means, {title for title in means if {*vocabularies[title]} != {usual}}


def name_encoders(plan: dict[str, Any]) -> dict[str, str]:
    """Return the titles of the encoders whose losses are measured, by the names of their steps."""
    corpora = {name: name for name in plan["corpora"]} | {name: task["corpus"] for name, task in plan["tasks"].items()}
    titles = {"encoder": START_TITLE, **plan["titles"]}
    has_domains = len(plan["corpora"].keys() - {plan["general"]}) > 1
    for row, title in plan["titles"].items():
        for source, corpus in corpora.items():
            tells_domain = has_domains and corpus != plan["general"]
            for suffix in list_suffixes(plan["pretraining_seeds"]).values():
                titles[f"{row}-{source}{suffix}"] = f"{title} ({corpus})" if tells_domain else title
    return titles

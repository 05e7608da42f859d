"""Summarize the results of a comparison: differences between its rows, costs, and what encoders forgot."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from hf_domain.comparison.default_flags import CACHES, CHECKPOINTS, TRAINER_OPTIONS
from hf_domain.comparison.results import Description, Result
from hf_domain.comparison.scores import join_predictions
from hf_domain.comparison.statistics import Difference, Draws, Run, compare, compare_rows, draw_scores
from hf_domain.comparison.steps import list_suffixes
from hf_domain.methods import BASELINE, NO_ADAPTATION

START = "the encoder as it was"


@dataclass
class Report:
    """The summary of a comparison.

    Args:
        plan: Written by `describe_plan`.
        scores: Scores by method, task and seeds, in percent.
        floors: Scores without any training, by name and task.
        unlearned: The seeds whose score is no better than the majority baseline, by method and task.
        decisions: Differences of the means over tasks, for the pairs of the plan.
        differences: Differences to the baseline by method and task.
        gains: Differences of the means over tasks to the encoder without adaptation, by method.
        costs: Costs of the encoder and of its use, by method.
        losses: Masked-LM losses by title of the encoder and corpus.
        other_tokens: Titles of encoders with another vocabulary than the plan's encoder; losses are not comparable.
        cached: Methods whose predictions read states from a cache.
        commands: The command that trains a method's encoder, or fine-tunes it if there is nothing to train.
        failed: Steps without a result -> the reason.
        codes: Digest of the code -> the results it made.
        minutes: Minutes of each pre-training.
        draws: The scores of all rows on resampled test sets, see `draw_scores`.
        examples: Training examples by task.
        smaller: Summaries at the smaller budgets, in order.
        fewer_labels: Share of the training examples -> the summary with it.
        models: For each task the fine-tuning with the best validation score, if its model was kept.
    """

    plan: dict[str, Any]
    scores: dict[str, dict[str, dict[str, float]]]
    floors: dict[str, dict[str, float]]
    unlearned: dict[str, dict[str, list[str]]]
    decisions: dict[tuple[str, str], Difference | None]
    differences: dict[str, dict[str, Difference]]
    gains: dict[str, Difference]
    costs: dict[str, dict[str, float]]
    losses: dict[str, dict[str, float]]
    other_tokens: set[str]
    cached: set[str]
    commands: dict[str, list[str]]
    failed: dict[str, str]
    codes: dict[str, list[str]]
    minutes: list[float]
    draws: dict[str, Draws]
    examples: dict[str, int]
    smaller: list["Report"] = field(default_factory=list)
    fewer_labels: dict[float, "Report"] = field(default_factory=dict)
    models: Mapping[str, Result] = field(default_factory=dict)

    @property
    def titles(self) -> dict[str, str]:
        """The titles of the methods."""
        return self.plan["titles"]


def say_nothing(report: Report, method: str) -> str:
    """Return what stands in the place of a score that is not there."""
    left = report.plan.get("left", {}).get(method)
    return "no result" if left is None else f"left at {left['rung']:,} tokens"


def read_report(plan: dict[str, Any], results: Mapping[str, Result]) -> Report:
    """Summarize the results at the largest budget and with all labels, including summaries of smaller ones."""
    whole = {name: result for name, result in results.items() if result.step.labels is None}
    report = read_rungs(plan, whole)
    fewer = {}
    for share in sorted({result.step.labels for result in results.values() if result.step.labels is not None}):
        own = {name: r for name, r in results.items() if r.step.labels == share or r.step.kind != "fine_tuning"}
        fewer[share] = read_rungs(plan, own)
    return replace(report, fewer_labels=fewer)


def read_rungs(plan: dict[str, Any], results: Mapping[str, Result]) -> Report:
    """Summarize the results at the largest number of tokens."""
    tokens = plan["budget"]["tokens"]
    if not isinstance(tokens, list):
        return read_budget(plan, results)
    ends = {row: left["rung"] for row, left in plan.get("left", {}).items()}
    # Of a row that has left there may be results of larger budgets, from before the plan became a race.
    racing = {name: r for name, r in results.items() if (r.step.rung or 0) <= ends.get(str(r.step.method), math.inf)}
    reports = []
    for rung in sorted(tokens):
        own = {name: result for name, result in racing.items() if is_of_rung(result, rung)}
        reports.append(read_budget(plan | {"budget": {**plan["budget"], "tokens": rung, "shared": True}}, own, racing))
    return replace(reports[-1], smaller=reports[:-1])


def is_of_rung(result: Result, rung: int) -> bool:
    """Return whether a result belongs to a number of tokens; a trunk belongs to all later ones."""
    own = result.step.rung
    return own is None or own == rung or (result.step.kind == "trunk" and own <= rung)


def read_budget(
    plan: dict[str, Any], results: Mapping[str, Result], others: Mapping[str, Result] | None = None
) -> Report:
    """Summarize the results of one budget; `others` has those of all budgets, from which rows may start."""
    done = [result for result in results.values() if result.is_done]
    starts = {result.step.address: result for result in (others or results).values()}
    runs = gather_runs(plan, done)
    scores: dict[str, dict[str, dict[str, float]]] = {
        method: {t: {} for t in plan["tasks"]} for method in plan["titles"]
    }
    unlearned: dict[str, dict[str, list[str]]] = {method: defaultdict(list) for method in plan["titles"]}
    floors: dict[str, dict[str, float]] = defaultdict(dict)
    for (method, task, seeds), run in runs.items():
        assert run.score is not None
        scores[method][task][seeds] = run.score
        for name, score in run.floors.items():
            floors[name][task] = score
        if not run.did_learn:
            unlearned[method][task].append(seeds)
    draws = draw_runs(list(runs.values()), list(plan["tasks"]))
    stable = [method for method, tasks in unlearned.items() if not tasks]
    evaluations = read_evaluations(plan, done)
    codes: dict[str, list[str]] = defaultdict(list)
    for result in done:
        codes[result.environment.get("code") or "unknown"].append(result.step.name)
    return Report(
        plan,
        scores,
        dict(floors),
        unlearned,
        compare_rows(draws, [(own, other) for own, other in plan["pairs"]], stable),
        {method: compare_tasks(draws.get(method, {}), draws.get(BASELINE, {})) for method in plan["titles"]},
        compare_with_start(draws),
        {method: read_costs(method, plan, done, starts) for method in plan["titles"]},
        read_losses(evaluations),
        find_other_tokens(evaluations),
        {name for (name, _, _), run in runs.items() if {*CACHES} & run.step.flags.keys()},
        {method: list_command(method, plan, done) for method in plan["titles"]},
        {name: result.error for name, result in results.items() if not result.is_done},
        dict(codes),
        [r.seconds / 60 for r in done if r.step.kind == "pretraining" and r.seconds is not None],
        draws,
        {task: max(int(run.metrics.get("train_samples", 0)), 0) for (_, task, _), run in runs.items()},
    )


def gather_runs(plan: dict[str, Any], done: list[Result]) -> dict[tuple[str, str, str], Result]:
    """Return the fine-tunings by method, task and seeds; the folds of a task are one run, once all are finished."""
    folds: dict[tuple[str, str, str], list[Result]] = defaultdict(list)
    for result in done:
        if result.step.kind == "fine_tuning":
            folds[str(result.step.method), str(result.step.task), name_run(result.step)].append(result)
    runs = {}
    for key, results in sorted(folds.items()):
        parts = sorted(results, key=lambda result: result.step.fold or 0)
        if len(parts) == (plan["tasks"][key[1]]["folds"] or 1):
            runs[key] = parts[0] if parts[0].step.fold is None else join_folds(parts)
    return runs


def join_folds(parts: list[Result]) -> Result:
    """Return the result of a cross-validation, with all out-of-fold predictions as one test set."""
    predictions = join_predictions([part.predictions for part in parts if part.predictions is not None])
    return replace(parts[0], predictions=predictions, score=predictions.score().compute())


def name_run(step: Description) -> str:
    """Name a run by its seeds."""
    return "-".join(str(seed) for seed in (step.pretraining_seed, step.seed) if seed is not None)


def draw_runs(runs: list[Result], tasks: list[str]) -> dict[str, Draws]:
    """Return the scores of all rows on resampled test sets, see `draw_scores`."""
    draws: dict[str, dict[str, dict[Run, Any]]] = defaultdict(dict)
    for number, task in enumerate(tasks):
        scores: dict[str, dict[Run, Any]] = defaultdict(dict)
        for run in runs:
            if run.step.task == task and run.predictions is not None:
                scores[str(run.step.method)][run.step.pretraining_seed, run.step.seed] = run.predictions.score()
        for method, drawn in (draw_scores(scores, seed=number) if scores else {}).items():
            draws[method][task] = drawn
    return dict(draws)


def compare_tasks(own: Draws, baseline: Draws) -> dict[str, Difference]:
    """Return the difference to the baseline on each task, which explains the mean but does not decide."""
    if own is baseline:
        return {}
    pairs = {task: compare({task: own[task]}, {task: baseline.get(task, {})}) for task in own}
    return {task: difference for task, difference in pairs.items() if difference is not None}


def compare_with_start(draws: Mapping[str, Draws]) -> dict[str, Difference]:
    """Return the gain of each row over the unadapted encoder, with intervals of single comparisons."""
    start = draws.get(NO_ADAPTATION, {})
    gains = {method: compare(own, start, draws.values()) for method, own in draws.items() if own is not start}
    return {method: gain for method, gain in gains.items() if gain is not None}


def list_command(method: str, plan: dict[str, Any], done: list[Result]) -> list[str]:
    """Return the command of a method, with its training options; empty if none has run yet."""
    made = [r for r in done if r.step.method == method and r.step.kind in ("pretraining", "average", "fine_tuning")]
    if not made:
        return []
    # The encoder's command, if the method makes one; the first seed has the plain name.
    result = min(made, key=lambda result: (result.step.kind == "fine_tuning", len(result.step.name)))
    step, arguments = result.step, ["hf-domain", result.step.command]
    left_out = {*TRAINER_OPTIONS, *CHECKPOINTS, "output_dir", "max_eval_samples", *CACHES}
    for name, value in step.flags.items():
        if name not in left_out:
            values = map(str, value if isinstance(value, list) else [value])
            local = ("steps/", "texts/")
            arguments += [
                f"--{name}",
                *(f"{Path(plan['path']).stem}/{item}" if item.startswith(local) else item for item in values),
            ]
    if step.kind == "fine_tuning" and plan["learning_rates"]:
        arguments += ["--learning_rate", str(result.metrics["learning_rate"])]
    return [*arguments, "--output_dir", method]


def read_costs(method: str, plan: dict[str, Any], done: list[Result], starts: Mapping[str, Result]) -> dict[str, float]:
    """Return the costs of a method: mean costs of its encoders with all that they start from, and of their use.

    Args:
        method: A row.
        plan: Written by `describe_plan`.
        done: The results of one budget.
        starts: Results by address, of all budgets: a row that shares its tokens starts from an encoder of fewer.
    """
    encoders = [r for r in done if r.step.method == method and r.step.kind in ("pretraining", "average")]
    runs = [r for r in done if r.step.method == method and r.step.kind == "fine_tuning"]
    chains = [list_chain(encoder, starts) for encoder in encoders]
    costs = {}
    for name, values in (
        ("preparation s", [result.seconds for result in find_preparation(method, done)]),
        ("pre-training s", [sum_known(part.seconds for part in parts) for parts in chains]),
        ("tokens", [sum_known(part.tokens for part in parts if part.step.kind != "trunk") for parts in chains]),
        ("trained parameters", [encoder.trainable_parameters for encoder in encoders]),
        ("checkpoint MB", [encoder.checkpoint_bytes and encoder.checkpoint_bytes / 1e6 for encoder in encoders]),
        ("fine-tuning s", [run.seconds for run in runs]),
        ("inference ms", [run.milliseconds_per_text for run in runs]),
    ):
        if measured := [value for value in values if value is not None]:
            costs[name] = statistics.mean(measured)
    after = plan["methods"][method]["after"]
    if after is not None:
        before = read_costs(after, plan, done, starts)
        # What trains no encoder of its own uses the other row's.
        for name in ("preparation s",) if encoders else ("preparation s", "pre-training s", "tokens"):
            if name in before:
                costs[name] = costs.get(name, 0) + before[name]
    return costs


def sum_known(values: Iterable[float | None]) -> float | None:
    """Return the sum of what was measured; None if nothing was: lines of text have no count of tokens."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def list_chain(encoder: Result, starts: Mapping[str, Result]) -> list[Result]:
    """List an encoder's result and those of all encoders and parts of trunks that it was trained from."""
    found: dict[str, Result] = {}
    needed = [encoder.step.address]
    while needed:
        address = needed.pop()
        result = starts.get(address)
        if address not in found and result is not None and result.step.kind in ("pretraining", "average", "trunk"):
            found[address] = result
            needed += result.step.needs
    return [*found.values()]


def find_preparation(method: str, done: list[Result]) -> list[Result]:
    """Return the vocabulary expansions and datastores that a method reads, its own or shared ones."""
    needed = {name for result in done if result.step.method == method for name in result.step.needs}
    return [r for r in done if r.step.kind in ("vocabulary", "datastore") and r.step.address in needed]


def read_evaluations(plan: dict[str, Any], done: list[Result]) -> dict[str, list[Result]]:
    """Return the evaluations of every encoder by its title; encoders of TAPT for one corpus share a title."""
    corpora = {name: name for name in plan["corpora"]} | {name: task["corpus"] for name, task in plan["tasks"].items()}
    titles = {"encoder": START, **plan["titles"]}
    has_domains = len(plan["corpora"].keys() - {plan["general"]}) > 1
    for method, title in plan["titles"].items():
        for source, corpus in corpora.items():
            tells_domain = has_domains and corpus != plan["general"]
            for suffix in list_suffixes(plan["pretraining_seeds"]).values():
                titles[f"{method}-{source}{suffix}"] = f"{title} ({corpus})" if tells_domain else title
    evaluations: dict[str, list[Result]] = {title: [] for title in titles.values()}
    for result in done:
        if result.step.kind == "evaluation":
            encoder = result.step.name.removesuffix(f"-on-{result.step.corpus}")
            evaluations[titles[encoder.replace(f"-{result.step.rung}", "")]].append(result)
    return {title: results for title, results in evaluations.items() if results}


def read_losses(evaluations: dict[str, list[Result]]) -> dict[str, dict[str, float]]:
    """Return the masked-LM loss of every encoder on every corpus, averaged over encoders with one title."""
    return {
        title: {
            corpus: statistics.mean(
                r.masked_lm_loss for r in results if r.step.corpus == corpus and r.masked_lm_loss is not None
            )
            for corpus in sorted({str(r.step.corpus) for r in results})
        }
        for title, results in evaluations.items()
    }


def find_other_tokens(evaluations: dict[str, list[Result]]) -> set[str]:
    """Return the titles of encoders whose tokens differ from those of the unadapted encoder.

    If the unadapted encoder was not evaluated, the tokens of most encoders count instead.
    """
    known = {title: [result.vocabulary for result in results] for title, results in evaluations.items()}
    if not known:
        return set()
    usual = known[START][0] if START in known else statistics.mode(chain.from_iterable(known.values()))
    return {title for title, vocabularies in known.items() if set(vocabularies) != {usual}}

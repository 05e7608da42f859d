"""Summarize the results of a comparison: differences between its rows, costs, and what encoders forgot."""

import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from itertools import chain, combinations
from pathlib import Path
from typing import Any

from hf_domain.comparison.commands import list_commands
from hf_domain.comparison.default_flags import CACHE_FLAGS
from hf_domain.comparison.results import Description, Result
from hf_domain.comparison.rows import RECIPES
from hf_domain.comparison.statistics import Difference, Draws, RunSeeds, compare_draws, compare_rows, draw_scores
from hf_domain.comparison.steps import list_suffixes
from hf_domain.comparison.together import Together, compare_together
from hf_domain.methods import BASELINE, METHODS, NO_ADAPTATION
from hf_domain.tasks.scores import Predictions, join_predictions

START_TITLE = "the encoder as it was"
# Share of equal predictions from which two rows have the same states. VarMAE shared 99.4 % or more with its encoder on
# five tasks, probed on different processors; the other rows shared at most 95 %.
SAME_STATES = 0.98


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
        commands: The commands that make a method's encoder, see `list_commands`.
        failed: Steps without a result -> the reason; of the whole report, at all budgets and shares of labels.
        codes: Digest of the code -> the results it made.
        minutes: Minutes of each pre-training.
        draws: The scores of all rows on resampled test sets, see `draw_scores`.
        examples: Training examples by task.
        smaller: Summaries at the smaller budgets, in order.
        fewer_labels: Share of the training examples -> the summary with it.
        models: For each task the fine-tuning with the best validation score, if its model was kept.
        unjudged: Rows that a probe cannot judge -> the row whose predictions they share, see `find_unjudged`.
        missing: The tasks without all of their results, by the row that they are missing for.
        validation: Scores on the validation sets by method and task, in percent.
        runs: The fine-tunings by method, task and seeds.
        same: The pairs of rows that have the same fine-tuned models.
        together: Ensembles of the fine-tunings of a row, by method.
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
    commands: dict[str, list[list[str]]]
    failed: dict[str, str]
    codes: dict[str, list[str]]
    minutes: list[float]
    draws: dict[str, Draws]
    examples: dict[str, int]
    smaller: list["Report"] = field(default_factory=list)
    fewer_labels: dict[float, "Report"] = field(default_factory=dict)
    models: Mapping[str, Result] = field(default_factory=dict)
    unjudged: dict[str, str] = field(default_factory=dict)
    missing: dict[str, list[str]] = field(default_factory=dict)
    validation: dict[str, dict[str, float]] = field(default_factory=dict)
    runs: Mapping[tuple[str, str, str], Result] = field(default_factory=dict)
    same: list[Set[str]] = field(default_factory=list)
    together: dict[str, Together] = field(default_factory=dict)

    @property
    def titles(self) -> dict[str, str]:
        """The titles of the methods."""
        return self.plan["titles"]


def say_nothing(report: Report, method: str) -> str:
    """Return the text of a cell without a score."""
    left = report.plan.get("left", {}).get(method)
    return "no result" if left is None else f"left at {left['rung']:,} tokens"


def read_report(plan: dict[str, Any], results: Mapping[str, Result]) -> Report:
    """Summarize the results at the largest budget and with all labels, including summaries of smaller ones.

    Args:
        plan: Written by `describe_plan`; `root` may be the folder of the comparison, relative to the plan's.
        results: By the names of the steps.
    """
    plan = {"root": Path(plan["path"]).stem, **plan}
    whole = {name: result for name, result in results.items() if result.step.labels is None}
    report = read_rungs(plan, whole)
    fewer = {}
    for share in sorted({result.step.labels for result in results.values() if result.step.labels is not None}):
        own = {name: r for name, r in results.items() if r.step.labels == share or r.step.kind != "fine_tuning"}
        fewer[share] = read_rungs(plan, own)
    # Of every share: a failure that only a curve has would end the command as if all were well.
    failed = {name: error for at in (report, *fewer.values()) for name, error in at.failed.items()}
    together = compare_together(
        report.runs,
        report.draws,
        report.decisions,
        report.same,
        report.costs,
        [*plan["tasks"]],
        [method for method, tasks in report.unlearned.items() if not tasks],
    )
    return replace(report, fewer_labels=fewer, failed=failed, together=together)


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
    return replace(reports[-1], smaller=reports[:-1], failed=list_failed(racing))


def list_failed(results: Mapping[str, Result]) -> dict[str, str]:
    """Return the steps that failed, with the reason."""
    return {name: result.error for name, result in results.items() if not result.is_done}


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
    unjudged = find_unjudged(plan, runs)
    # Of rows that are not judged no difference is computed; Holm's correction counts them all the same.
    judged = [run for (method, _, _), run in runs.items() if method not in unjudged]
    draws, same = draw_runs(judged, list(plan["tasks"])), find_same_models(runs)
    stable = [method for method, tasks in unlearned.items() if not tasks]
    evaluations = read_evaluations(plan, done)
    codes: dict[str, list[str]] = defaultdict(list)
    for result in done:
        codes[result.environment.get("code") or "unknown"].append(result.step.name)
    return Report(
        plan=plan,
        scores=scores,
        floors=dict(floors),
        unlearned=unlearned,
        decisions=compare_rows(draws, [(own, other) for own, other in plan["pairs"]], stable, same),
        differences={m: compare_tasks(m, draws, same) for m in plan["titles"]},
        gains=compare_with_start(draws, same),
        costs={method: read_costs(method, plan, done, starts) for method in plan["titles"]},
        losses=read_losses(evaluations),
        other_tokens=find_other_tokens(evaluations),
        cached={name for (name, _, _), run in runs.items() if {*CACHE_FLAGS} & run.step.flags.keys()},
        commands={method: list_commands(method, plan, done, starts) for method in plan["titles"]},
        failed=list_failed(results),
        codes=dict(codes),
        minutes=[r.seconds / 60 for r in done if r.step.kind == "pretraining" and r.seconds is not None],
        draws=draws,
        examples={task: max(int(run.metrics.get("train_samples", 0)), 0) for (_, task, _), run in runs.items()},
        unjudged=unjudged,
        missing=find_missing(plan, list(results.values())),
        validation=score_validation(plan, done),
        runs=runs,
        same=same,
    )


def find_unjudged(plan: dict[str, Any], runs: Mapping[tuple[str, str, str], Result]) -> dict[str, str]:
    """Return the rows that a probe cannot judge, with the row whose states they have.

    A method that trains weights beside a frozen encoder, such as VarMAE, may leave the states that a probe reads as
    they are. Its predictions are then those of the row that it starts from, but for rounding, if another processor made
    them.
    """
    found = {}
    for method, options in plan["methods"].items():
        trained, start = RECIPES[options["recipe"]].method, options["after"] or NO_ADAPTATION
        if plan["evaluation"] != "probe" or trained is None or METHODS[trained].trains_stock_model:
            continue
        predicted: dict[str, dict[str, Predictions]] = {method: {}, start: {}}
        for (name, task, _), run in runs.items():
            if name in predicted and run.predictions is not None:
                predicted[name][task] = run.predictions
        own, other = predicted[method], predicted[start]
        shares = [each.measure_agreement(other[task]) for task, each in own.items() if task in other]
        if shares and len(shares) == len(own) and min(shares) >= SAME_STATES:
            found[method] = start
    return found


def find_missing(plan: dict[str, Any], results: list[Result]) -> dict[str, list[str]]:
    """Return the tasks that lack results, also failed ones, by row; rows that left a race lack nothing."""
    counts: dict[tuple[str, str], int] = defaultdict(int)
    pretrained = set()
    for step in [result.step for result in results if result.step.kind == "fine_tuning"]:
        counts[str(step.method), str(step.task)] += 1
        pretrained |= {step.method} if step.pretraining_seed is not None else set()
    planned = plan.get("steps", {})
    missing = {}
    for method, options in plan["methods"].items():
        if method in plan.get("left", {}):
            continue
        seeds = 1 if plan["evaluation"] == "probe" else len(plan["seeds"])
        seeds *= len(plan["pretraining_seeds"]) if method in pretrained else 1
        lacking = [
            task
            for task, own in plan["tasks"].items()
            if (options["tasks"] is None or task in options["tasks"])
            and counts[method, task] < seeds * (own["folds"] or 1)
            and (own["folds"] is None or any(name.startswith(f"{method}-{task}-fold1") for name in planned))
        ]
        if lacking:
            missing[method] = lacking
    return missing


def hide_tests(results: Iterable[Result]) -> list[Result]:
    """Return results with the predictions for the validation sets in the place of those for the test sets."""
    blind = [replace(result, predictions=result.validation, score=None) for result in results if result.is_done]
    return [result for result in blind if result.predictions is not None]


def score_validation(plan: dict[str, Any], done: list[Result]) -> dict[str, dict[str, float]]:
    """Return the mean scores on the validation sets by method and task; nothing of the test sets is read."""
    scores: dict[tuple[str, str], list[float]] = defaultdict(list)
    for (method, task, _), run in gather_runs(plan, hide_tests(done)).items():
        assert run.predictions is not None
        scores[method, task].append(run.predictions.score().compute())
    found: dict[str, dict[str, float]] = {method: {} for method in plan["titles"]}
    for (method, task), values in scores.items():
        found[method][task] = statistics.mean(values)
    return found


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
    draws: dict[str, dict[str, dict[RunSeeds, Any]]] = defaultdict(dict)
    for number, task in enumerate(tasks):
        scores: dict[str, dict[RunSeeds, Any]] = defaultdict(dict)
        for run in runs:
            if run.step.task == task and run.predictions is not None:
                scores[str(run.step.method)][run.step.pretraining_seed, run.step.seed] = run.predictions.score()
        for method, drawn in (draw_scores(scores, seed=number) if scores else {}).items():
            draws[method][task] = drawn
    return dict(draws)


def find_same_models(runs: Mapping[tuple[str, str, str], Result]) -> list[Set[str]]:
    """Return the pairs of rows whose runs with the same seeds have the same model: only a vote differs."""
    trainings: dict[str, dict[tuple[str, str], Any]] = defaultdict(dict)
    for (method, task, seeds), run in runs.items():
        flags = {name: value for name, value in run.step.flags.items() if name != "nearest_vote"}
        trainings[method][task, seeds] = flags, run.step.needs
    return [
        {own, other}
        for own, other in combinations(trainings, 2)
        if (shared := trainings[own].keys() & trainings[other].keys())
        and all(trainings[own][run] == trainings[other][run] for run in shared)
    ]


def compare_tasks(method: str, draws: Mapping[str, Draws], same: Collection[Set[str]]) -> dict[str, Difference]:
    """Return the difference to the baseline on each task, which explains the mean but does not decide."""
    if method == BASELINE:
        return {}
    own, baseline, is_same = draws.get(method, {}), draws.get(BASELINE, {}), {method, BASELINE} in same
    pairs = {
        task: compare_draws({task: own[task]}, {task: baseline.get(task, {})}, has_same_models=is_same) for task in own
    }
    return {task: difference for task, difference in pairs.items() if difference is not None}


def compare_with_start(draws: Mapping[str, Draws], same: Collection[Set[str]]) -> dict[str, Difference]:
    """Return the gain of each row over the unadapted encoder, with intervals of single comparisons."""
    start = draws.get(NO_ADAPTATION, {})
    gains = {
        method: compare_draws(own, start, draws.values(), {method, NO_ADAPTATION} in same)
        for method, own in draws.items()
        if own is not start
    }
    return {method: gain for method, gain in gains.items() if gain is not None}


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
    if not encoders and not runs:
        return {}
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
    """List an encoder's result and those of all that it was trained from; empty if one of them is missing."""
    found: dict[str, Result] = {}
    needed = [encoder.step.address]
    while needed:
        address = needed.pop()
        if (result := starts.get(address)) is None:
            return []
        if address not in found and result.step.kind in ("pretraining", "average", "trunk"):
            found[address] = result
            needed += result.step.needs
    return [*found.values()]


def find_preparation(method: str, done: list[Result]) -> list[Result]:
    """Return the vocabulary expansions, datastores and choices of text that a method reads, its own or shared ones."""
    needed = {name for result in done if result.step.method == method for name in result.step.needs}
    kinds = ("vocabulary", "datastore", "selection")
    return [r for r in done if r.step.kind in kinds and r.step.address in needed]


def read_evaluations(plan: dict[str, Any], done: list[Result]) -> dict[str, list[Result]]:
    """Return the evaluations of every encoder by its title; encoders of TAPT for one corpus share a title."""
    corpora = {name: name for name in plan["corpora"]} | {name: task["corpus"] for name, task in plan["tasks"].items()}
    titles = {"encoder": START_TITLE, **plan["titles"]}
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
    usual = known[START_TITLE][0] if START_TITLE in known else statistics.mode(chain.from_iterable(known.values()))
    return {title for title, vocabularies in known.items() if set(vocabularies) != {usual}}

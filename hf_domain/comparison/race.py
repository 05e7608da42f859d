"""A race: rows that are clearly behind on validation leave at a rung, so that tokens go to the others.

At each number of tokens but the last, every row is compared with the leader, the row with the best mean over the tasks:
a paired bootstrap of the validation examples, with the variance of the seeds, as in `statistics`. A row leaves if its
one-sided p is below `ALPHA` divided by the number of such comparisons in the whole race. Whichever row leads, the row
that is truly best then leaves in at most 5 of 100 races (Bonferroni over all rows that could lead by chance).
`benchmarks/p_values.py --race` measures it.

The test set takes no part: predictions for it are dropped before anything is compared.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hf_domain.comparison.descriptions import Job
from hf_domain.comparison.plan import Plan
from hf_domain.comparison.results import Result
from hf_domain.comparison.statistics import ALPHA, Draws, average_tasks, compare_draws
from hf_domain.comparison.summary import draw_runs, gather_runs, hide_tests
from hf_domain.methods import BASELINE, NO_ADAPTATION


@dataclass(frozen=True)
class Left:
    """Where and why a row left the race."""

    rung: int
    """Tokens."""
    leader: str
    """The row with the best mean on validation."""
    behind: float
    """Points."""
    p: float
    """One-sided."""
    bound: float
    """Below which a row leaves."""


def find_left(plan: Plan, jobs: Sequence[Job], results: Mapping[str, Result]) -> dict[str, Left]:
    """Return the rows that have left so far, by the rungs that all rows have reached.

    Args:
        plan: What is compared.
        jobs: All steps of the plan.
        results: By the names of the steps.
    """
    left: dict[str, Left] = {}
    rungs = plan.budget.rungs if plan.race else []
    for rung in rungs[:-1]:
        racing = [job for job in list_needed(jobs, left) if is_score(job) and job.step.rung in (None, rung)]
        if any(job.name not in results for job in racing):
            break
        draws = draw_validation(plan, [results[job.name] for job in racing])
        slow = find_slow(plan, draws, left, rung)
        # What trained nothing has no rung, and nothing to save.
        left |= {row: one for row, one in slow.items() if any(j.step.method == row and j.step.rung for j in racing)}
    return left


def draw_validation(plan: Plan, results: Sequence[Result]) -> dict[str, Draws]:
    """Return the scores of the rows on resampled validation sets; nothing of the test sets is left in the results."""
    tasks: dict[str, Any] = {name: {"folds": task.folds} for name, task in plan.tasks.items()}
    runs = gather_runs({"tasks": tasks}, hide_tests(results))
    return draw_runs([*runs.values()], [*tasks])


def find_slow(plan: Plan, draws: Mapping[str, Draws], left: Collection[str], rung: int) -> dict[str, Left]:
    """Return the rows that leave at a rung.

    Args:
        plan: What is compared.
        draws: Draws of the rows that race.
        left: The rows that have left before.
        rung: Tokens.
    """
    bound = ALPHA / (len(plan.methods) - 1) / (len(plan.budget.rungs) - 1)
    whole = [row for row, own in draws.items() if {*own} == {*plan.tasks}]
    if not whole:
        return {}
    leader = max(whole, key=lambda row: average_tasks(draws[row], [*plan.tasks])[0])
    slow = {}
    for row, own in draws.items():
        difference = None if row == leader else compare_draws(draws[leader], own, draws.values())
        if difference is not None and difference.p is not None and difference.mean > 0 and difference.p / 2 < bound:
            slow[row] = Left(rung, leader, difference.mean, difference.p / 2, bound)
    staying = list_staying(plan, plan.methods.keys() - slow.keys() - {*left})
    return {row: one for row, one in slow.items() if row not in staying}


def list_staying(plan: Plan, rows: set[str]) -> set[str]:
    """List the rows that stay: the baseline, no adaptation, and what rows of the race start from or are compared with.

    Without its counterpart a row that stays would be left with a comparison that nothing decides.
    """
    staying = {BASELINE, NO_ADAPTATION}
    found = rows | staying & plan.methods.keys()
    while found:
        others = {plan.methods[row].after for row in found} | {plan.find_counterpart(row) for row in found}
        found = {row for row in others if row is not None} - staying
        staying |= found
    return staying


def list_due(plan: Plan, jobs: Sequence[Job], results: Mapping[str, Result]) -> list[Job]:
    """List the steps that can run now, done or not: in a race those up to the first rung that rows have not reached."""
    if not plan.race:
        return [*jobs]
    needed, due = list_needed(jobs, find_left(plan, jobs, results)), set[str]()
    for rung in plan.budget.rungs:
        due = {job.name for job in needed if job.step.rung is None or job.step.rung <= rung}
        if any(job.name not in results for job in needed if job.name in due and is_score(job)):
            break
    return list_with_needs(jobs, due)


def list_needed(jobs: Sequence[Job], left: Mapping[str, Left]) -> list[Job]:
    """List the steps that the remaining rows need."""

    def is_kept(job: Job) -> bool:
        out = left.get(str(job.step.method))
        return out is None or job.step.rung is None or job.step.rung <= out.rung

    scored = {job.name for job in jobs if job.step.kind == "fine_tuning" and is_kept(job)}
    kept = {job.name for job in list_with_needs(jobs, scored)}
    # The loss of an encoder that nothing is scored on is not needed, either.
    losses = {job.name for job in jobs if job.step.kind == "evaluation" and {*job.step.needs} <= kept}
    return list_with_needs(jobs, scored | losses)


def list_with_needs(jobs: Sequence[Job], names: set[str]) -> list[Job]:
    """List steps and all that they need, in the order of the plan."""
    wanted = {*names}
    for job in reversed(jobs):
        if job.name in wanted:
            wanted.update(job.step.needs)
    return [job for job in jobs if job.name in wanted]


def is_score(job: Job) -> bool:
    """Return whether a step scores a row, and decides in a race."""
    return job.step.kind == "fine_tuning" and job.step.labels is None


def describe_left(left: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    """Say which rows left the race, where and why; `left` is as `plan.json` has it."""
    parts = []
    for row, one in left.items():
        behind = f"{one['behind']:.1f} points behind {titles[one['leader']]}"
        p = f"one-sided p {one['p']:.2g}, below {one['bound']:.2g}"
        parts.append(f"{titles[row]} at {one['rung']:,} tokens ({behind}, {p})")
    return f"By validation scores alone, these rows left the race: {'; '.join(parts)}." if parts else ""

"""The fine-tuned models that a comparison keeps: by default, for each task the one with the best validation score."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from hf_domain.comparison.results import Result

# Patterns of the files that a step without a kept model does not need.
WEIGHTS = "*.safetensors"


def get_validation_score(result: Result, metric: str | None) -> float | None:
    """Return the score on the validation set, as the commands call it; None if it was not measured."""
    return result.metrics.get(f"eval_{'f1' if metric == 'entity_f1' else metric}")


def find_best_runs(results: Iterable[Result], rungs: Iterable[int] = ()) -> dict[str, Result]:
    """Return for each task the fine-tuning with the best validation score, of any method and seed.

    Only runs at the largest budget and on all labels count: the tables that a card shows have no others. The test set
    is not read: its score stays an estimate of what the model does on new texts.

    Args:
        results: The results of a plan.
        rungs: The numbers of tokens of the plan, while there may be no results yet of the largest.
    """
    results = [*results]
    best: dict[str, tuple[float, Result]] = {}
    largest = max([*rungs, *(result.step.rung or 0 for result in results)], default=0)
    for result in results:
        score = get_validation_score(result, result.step.metric)
        if result.step.rung not in (None, largest) or result.step.labels not in (None, 1):
            continue
        is_trained = result.step.kind == "fine_tuning" and bool(result.step.flags.get("do_train"))
        if not is_trained or not result.is_done or score is None:
            continue
        task = str(result.step.task)
        if task not in best or score > best[task][0]:
            best[task] = score, result
    return {task: result for task, (_, result) in best.items()}


def list_kept(keep_models: str, results: Mapping[str, Result], rungs: Iterable[int] = ()) -> set[str]:
    """Return the names of the fine-tunings whose models are kept.

    Args:
        keep_models: As in the plan: best, all or none.
        results: By the names of their steps.
        rungs: See `find_best_runs`: a run that was the best of a smaller budget would cost the best of all its model.
    """
    runs = {name for name, result in results.items() if result.step.kind == "fine_tuning" and result.is_done}
    best = {result.step.name for result in find_best_runs(results.values(), rungs).values()}
    return {"best": best, "all": runs, "none": set()}[keep_models]


def has_model(output_dir: Path, result: Result) -> bool:
    """Return whether the model of a step is there."""
    return any((output_dir / "steps" / result.step.address).glob(WEIGHTS))


def drop_models(output_dir: Path, results: Mapping[str, Result], kept: set[str]) -> None:
    """Delete the weights of the fine-tunings that are not kept."""
    for name, result in results.items():
        if result.step.kind == "fine_tuning" and name not in kept:
            for file in (output_dir / "steps" / result.step.address).glob(WEIGHTS):
                file.unlink()


def find_models(output_dir: Path, results: Mapping[str, Result]) -> dict[str, Result]:
    """Return for each task the fine-tuning with the best validation score, if its model is there."""
    return {task: run for task, run in find_best_runs(results.values()).items() if has_model(output_dir, run)}

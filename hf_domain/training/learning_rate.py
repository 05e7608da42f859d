"""Choose the learning rate of a fine-tuning on its validation set."""

import copy
import json
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from transformers import set_seed

from hf_domain.checks import DivergenceError
from hf_domain.safe_io import read_json, write_text
from hf_domain.tasks import baseline
from hf_domain.tasks.kind import DataArguments
from hf_domain.training.arguments import FineTunerArguments, FineTuningArguments
from hf_domain.training.cards import DECIDING
from hf_domain.training.exporting import check_export
from hf_domain.training.run_files import RATES
from hf_domain.training.run_folder import run_in_folder
from hf_domain.training.terminal import name_metric

logger = logging.getLogger(__name__)

TRIALS = RATES.removesuffix(".json")  # a run never pushes what begins with _


def fine_tune_in_folder(run: Callable[..., Any], *arguments: Any) -> None:
    """Run the script of a task in its output folder, at the best of `--learning_rates`; see `run_in_folder`."""
    check_export(arguments[0], arguments[1], arguments[-1])
    run_in_folder(partial(run_at_best_rate, run), *arguments)


def run_at_best_rate(
    run: Callable[..., Any],
    model_args: FineTuningArguments,
    data_args: DataArguments,
    passage_args: Any,
    training_args: FineTunerArguments,
) -> Any:
    """Run the script of a task. Of several learning rates, try each, then train at the best one on validation.

    The scores of a killed run are kept in `_rates.json`. A rate whose training diverges loses; its score is null.

    Args:
        run: Takes the arguments and returns a `FineTuner`.

    Raises:
        ValueError: There is no validation, or a single learning rate is given too. Or it is not known whether a higher
            `metric_name` is better, or every rate diverges.
    """
    rates = model_args.learning_rates
    if not rates:
        return run(model_args, data_args, passage_args, training_args)
    if not (training_args.do_train and training_args.do_eval) or training_args.learning_rate is not None:
        raise ValueError(
            "--learning_rates needs --do_train, --do_eval and validation data, and no --learning_rate, but "
            f"do_train is {training_args.do_train}, do_eval is {training_args.do_eval} and learning_rate is "
            f"{training_args.learning_rate}. Add or remove flags."
        )
    chosen = getattr(data_args, "metric_name", None)
    if chosen is not None and chosen not in baseline.BETTER:
        raise ValueError(
            f"--learning_rates needs a metric of which it is known whether more is better, but {chosen} may be an "
            "error. Leave out --metric_name."
        )
    folder = Path(str(training_args.output_dir))
    file = folder / RATES
    scores: dict[str, Any] = {}
    if file.is_file() and not model_args.overwrite_output_dir:
        scores = read_json(file)
    with warn_once():
        for rate in rates:
            if f"{rate:g}" not in scores:
                trial = copy.copy(training_args)
                trial.output_dir, trial.learning_rate = str(folder / TRIALS / f"{rate:g}"), rate
                trial.do_predict = trial.push_to_hub = False
                trial.resume_from_checkpoint = None
                set_seed(training_args.seed)
                try:
                    with hide_trial():
                        trainer = run(replace(model_args, export=False), data_args, passage_args, trial)
                except DivergenceError as error:
                    scores[f"{rate:g}"] = None
                    logger.info(f"Learning rate {rate:g}: no score, because {error}")
                else:
                    metrics = trainer.evaluated.metrics
                    deciding = chosen or next(name for name in DECIDING if f"eval_{name}" in metrics)
                    scores[f"{rate:g}"] = baseline.BETTER[deciding] * metrics[f"eval_{deciding}"]
                    logger.info(f"Learning rate {rate:g}: {name_metric(deciding)} {metrics[f'eval_{deciding}']:.4g}")
                if training_args.should_save:
                    shutil.rmtree(folder / TRIALS, ignore_errors=True)
                    write_text(file, json.dumps(scores) + "\n")
        best = copy.copy(training_args)
        best.learning_rate = choose_best(rates, scores)
        logger.info(f"The learning rate is {best.learning_rate:g}, the best on validation of {len(rates)}.")
        set_seed(training_args.seed)
        return run(model_args, data_args, passage_args, best)


def choose_best(rates: list[float], scores: dict[str, float | None]) -> float:
    """Return the rate with the highest score; a training without one diverged."""
    finished = [rate for rate in rates if scores[f"{rate:g}"] is not None]
    if not finished:
        raise ValueError(
            "at least one of --learning_rates must train to its end, but the training diverges at each of "
            f"{', '.join(f'{rate:g}' for rate in rates)}. Add lower rates, or look for extreme values in the data."
        )
    return max(finished, key=lambda rate: scores[f"{rate:g}"])  # type: ignore[arg-type, return-value]


@contextmanager
def hide_trial() -> Iterator[None]:
    """Hide the messages of a trial, but not warnings on the data: only the last run says whether it learned."""
    levels = {"hf_domain": logging.WARNING, baseline.__name__: logging.ERROR}
    before = {name: logging.getLogger(name).level for name in levels}
    for name, level in levels.items():
        logging.getLogger(name).setLevel(max(before[name], level))
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


class NewWarnings(logging.Filter):
    """Lets a warning pass once."""

    def __init__(self) -> None:
        super().__init__()
        self.given: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log the record."""
        message = record.getMessage()
        is_new = record.levelno < logging.WARNING or message not in self.given
        self.given.add(message)
        return is_new


@contextmanager
def warn_once() -> Iterator[None]:
    """Hide repeated warnings: all trials, and the training after them, read the same data."""
    filters = [(handler, NewWarnings()) for handler in logging.getLogger("hf_domain").handlers]
    for handler, new in filters:
        handler.addFilter(new)
    try:
        yield
    finally:
        for handler, new in filters:
            handler.removeFilter(new)

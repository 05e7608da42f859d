"""What a run says in the terminal: a progress bar or lines, its scores, and what transformers reports too long."""

import io
import logging
import pickle
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import datasets
import transformers
from tqdm.auto import tqdm
from transformers import (
    PreTrainedModel,
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainingArguments,
)

logger = logging.getLogger(__name__)

# A run logs its loss at least this often. Many runs are shorter than the default of --logging_steps, 500.
LEAST_LOGS = 10
# Metrics that the terminal does not show; all_results.json has them.
UNSAID = {
    *("runtime", "model_preparation_time", "samples", "samples_per_second", "steps_per_second", "epoch", "grad_norm"),
    *("learning_rate", "total_flos", "step", "num_input_tokens_seen"),
}
PLACES = {"eval": "Validation", "predict": "Test"}
LINE = "step {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]"
# A line of transformers' report of new weights. A checkpoint often has no pooler, and a mean of states reads none.
LOST = re.compile(r"^(?!\S*pooler\.).*\| \S*MISSING", re.MULTILINE)


class TerminalHandler(logging.Handler):
    """Prints log records to the current stdout, above a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        try:
            tqdm.write(self.format(record), file=sys.stdout)
            sys.stdout.flush()
        except (OSError, ValueError):
            self.handleError(record)


class QuietFormatter(logging.Formatter):
    """Marks only warnings and errors with their level."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        text = super().format(record)
        return text if record.levelno < logging.WARNING else f"{record.levelname.lower()}: {text}"


def start_logging(training_args: TrainingArguments | None = None, verbose: bool = False) -> None:
    """Set up what this process logs.

    Args:
        training_args: `log_level` "passive" shows our messages and the libraries' warnings, as a command that does not
            train (None) always does.
        verbose: Also show the libraries' messages and progress bars, and all arguments.
    """
    level, own_level = logging.WARNING, logging.INFO
    if training_args is not None:
        level = training_args.get_process_log_level()
        own_level = logging.INFO if training_args.should_log and training_args.log_level == "passive" else level
    if verbose:
        level = min(level, own_level)
    else:
        transformers.utils.logging.disable_progress_bar()  # for loading and saving weights
        if not shows_bar(training_args):
            datasets.disable_progress_bars()
    own = logging.getLogger("hf_domain")
    for handler in [handler for handler in own.handlers if isinstance(handler, TerminalHandler)]:
        own.removeHandler(handler)  # from an earlier run in this process
    terminal = TerminalHandler()
    format_verbosely = logging.Formatter("%(asctime)s - %(levelname)s - %(name)s - %(message)s")
    terminal.setFormatter(format_verbosely if verbose else QuietFormatter())
    own.addHandler(terminal)
    own.setLevel(own_level)
    datasets.utils.logging.set_verbosity(level)
    transformers.utils.logging.set_verbosity(level)
    if verbose:
        logger.info(f"Training/evaluation parameters {training_args}")


def shows_bar(training_args: TrainingArguments | None = None) -> bool:
    """Return whether stdout can show a bar. In a file, each state of the bar would be a line."""
    return sys.stderr.isatty() and (training_args is None or not training_args.disable_tqdm)


@contextmanager
def show_bars(shows: bool) -> Iterator[None]:
    """Hide the bars of `datasets` and `transformers` unless `shows`; bars that are hidden already stay so."""
    libraries: list[Any] = [datasets.utils.logging, transformers.utils.logging]
    hidden = [library for library in libraries if not shows and library.is_progress_bar_enabled()]
    for library in hidden:
        library.disable_progress_bar()
    try:
        yield
    finally:
        for library in hidden:
            library.enable_progress_bar()


@contextmanager
def hide_load_report(*, is_encoder: bool = False) -> Iterator[None]:
    """Hide transformers' report of new weights (16 lines for a head); `report_new_weights` logs one line.

    Args:
        is_encoder: No new weights are expected but those of a pooler: the report of others is shown.
    """

    def is_other(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if "LOAD REPORT" not in text or "MISMATCH" in text or "CONVERSION" in text:
            return True
        return is_encoder and LOST.search(text) is not None

    reporter = logging.getLogger("transformers.modeling_utils")
    if reporter.isEnabledFor(logging.INFO):  # --verbose, or --log_level info
        yield
        return
    reporter.addFilter(is_other)
    try:
        yield
    finally:
        reporter.removeFilter(is_other)


@contextmanager
def explain_pickles(name: str) -> Iterator[None]:
    """Turn torch's refusal of a pickle with code into one sentence.

    Raises:
        ValueError: The weights are such a pickle.
    """
    try:
        yield
    except pickle.UnpicklingError:
        raise ValueError(
            f"the weights of {name} must be tensors alone, but its pickle contains code, which was not run. Use a "
            "checkpoint with safetensors."
        ) from None


def report_new_weights(model: PreTrainedModel, lost: set[str], is_head_new: bool) -> None:
    """Log which weights are missing in a checkpoint, and warn if they do not belong to a new head.

    Args:
        lost: Names of the missing weights.
        is_head_new: Whether a new head is expected.
    """
    encoder = f"{model.base_model_prefix}."
    head = {name for name in lost if not name.startswith(encoder) or ".pooler." in name} if is_head_new else set()
    if head:
        parts = ", ".join(sorted({name.rpartition(".")[0] for name in head}))
        logger.info(f"New weights, missing in the checkpoint: {parts}")
    if missing := sorted(lost - head):
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        logger.warning(
            f"The checkpoint must have all weights except those of a new head, but {', '.join(missing[:5])}{more} are "
            f"missing and start at random. Check that it was saved from a {type(model).__name__} or its encoder."
        )


class Progress(ProgressCallback):
    """Shows step, time left, steps per second and losses: in a terminal as transformers' bar, in a file as lines."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the bar; without a terminal it stays unseen, and its state becomes a line."""
        if args.logging_strategy == "steps":
            state.logging_steps = min(state.logging_steps, max(1, state.max_steps // LEAST_LOGS))
        if not state.is_world_process_zero:
            return
        examples = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        precision = " in bfloat16" if args.bf16 else ""
        logger.info(f"Training on {args.device}{precision}: {state.max_steps:,} steps of {examples:,} examples")
        if args.warmup_steps >= max(1, state.max_steps) and args.lr_scheduler_type != "constant":
            logger.warning(
                f"the learning rate warms up for {args.warmup_steps:,.0f} steps, but training has only "
                f"{state.max_steps:,} and never reaches it. Use fewer --warmup_steps, or a fraction such as 0.1."
            )
        self.current_step = state.global_step
        unseen = {"bar_format": LINE, "file": io.StringIO(), "mininterval": float("inf")}
        options: dict[str, Any] = {"dynamic_ncols": True} if shows_bar(args) else unseen
        self.training_bar = tqdm(total=state.max_steps, initial=state.global_step, **options)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Show the losses."""
        if self.training_bar is None or "loss" not in (logs or {}):
            return
        losses = {name: value for name, value in logs.items() if not name.startswith("train_")}
        self.training_bar.set_postfix_str(describe_scores(losses), refresh=shows_bar(args))
        if not shows_bar(args):
            logger.info(str(self.training_bar))

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # type: ignore[override]
        """Move the bar of an evaluation."""
        if shows_bar(args):
            super().on_prediction_step(args, state, control, **kwargs)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        """Show the scores of an evaluation during training. Other scores are printed when they are saved."""
        super().on_evaluate(args, state, control, **kwargs)
        if self.training_bar is not None and metrics:
            logger.info(f"step {state.global_step}: {describe_metrics('eval', metrics)}")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leave the bar as it is."""
        if self.training_bar is not None:
            super().on_train_end(args, state, control, **kwargs)


def show_progress(trainer: Trainer) -> None:
    """Replace Trainer's progress display by ours, except in a notebook, where it is a table."""
    callbacks = trainer.callback_handler.callbacks
    if any(type(callback) in (PrinterCallback, ProgressCallback) for callback in callbacks):
        trainer.remove_callback(PrinterCallback)
        trainer.remove_callback(ProgressCallback)
        trainer.add_callback(Progress())


def describe_scores(metrics: dict[str, Any], baseline: dict[str, Any] | None = None) -> str:
    """Return the numbers among the metrics, each beside the majority baseline's if there is one."""
    described = []
    for name, value in metrics.items():
        if type(value) in (int, float) and name not in UNSAID:
            majority = f" (majority baseline {baseline[name]:.4g})" if baseline and name in baseline else ""
            described.append(f"{name} {value:.4g}{majority}")
    return ", ".join(described)


def describe_metrics(split: str, metrics: dict[str, Any]) -> str:
    """Return the log line of a split: its scores, each beside the majority baseline's.

    Args:
        split: `eval` or `predict`.
        metrics: Scores with the prefix of the split, and metrics without one, such as perplexity.
    """
    own = {name.removeprefix(f"{split}_"): value for name, value in metrics.items()}
    baseline = {name.removeprefix("baseline_"): value for name, value in own.items() if name.startswith("baseline_")}
    scores = {name: value for name, value in own.items() if not name.startswith("baseline_")}
    samples = f", {own['samples']:,} examples" if "samples" in own else ""
    return f"{PLACES[split]}{samples}: {describe_scores(scores, baseline)}"


def describe_training(metrics: dict[str, Any], steps: int) -> str:
    """Return the log line of a finished training."""
    speed = metrics.get("train_tokens_per_second")
    return (
        f"Trained {metrics['trainable_parameters']:,} parameters for {steps:,} steps in "
        f"{timedelta(seconds=round(metrics['train_runtime']))}: loss {metrics['train_loss']:.4g}"
        f"{f', {speed:,.0f} tokens/s' if speed else ''}"
    )

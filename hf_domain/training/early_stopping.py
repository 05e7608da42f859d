"""Stop a training when its score stops improving, and keep the best weights."""

from typing import Any

from transformers import EarlyStoppingCallback, Trainer, TrainingArguments
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from hf_domain.tasks.baseline import BETTER
from hf_domain.training.callbacks import has_schedule

CHECKS, PATIENCE = 10, 3  # of a training that names no length; our choice


class LearnedStop(EarlyStoppingCallback):
    """Stops as transformers' callback does, but counts no check before the model beats the majority baseline.

    It never stops a model that `Annealing` changes: a RADA that explores with noise improves late, and half of its
    schedule would be left out.
    """

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any, model: Any = None, **kwargs: Any) -> None:  # type: ignore[override]
        """Count a check without a better score."""
        is_over = control.should_training_stop  # after the last step
        super().on_evaluate(args, state, control, metrics, **kwargs)
        explores = model is not None and has_schedule(model)
        if explores or not metrics.get("eval_beats_baseline", True):
            self.early_stopping_patience_counter, control.should_training_stop = 0, is_over


def check_often(args: TrainingArguments) -> None:
    """Evaluate ten times on the way, unless the run says how often."""
    if args.eval_strategy == "no":
        args.eval_strategy, args.eval_steps = IntervalStrategy.STEPS, 1 / CHECKS


def stop_early(
    trainer: Trainer, deciding: str, patience: int, callback: type[EarlyStoppingCallback] = EarlyStoppingCallback
) -> None:
    """Stop training when the score stops improving, and keep the best weights.

    The model is evaluated after each epoch unless `--eval_strategy` says otherwise.

    Args:
        deciding: Metric that must improve.
        patience: Stop after this many evaluations without a better score.
        callback: What counts them.

    Raises:
        ValueError: The run does not train and evaluate, or it is not known whether higher scores are better.
    """
    args = trainer.args
    if not (args.do_train and args.do_eval):
        raise ValueError(
            "--early_stopping_patience needs --do_train, --do_eval and validation data, but "
            f"do_train is {args.do_train} and do_eval is {args.do_eval}. Add them, or remove the flag."
        )
    if args.metric_for_best_model is None and deciding not in BETTER:
        raise ValueError(
            f"--early_stopping_patience needs a metric of which it is known whether more is better, but {deciding} may "
            f"be an error. Add --metric_for_best_model {deciding} and --greater_is_better true or false."
        )
    if args.eval_strategy == "no":
        args.eval_strategy = IntervalStrategy.EPOCH
    args.save_strategy, args.save_steps = SaveStrategy(args.eval_strategy), args.eval_steps or args.save_steps
    args.save_total_limit = args.save_total_limit or 1
    args.load_best_model_at_end = True
    if args.metric_for_best_model is None:
        args.metric_for_best_model, args.greater_is_better = deciding, BETTER[deciding] > 0
    # A resumed run continues to count the evaluations without a better score.
    args.restore_callback_states_from_checkpoint = True
    trainer.add_callback(callback(patience))


def describe_stop(trainer: Trainer, patience: int | None) -> str:
    """Say how long a training took that named no length, and why it stopped."""
    args, state = trainer.args, trainer.state
    taken = f"{state.global_step:,} of {state.max_steps:,} steps"
    if patience is None:
        return f"Trained {taken}. No validation score could stop the training, or choose the best weights."
    metric = str(args.metric_for_best_model).removeprefix("eval_")
    best = f"The weights of step {state.best_global_step:,} are kept, with the best {metric} on validation"
    if state.best_metric is not None:
        best += f", {state.best_metric:.4g}"
    if state.global_step < state.max_steps:
        return f"Stopped after {taken}: {patience} checks without a better {metric}. {best}."
    return f"Trained all {state.max_steps:,} steps, the limit of a training without --num_train_epochs. {best}."

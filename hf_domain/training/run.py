"""The steps that all scripts of examples/ share: logging, tokenizer, training, evaluation, model card."""

import atexit
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, IterableDataset
from huggingface_hub import HfApi
from huggingface_hub.constants import ENDPOINT
from huggingface_hub.utils import DEFAULT_IGNORE_PATTERNS, filter_repo_objects
from transformers import (
    AutoTokenizer,
    EarlyStoppingCallback,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerState,
    TrainingArguments,
    set_seed,
)
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_utils import PredictionOutput

from hf_domain.checks import NonFiniteStop, check_metrics, check_predictions
from hf_domain.data.corpora import check_length
from hf_domain.hub import check_memory_reference, commit_files, is_hub_id, retry_on_the_hub
from hf_domain.methods.rada.passages import count_positions
from hf_domain.safe_io import UNFINISHED, begin_writing, end_writing, read_json, write_text
from hf_domain.tasks.baseline import BETTER, warn_if_unlearned
from hf_domain.training.arguments import ModelArguments
from hf_domain.training.callbacks import Annealing, PushCodeCallback, StepTimer
from hf_domain.training.cards import make_run_card
from hf_domain.training.device import warn_of_slow_bfloat16
from hf_domain.training.early_stopping import PATIENCE, LearnedStop, check_often, describe_stop, stop_early
from hf_domain.training.method_rate import use_method_rate
from hf_domain.training.run_folder import MADE, START_RESULTS, STATE, drop_checkpoint
from hf_domain.training.sharding import prepare_sharding
from hf_domain.training.streams import read_stream
from hf_domain.training.terminal import (
    describe_metrics,
    describe_training,
    show_progress,
    start_logging,
)

logger = logging.getLogger(__name__)


def start_run(training_args: TrainingArguments, verbose: bool = False) -> None:
    """Set up logging and the seed as the scripts of transformers do.

    Args:
        verbose: Show all arguments and the messages of the libraries.

    Raises:
        ValueError: This process sees several GPUs.
    """
    if training_args.n_gpu > 1:
        # Trainer would split each batch between threads (`nn.DataParallel`). The modules that a method adds, and
        # passages that a batch shares, would then be on the wrong GPU.
        raise ValueError(
            f"each process must train on one GPU, but sees {training_args.n_gpu}. Start a process for each GPU with "
            f"torchrun --nproc_per_node {training_args.n_gpu}, or choose one with CUDA_VISIBLE_DEVICES=0."
        )
    start_logging(training_args, verbose)
    warn_of_slow_bfloat16(training_args)
    keep_private(training_args)
    if training_args.include_num_input_tokens_seen == "no":  # for the tokens per second
        training_args.include_num_input_tokens_seen = "non_padding"
    if training_args.device.type == "cpu":
        training_args.dataloader_pin_memory = False  # without a GPU, torch warns about it in every epoch
    set_seed(training_args.seed)
    atexit.register(leave_process_group)


def keep_private(training_args: TrainingArguments) -> None:
    """Keep the Hub token and Trainer's pickled arguments out of the files that a run pushes.

    Args:
        training_args: `hub_token` is cleared and exported as HF_TOKEN.
    """
    if training_args.hub_token is not None:
        os.environ["HF_TOKEN"], training_args.hub_token = training_args.hub_token, None
    # Trainer writes and pushes the file in one method, with ignore patterns of its own. The client adds these to all.
    if (pattern := f"*{TRAINING_ARGS_NAME}") not in DEFAULT_IGNORE_PATTERNS:
        DEFAULT_IGNORE_PATTERNS.append(pattern)


def leave_process_group() -> None:
    """Leave the process group of a distributed run, if there is one.

    Otherwise Gloo's threads may free Python tensors while the interpreter shuts down, which sometimes aborts a finished
    process.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def load_tokenizer(model_args: ModelArguments, max_seq_length: int | None) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model, or the one that `--tokenizer_name` names.

    Raises:
        ValueError: There is no tokenizer, or the length exceeds the model's limit.
    """
    name = model_args.tokenizer_name or model_args.model_name_or_path
    tokenizer = AutoTokenizer.from_pretrained(name, **model_args.hub_options)
    # Without tokenizer files transformers returns a tokenizer of special tokens only: every word is unknown.
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        raise ValueError(
            f"the model's folder must contain a tokenizer, but {name} has none. Name one with --tokenizer_name."
        )
    if max_seq_length is not None:
        check_length(tokenizer, max_seq_length)
    return tokenizer


def limit_length(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, max_seq_length: int | None) -> None:
    """Limit a tokenizer to the positions of its model: many on the Hub state no limit, and long texts would fail.

    Args:
        tokenizer: Changed in place, and saved with the change.
        max_seq_length: Length to check against the limit.

    Raises:
        ValueError: The length exceeds the limit.
    """
    if positions := count_positions(model):
        tokenizer.model_max_length = min(tokenizer.model_max_length, positions)
    if max_seq_length is not None:
        check_length(tokenizer, max_seq_length)


def run_training(trainer: Trainer, finish: Callable[[Trainer], None] | None = None) -> None:
    """Train, from `resume_from_checkpoint` if there is one, and save model, tokenizer, metrics and state.

    Args:
        finish: Called after training and before the model is saved.

    Raises:
        ValueError: The run pushes a model that needs a local folder.
    """
    timer = StepTimer()
    for callback in (Annealing(), PushCodeCallback(), NonFiniteStop(), timer):
        trainer.add_callback(callback)
    assert trainer.model is not None
    use_method_rate(trainer)
    if isinstance(trainer.train_dataset, IterableDataset):
        read_stream(trainer)
    if trainer.args.push_to_hub:
        config: Any = trainer.model.config
        check_memory_reference(config.to_dict())
    if trainer.is_fsdp_enabled:
        prepare_sharding(trainer)
    forget_truncation(trainer.processing_class)  # checkpoints contain the tokenizer too
    show_progress(trainer)
    trainable_parameters = sum(weight.numel() for weight in trainer.model.parameters() if weight.requires_grad)
    metrics = train(trainer, trainer.args.resume_from_checkpoint)
    metrics |= {"trainable_parameters": trainable_parameters, "learning_rate": trainer.args.learning_rate}
    if finish is not None:
        finish(trainer)
    if (steps_per_second := timer.compute()) is not None:
        metrics["train_warm_steps_per_second"] = round(steps_per_second, 3)
    start = Path(str(trainer.args.output_dir), START_RESULTS)
    if trainer.args.do_eval and start.is_file():  # perhaps written before the run was killed
        metrics |= read_json(start)
    save_model(trainer, replaced=MADE)
    save_metrics(trainer, "train", metrics, trainer.train_dataset)
    if trainer.is_world_process_zero():
        logger.info(describe_training(metrics, trainer.state.global_step))
    trainer.save_state()


def train(trainer: Trainer, checkpoint: str | None) -> dict[str, float]:
    """Train, or continue from a complete checkpoint, and return the metrics; `train_loss` covers all steps."""
    if checkpoint is None:
        return trainer.train().metrics
    state = TrainerState.load_from_json(os.path.join(checkpoint, STATE))
    before, steps = add_losses(state)
    args = trainer.args
    if args.max_steps > 0:
        is_left = state.global_step < args.max_steps
    else:  # more epochs than before, perhaps
        is_left = state.global_step < state.max_steps or (state.epoch or 0) < args.num_train_epochs - 1e-6
    if is_left or trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        metrics = trainer.train(resume_from_checkpoint=checkpoint).metrics
    else:
        metrics = load_trained(trainer, checkpoint, state)
    taken = trainer.state.global_step - state.global_step
    if taken + steps:  # Trainer's train_loss covers only the steps since the checkpoint
        metrics["train_loss"] = (metrics["train_loss"] * taken + before) / (taken + steps)
        trainer.state.log_history[-1]["train_loss"] = metrics["train_loss"]
    return metrics


def add_losses(state: TrainerState) -> tuple[float, int]:
    """Return the sum of the logged losses over all steps, and the number of these steps."""
    total, last = 0.0, 0
    for entry in state.log_history:
        if "loss" in entry:
            total, last = total + entry["loss"] * (entry["step"] - last), int(entry["step"])
    return total, last


def load_trained(trainer: Trainer, checkpoint: str, state: TrainerState) -> dict[str, float]:
    """Load the checkpoint of the last step. Resuming from it would train one more step."""
    trainer._load_from_checkpoint(checkpoint)
    trainer.state = state
    if trainer.args.load_best_model_at_end and state.best_model_checkpoint is not None:
        trainer._load_best_model()
    model: Any = trainer.model
    # Otherwise the evaluation prepares the model, and its runtime includes that.
    trainer.callback_handler.model = trainer.accelerator.prepare_model(model, evaluation_mode=True)
    metrics = {"train_runtime": 0.0, "train_loss": 0.0, "total_flos": state.total_flos}
    trainer.log(dict(metrics))
    trainer.callback_handler.on_train_end(trainer.args, trainer.state, trainer.control)
    return metrics


def forget_truncation(tokenizer: Any) -> None:
    """Reset the truncation and padding that the last call of a tokenizer set.

    They would be saved in tokenizer.json. Runtimes that read only this file (tokenizers, transformers.js) would then
    truncate every text to this run's length, or not if the run took its examples from a cache.
    """
    if (backend := getattr(tokenizer, "backend_tokenizer", None)) is not None:
        backend.no_truncation()
        backend.no_padding()


def save_model(trainer: Trainer, replaced: Sequence[str] = ()) -> None:
    """Save model and tokenizer into the output folder, completely or not at all; every process calls this.

    Nothing is pushed. `write_card` pushes at the end, so that an error of the Hub costs no evaluation or prediction.

    Args:
        replaced: Patterns of the previous model's files, which are deleted.
    """
    args = trainer.args
    folder = Path(str(args.output_dir))
    forget_truncation(trainer.processing_class)
    if args.should_save:
        begin_writing(folder)
    trainer.accelerator.wait_for_everyone()
    trainer.save_model(str(folder / UNFINISHED), _internal_call=True)
    trainer.accelerator.wait_for_everyone()
    if args.should_save:
        end_writing(folder, replaced)


def run_evaluation(trainer: Trainer) -> None:
    """Evaluate and save the metrics."""
    show_progress(trainer)
    save_metrics(trainer, "eval", trainer.evaluate(), trainer.eval_dataset)


def train_and_evaluate(
    trainer: Trainer, deciding: str, patience: int | None = None, finish: Callable[[Trainer], None] | None = None
) -> None:
    """Train if `--do_train` is set, then evaluate if `--do_eval` is set.

    Args:
        deciding: Metric for early stopping.
        patience: Stop after this many evaluations without a better score; None never stops early.
        finish: See `run_training`.
    """
    if (best := (trainer.args.metric_for_best_model or "").removeprefix("eval_")) in BETTER:
        trainer.args.greater_is_better = BETTER[best] > 0  # transformers takes every name but a loss for a gain
    args, is_open_ended = trainer.args, getattr(trainer, "is_open_ended", False)
    keeps_checkpoints = args.save_strategy != "no"
    if is_open_ended and args.do_eval and (args.metric_for_best_model is not None or deciding in BETTER):
        check_often(args)
        patience = PATIENCE if patience is None else patience
    if patience is not None:
        stop_early(trainer, deciding, patience, LearnedStop if is_open_ended else EarlyStoppingCallback)
    if trainer.args.do_train:
        run_training(trainer, finish)
    if is_open_ended and trainer.is_world_process_zero():
        logger.info(describe_stop(trainer, patience))
    if is_open_ended and not keeps_checkpoints and args.should_save:
        for checkpoint in Path(str(args.output_dir)).glob("checkpoint-*"):
            drop_checkpoint(checkpoint)  # only the best weights were wanted
    if trainer.args.do_eval:
        run_evaluation(trainer)


def run_prediction(trainer: Trainer, dataset: Dataset) -> PredictionOutput:
    """Return predictions and labels in the order of the examples, and save the metrics if there are labels."""
    show_progress(trainer)
    output = trainer.predict(dataset, metric_key_prefix="predict")
    check_predictions(output.predictions)
    save_metrics(trainer, "predict", output.metrics or {}, dataset)
    return output


def save_metrics(trainer: Trainer, split: str, metrics: dict[str, float], dataset: Any) -> None:
    """Print the metrics of a split and add them to all_results.json.

    Args:
        split: `train`, `eval` or `predict`.
        dataset: Adds the number of samples, which a stream does not have.
    """
    if hasattr(dataset, "__len__"):
        metrics = {**metrics, f"{split}_samples": len(dataset)}
    check_metrics(metrics)
    if split != "train" and trainer.is_world_process_zero():
        logger.info(describe_metrics(split, metrics))
    trainer.save_metrics(split, metrics)
    warn_if_unlearned(metrics, split)


def save_output(trainer: Trainer, name: str, text: str) -> None:
    """Write a file into the output folder, from one process."""
    if trainer.is_world_process_zero():
        assert trainer.args.output_dir is not None
        write_text(Path(trainer.args.output_dir, name), text)


def write_card(
    trainer: Trainer,
    task: str,
    model_args: ModelArguments,
    data_args: Any,
    passage_args: Any = None,
    call: str | None = None,
    **facts: Any,
) -> None:
    """Write the model card, push the folder in one commit with `--push_to_hub`, and log where all is.

    A run that neither trains nor pushes gets no card.

    Args:
        task: Pipeline tag of the Hub.
        call: A call from Python, for the card; it logs no folder.
        facts: Further arguments of `make_run_card`.
    """
    args = trainer.args
    if args.push_to_hub:
        model: Any = trainer.model
        check_memory_reference(model.config.to_dict())
        if trainer.hub_model_id is None:
            trainer.init_hf_repo()
        save_model(trainer)
    if not trainer.is_world_process_zero():
        return
    if args.do_train or args.push_to_hub:
        card = make_run_card(trainer, task, model_args, data_args, passage_args, command=call, **facts)
        write_text(Path(str(args.output_dir), "README.md"), str(card))
    if args.push_to_hub:
        trainer._finish_current_push()
        push_run(trainer, model_args.model_name_or_path)
    if call is None:
        repository = f", also at {ENDPOINT}/{trainer.hub_model_id}" if args.push_to_hub else ""
        logger.info(f"{'Model and card' if args.do_train else 'Results'}: {args.output_dir}{repository}")


def push_run(trainer: Trainer, name: str) -> None:
    """Push the folder of a run in one commit, which deletes a peft adapter at the top of the repository.

    transformers applies such an adapter to any weights beside it, even to weights that contain it already.

    Args:
        trainer: Must have saved the model and its card.
        name: Encoder as the user named it.
    """
    args = trainer.args
    assert args.output_dir is not None
    folder, ignored = Path(args.output_dir), ["_*", "checkpoint-*", *DEFAULT_IGNORE_PATTERNS]
    if not is_hub_id(name):
        ignored.append("adapter/*")  # its base is a local path, so others could not load it
    files = [file.relative_to(folder).as_posix() for file in sorted(folder.rglob("*")) if file.is_file()]
    names, repo_id = list(filter_repo_objects(files, ignore_patterns=ignored)), str(trainer.hub_model_id)
    options: Any = {"replaced": "adapter_*", "message": "End of training", "revision": args.hub_revision}
    api = HfApi(token=args.hub_token)
    retry_on_the_hub(lambda: commit_files(api, repo_id, folder, names, **options), repo_id)

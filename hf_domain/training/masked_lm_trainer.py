"""The trainer of masked LM, and its held-out losses."""

import logging
import math
from itertools import islice
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import EvalLoopOutput

from hf_domain.data.masking import PlacingCollator
from hf_domain.training.callbacks import MaskRenewal
from hf_domain.training.run import save_metrics
from hf_domain.training.terminal import show_progress

logger = logging.getLogger(__name__)

BLOCKS_TO_COUNT = 10_000  # a million tokens of 128 a block


class MaskedLMTrainer(Trainer):
    """transformers' Trainer with new masks in each epoch, and a held-out loss that depends on model and text alone.

    The stock Trainer averages the means of batches, so a batch with one masked token counts as much as one with a
    hundred, and it multiplies the loss of some models by the number of processes. Here the loss is the sum over the
    masked tokens divided by their number. An evaluation draws the masks of each example from it alone, and always the
    same ones. Label smoothing affects training only, because a perplexity is defined by the plain cross-entropy.

    Args:
        masking: The collator of data/masking.py or data/causal.py that draws the masks; others may wrap it.
    """

    def __init__(self, *args: Any, masking: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.masking = masking
        self.data_collator = PlacingCollator(self.data_collator, masking)
        if self.args.dataloader_persistent_workers:
            # They would repeat the masks of an epoch, and read the first evaluation's text in every later one.
            logger.warning(
                "--dataloader_persistent_workers has no effect here: its workers would repeat the first masks"
            )
            self.args.dataloader_persistent_workers = False
        self.add_callback(MaskRenewal(masking))

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """Return the mean loss over all masked tokens as the loss.

        Raises:
            ValueError: The text has no masked token.
        """
        epoch, self.masking.epoch, self.masking.by_example = self.masking.epoch, 0, True
        self.loss_and_count = torch.zeros(2, dtype=torch.float64)
        try:
            output = super().evaluation_loop(*args, **kwargs)
        finally:
            self.masking.epoch, self.masking.by_example = epoch, False
        loss, count = self.loss_and_count.tolist()
        if not count:
            raise ValueError(
                f"the held-out text must have a masked token, but its {output.num_samples} examples have none. Use "
                "more held-out text."
            )
        assert output.metrics is not None
        output.metrics[f"{kwargs.get('metric_key_prefix', 'eval')}_loss"] = loss / count
        return output

    def prediction_step(
        self, model: Any, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[torch.Tensor, None, None]:
        """Add the losses of a batch to those of the evaluation."""
        inputs = self._prepare_inputs(inputs)
        labels = inputs["labels"]
        # Compiling costs more than it saves here: these are other graphs than in training, and the last batch is short.
        model = getattr(model, "_orig_mod", model)
        config: Any = self.model.config  # type: ignore[union-attr]
        if not getattr(config, "keys_to_ignore_at_inference", ()):  # no auxiliary losses to log: skip the model's loss
            inputs = {name: value for name, value in inputs.items() if name != "labels"}
        with torch.no_grad(), self.compute_loss_context_manager():
            logits = model(**inputs).logits
        is_masked = labels != -100
        losses = torch.zeros(labels.shape, device=labels.device)
        losses[is_masked] = cross_entropy(logits[is_masked].float(), labels[is_masked], reduction="none")
        by_example = torch.stack([losses.sum(-1), is_masked.sum(-1)], dim=-1)
        # `gather_for_metrics` drops the examples that fill up the last batch of several processes.
        self.loss_and_count += self.accelerator.gather_for_metrics(by_example).cpu().double().sum(0)
        return losses.sum() / is_masked.sum().clamp(min=1), None, None


class HeadFirst(TrainerCallback):
    """Trains only a new head for some steps, then everything.

    The gradients of a random head would move the encoder away from what it knows. They are dropped before the step:
    freezing parameters would fail under a distributed wrapper, which waits for the gradient of each.

    Args:
        head: The head's weights, without a decoder that is the embedding table.
        num_steps: Number of steps that train the head alone. Default: a tenth of the training.
    """

    def __init__(self, head: list[torch.nn.Parameter], num_steps: int | None) -> None:
        self.head, self.num_steps = {id(weight) for weight in head}, num_steps

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Drop the gradients of the encoder."""
        if state.global_step < (0.1 * state.max_steps if self.num_steps is None else self.num_steps):
            for weight in kwargs["model"].parameters():
                if id(weight) not in self.head:
                    weight.grad = None


def start_new_head(trainer: MaskedLMTrainer, num_steps: int | None) -> None:
    """Let a new head start at the frequencies of the training's tokens, and train alone first; see `HeadFirst`."""
    model: Any = trainer.model
    if not (head := vars(model).get("new_head")) or trainer.train_dataset is None:
        return
    trainer.add_callback(HeadFirst(head, num_steps))
    first = "a tenth of the steps" if num_steps is None else f"{num_steps:,} steps"
    logger.info(
        "The checkpoint has no masked-LM head. A new one starts at the frequencies of the tokens, and trains alone for "
        f"{first} (--head_first_steps)."
    )
    decoder, table = model.get_output_embeddings(), model.get_input_embeddings()
    if trainer.args.resume_from_checkpoint is not None or decoder is None:
        return
    counts = torch.ones(len(decoder.weight), dtype=torch.float64)
    for row in islice(trainer.train_dataset, BLOCKS_TO_COUNT):  # type: ignore[arg-type]
        counts += torch.bincount(torch.tensor(row["input_ids"]), minlength=len(counts))
    with torch.no_grad():
        if decoder.weight.shape == table.weight.shape:
            decoder.weight.copy_(table.weight)
        if getattr(decoder, "bias", None) is not None:
            decoder.bias.copy_((counts / counts.sum()).log())


def evaluate_start(trainer: Trainer, general: Any = None) -> None:
    """Measure the held-out losses before the first step, for the card, if the run evaluates.

    Args:
        general: Examples of general text, if the card should show what the encoder forgets.
    """
    args = trainer.args
    if not args.do_eval or args.resume_from_checkpoint is not None or args.deepspeed or args.fsdp:
        return
    show_progress(trainer)
    devices = [args.device] if args.device.type == "cuda" else []
    with torch.random.fork_rng(devices):  # training must draw the same numbers as without this
        loss = trainer.evaluate()["eval_loss"]
        others = {f"start_{name}": value for name, value in evaluate_general(trainer, general).items()}
    if trainer.accelerator.num_processes > 1:
        forget_preparation(trainer)
    if trainer.is_world_process_zero():
        logger.info(f"Validation before the first step: loss {loss:.4g}")
    if math.isfinite(loss):
        trainer.save_metrics("start", {"start_loss": loss, **others}, combined=False)


def forget_preparation(trainer: Trainer) -> None:
    """Let accelerate prepare the model again, for training.

    It prepares a model once. After an evaluation it would train it as prepared for that, and the processes would not
    average their gradients: each would train a model of its own.
    """
    model: Any = trainer.model
    if (forward := vars(model).pop("_original_forward", None)) is not None:  # mixed precision wraps it
        model.forward = forward
    model._is_accelerate_prepared = False
    trainer.model_wrapped = model


def evaluate_general(trainer: Trainer, general: Any) -> dict[str, float]:
    """Return the loss on general text as `general_loss`; nothing without such text."""
    if general is None:
        return {}
    return {"general_loss": trainer.evaluate(general, metric_key_prefix="general")["general_loss"]}


def evaluate_masked_lm(trainer: Trainer, general: Any = None) -> None:
    """Evaluate, and save the metrics with the perplexity of masked tokens, and the loss on general text if given."""
    show_progress(trainer)
    metrics = trainer.evaluate()
    metrics["perplexity"] = math.exp(metrics["eval_loss"])
    metrics |= evaluate_general(trainer, general)
    save_metrics(trainer, "eval", metrics, trainer.eval_dataset)

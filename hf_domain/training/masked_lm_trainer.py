"""The trainer of masked LM, and its held-out losses."""

import logging
import math
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import find_executable_batch_size
from datasets import IterableDataset
from torch.nn.functional import cross_entropy
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import EvalLoopOutput

from hf_domain.data.masking import PlacingCollator
from hf_domain.training.arguments import keep_last_batch
from hf_domain.training.callbacks import MaskRenewal
from hf_domain.training.dropout import remove_dropout
from hf_domain.training.recipes import find_decay
from hf_domain.training.run import save_metrics
from hf_domain.training.terminal import show_progress

logger = logging.getLogger(__name__)

BLOCKS_TO_COUNT = 10_000  # a million tokens of 128 a block


class MaskedLMTrainer(Trainer):
    """transformers' Trainer without dropout, with new masks in each epoch and a held-out loss of model and text alone.

    The stock Trainer averages the means of batches, so a batch with one masked token counts as much as one with a
    hundred, and it multiplies the loss of some models by the number of processes. Here the loss is the sum over the
    masked tokens divided by their number. An evaluation draws the masks of each example from it alone, and always the
    same ones. Label smoothing affects training only, because a perplexity is defined by the plain cross-entropy.

    Args:
        masking: The collator of data/masking.py or data/causal.py that draws the masks; others may wrap it.
        dropout: Train with the model's dropout. `backbone_dropout` of a frozen encoder asks for it, too.
        decay_mlm_probability: Share of the tokens to mask while a schedule decays, and in evaluations.
        trunk: A checkpoint whose weights and optimizer this training decays from its first step on.
    """

    def __init__(
        self,
        *args: Any,
        masking: Any,
        dropout: bool = False,
        decay_mlm_probability: float | None = None,
        trunk: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self.masking, self.decay_mlm_probability, self.trunk = masking, decay_mlm_probability, trunk
        self.dropout = dropout or getattr(self.model.config, "backbone_dropout", False)  # type: ignore[union-attr]
        self.data_collator = PlacingCollator(self.data_collator, masking)
        if self.args.dataloader_persistent_workers:
            # They would repeat the masks of an epoch, and read the first evaluation's text in every later one.
            logger.warning(
                "--dataloader_persistent_workers has no effect here: its workers would repeat the first masks"
            )
            self.args.dataloader_persistent_workers = False
        self.add_callback(MaskRenewal(masking))
        self.add_callback(StepCounter(self))

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train, without dropout unless it is asked for."""
        with self.apply_dropout():
            return super().train(*args, **kwargs)

    def apply_dropout(self) -> AbstractContextManager[None]:
        """Let the model compute with the dropout that it trains with."""
        model: Any = self.model
        return nullcontext() if self.dropout else remove_dropout(model)

    def get_eval_dataloader(self, *args: Any, **kwargs: Any) -> torch.utils.data.DataLoader:
        """Return the batches of all examples."""
        with keep_last_batch(self.args):
            return super().get_eval_dataloader(*args, **kwargs)

    def load_trunk(self) -> None:
        """Load the weights of the trunk, unless a killed run resumes."""
        if self.trunk is not None and self.args.resume_from_checkpoint is None:
            self._load_from_checkpoint(self.trunk)

    def create_optimizer(self, model: Any = None) -> Any:
        """Create the optimizer, in the state that the trunk left."""
        optimizer = super().create_optimizer(model)
        if self.trunk is not None and self.args.resume_from_checkpoint is None:
            load_optimizer(optimizer, self.trunk, self.args.learning_rate)
        return optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Create the schedule, and let the collator know when it decays."""
        start = find_decay(self.args, num_training_steps, is_whole=self.trunk is not None)
        if start is not None and self.decay_mlm_probability is not None:
            collator: Any = self.data_collator
            collator.decay = (start, self.decay_mlm_probability)
        return super().create_scheduler(num_training_steps, optimizer)

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """Return the mean loss over all masked tokens as the loss.

        Raises:
            ValueError: The text has no masked token.
        """
        epoch, self.masking.epoch, self.masking.by_example = self.masking.epoch, 0, True
        self.loss_and_count = torch.zeros(2, dtype=torch.float64)
        share = getattr(self.masking, "mlm_probability", None)
        if self.decay_mlm_probability is not None:
            self.masking.mlm_probability = self.decay_mlm_probability
        try:
            output = super().evaluation_loop(*args, **kwargs)
        finally:
            self.masking.epoch, self.masking.by_example = epoch, False
            if share is not None:
                self.masking.mlm_probability = share
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


class StepCounter(TrainerCallback):
    """Tells the collator of a trainer the step of an epoch's first batch."""

    def __init__(self, trainer: MaskedLMTrainer):
        self.trainer = trainer

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        """Set the step, which a resumed run reads from its checkpoint."""
        collator: Any = self.trainer.data_collator
        # Trainer makes the batches of a stream before the checkpoint again, unless its position was saved.
        repeats = isinstance(self.trainer.train_dataset, IterableDataset) and not args.ignore_data_skip
        collator.first_step, collator.made = 0 if repeats else state.global_step, 0
        collator.batches_per_step = args.gradient_accumulation_steps


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
    if not (names := vars(model).get("new_head")) or trainer.train_dataset is None or trainer.trunk is not None:
        return
    head = [weight for name, weight in model.named_parameters() if name in names]
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


def read_trunk(trunk: str) -> dict[str, Any]:
    """Return the state of the optimizer in a checkpoint.

    Raises:
        FileNotFoundError: There is none.
        ValueError: The learning rate has decayed.
    """
    file = Path(trunk, "optimizer.pt")
    if not file.is_file():
        raise FileNotFoundError(
            f"--resume_decay_from must name a checkpoint with an optimizer, but {file} is missing. Name a folder "
            "checkpoint-... of a training."
        )
    state = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    for group in state["param_groups"]:
        if group["lr"] < group["initial_lr"]:
            raise ValueError(
                f"--resume_decay_from must name a checkpoint at the full learning rate, {group['initial_lr']:.3g}, but "
                f"{trunk} is at {group['lr']:.3g}. Name one between the warm-up and the decay."
            )
    return state


def load_optimizer(optimizer: torch.optim.Optimizer, trunk: str, learning_rate: float) -> None:
    """Load the optimizer of a checkpoint, see `read_trunk`.

    Args:
        optimizer: Changed in place.
        trunk: Folder of the checkpoint.
        learning_rate: Rate of the encoder's weights; other rates keep their ratio to it.

    Raises:
        ValueError: The checkpoint is of a training of other weights.
    """
    try:
        optimizer.load_state_dict(read_trunk(trunk))
    except ValueError as error:
        if "parameter group" not in str(error):
            raise
        raise ValueError(
            f"--resume_decay_from must name a checkpoint of the same method and options, but {trunk} trained other "
            "weights. Use the flags of its run."
        ) from None
    factor = learning_rate / optimizer.param_groups[0]["lr"]
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] = factor * group["lr"]


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
    args = trainer.args

    def evaluate(batch_size: int) -> dict[str, float]:
        args.per_device_eval_batch_size = batch_size
        return trainer.evaluate() | evaluate_general(trainer, general)

    size = args.per_device_eval_batch_size
    # In smaller batches if memory is short: else the training would run again. Other processes would wait for this one.
    metrics = find_executable_batch_size(evaluate, size)() if args.world_size == 1 else evaluate(size)
    metrics["perplexity"] = math.exp(metrics["eval_loss"])
    save_metrics(trainer, "eval", metrics, trainer.eval_dataset)

"""Train on a stream: each process reads files of its own, and a resumed run continues where the killed one stopped."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_domain.safe_io import read_json, write_json

logger = logging.getLogger(__name__)


class StreamReader(TrainerCallback):
    """Opens the stream of a trainer, and saves with each checkpoint how far it was read.

    The stream starts again at its end, so all processes take equally many steps, however long their files are. Without
    the saved position, Trainer would read and tokenize everything before a checkpoint again, only to skip it.

    Args:
        trainer: Trains on a `datasets.IterableDataset`.
    """

    def __init__(self, trainer: Trainer):
        self.trainer = trainer
        self.get_dataloader = trainer.get_train_dataloader
        # State of the stream after so many batches of this process. Batches are drawn ahead of their step.
        self.positions: dict[int, dict[str, Any]] = {}
        self.drawn = self.trained = 0
        self.resumes = False
        trainer.train_dataset = trainer.train_dataset.repeat(None)  # type: ignore[union-attr]

    def open_dataloader(self) -> DataLoader:
        """Return the batches of this process, from the saved position if there is one."""
        args, config = self.trainer.args, self.trainer.accelerator.dataloader_config
        dispatches, config.dispatch_batches = config.dispatch_batches, False  # else the first process reads everything
        try:
            loader: Any = self.get_dataloader()
        finally:
            config.dispatch_batches = dispatches
        # accelerate gives each process its own files; if there are too few, each reads all and keeps its part.
        stream = getattr(loader.dataset, "dataset", loader.dataset)
        if args.dataloader_num_workers == 0:  # a worker would hold the position
            inner = getattr(loader, "base_dataloader", loader)  # accelerate's loader around torch's
            inner.collate_fn = self.note_position(stream, inner.collate_fn)
            if (position := read_position(args)) is not None:
                stream.load_state_dict(position)
                self.resumes = True
        return loader

    def note_position(self, stream: Any, collate: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        """Return a collator that notes the position after each batch."""

        def collate_and_note(examples: list[Any]) -> Any:
            self.drawn += 1
            self.positions[self.drawn] = stream.state_dict()
            return collate(examples)

        return collate_and_note

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        """Count the batches that Trainer skips, because the checkpoint has no position."""
        if not args.ignore_data_skip:
            self.trained = state.global_step * args.gradient_accumulation_steps

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        """Restore the random state of the checkpoint: Trainer did before it opened the stream, which draws a number."""
        if self.resumes:
            self.trainer._load_rng_state(args.resume_from_checkpoint)
            self.resumes = False

    def on_substep_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        """Forget the positions before the batch that was trained on."""
        self.trained += 1
        for batch in [batch for batch in self.positions if batch < self.trained]:
            del self.positions[batch]

    on_step_end = on_substep_end

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        """Add the position of this process to the checkpoint."""
        if self.trained in self.positions:
            checkpoint = Path(str(args.output_dir), f"checkpoint-{state.global_step}")
            write_json(name_position(checkpoint, args), self.positions[self.trained])


def name_position(checkpoint: Path, args: TrainingArguments) -> Path:
    """Return the file with the position of this process."""
    return checkpoint / f"stream-{args.process_index}.json"


def read_position(args: TrainingArguments) -> dict[str, Any] | None:
    """Return the position at which a resumed run continues; None if it starts, or if the checkpoint has none."""
    if args.resume_from_checkpoint is None or args.dataloader_num_workers:
        return None
    file = name_position(Path(args.resume_from_checkpoint), args)
    return read_json(file) if file.is_file() else None


def read_stream(trainer: Trainer) -> None:
    """Let a trainer read its stream as `StreamReader` does; call before `trainer.train`."""
    reader, args, stream = StreamReader(trainer), trainer.args, trainer.train_dataset
    trainer.get_train_dataloader = reader.open_dataloader  # type: ignore[method-assign]
    trainer.add_callback(reader)
    if read_position(args) is not None:
        args.ignore_data_skip = True
    if args.world_size > stream.num_shards and trainer.is_world_process_zero():  # type: ignore[union-attr]
        logger.warning(
            f"The stream has {stream.num_shards} files for {args.world_size} processes, so each process reads and "  # type: ignore[union-attr]
            "tokenizes all text and keeps its part. Use a file or more for each process."
        )

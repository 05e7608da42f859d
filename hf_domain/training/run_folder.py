"""The output folder of a run: its record, its lock, and the checkpoint from which a killed run resumes.

Before it works, a run writes `_run.json` with its options and with digests of the files and models that it reads. The
same command in the same folder resumes a killed run and skips a finished one. Any other run is refused.
"""

import hashlib
import json
import logging
import os
import shutil
import sys
import zipfile
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from transformers import TrainingArguments

from hf_domain.data.files import find_files
from hf_domain.safe_io import finish_writing, identify_url, is_url, lock_folder, write_text
from hf_domain.tasks.outputs import ANSWERS, LABELS, TAGS, VALIDATED

logger = logging.getLogger(__name__)

RUN_RECORD = "_run.json"
# Written by Trainer.
METRICS, STATE = "all_results.json", "trainer_state.json"
# The held-out loss before the first step. It stays beside the model: a run that is killed while it ends, and resumed,
# cannot measure it again for its card.
START_RESULTS = "start_results.json"
# Files that a command writes into its folder, and that another run would overwrite.
MADE = (
    "config.json",
    "*.safetensors",
    "adapter*",
    "tokenizer*.json",
    "vocab*",
    "merges.txt",
    "*.model",
    "modules.json",  # without it, a folder of sentence embeddings is none
    "README.md",
    "checkpoint-*",
    *(f"{name}_results.json" for name in ("all", "train", "eval", "predict")),  # not START_RESULTS
    STATE,
    "predict*.txt",
)
# What --overwrite_output_dir deletes first, because the new run may not write it: it would pass for its result.
RESULTS = ("*_results.json", LABELS, TAGS, VALIDATED, *(f"{split}_{name}" for split in ("eval", "predict")
           for name in (ANSWERS, f"nbest_{ANSWERS}", "null_odds.json")))  # fmt: skip
# What a step reads of an encoder: configuration, weights, tokenizer.
CHECKPOINT_FILES = ("config.json", "*.safetensors", "pytorch_model*.bin", "tokenizer*.json", "vocab*", "merges.txt",
                    "*.model")  # fmt: skip
# What a model cannot be loaded without; the second is that of sharded weights.
LOADED = ("config.json", "*.safetensors.index.json", "*.safetensors", "adapter*/*.safetensors", "adapter*.json",
          "adapter*/*.json")  # fmt: skip
# Options that change neither weights nor results, and options that only locate a file.
FREE = {
    "overwrite_output_dir", "resume_from_checkpoint", "output_dir", "token", "cache_dir", "trust_remote_code",
    "overwrite_cache", "preprocessing_num_workers", "num_workers", "dask_scheduler", "counts_file", "use_cpu",
    "push_to_hub", "project", "run_name", "report_to", "disable_tqdm", "verbose", "local_rank",
    "gradient_checkpointing", "gradient_checkpointing_kwargs", "per_device_eval_batch_size", "eval_accumulation_steps",
    "remove_unused_columns", "torch_empty_cache_steps", "skip_memory_metrics", "include_num_input_tokens_seen",
    "enable_jit_checkpoint", "restore_callback_states_from_checkpoint", "prediction_loss_only", "debug",
}  # fmt: skip
FREE_PREFIXES = ("_", "log_", "logging_", "save_", "hub_", "ddp_", "dataloader_", "trackio_")
# Options that a checkpoint holds: its optimizer and its scheduler restore them.
HELD = ("learning_rate", "method_learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "optim",
        "optim_args")  # fmt: skip
# A resumed run may move its cache but not add or drop it: cached states are rounded.
CACHES = ("memory_cache", "passage_cache")
# Options that name files or models, besides `*_file` and `*_or_path`.
PATHS = ("tokenizer_name", "config_name", "expanded_vocabulary", "datastore", "dataset_name", "resume_decay_from",
         "model", "teacher")  # fmt: skip


def run_in_folder(run: Callable[..., Any], *arguments: Any, free: Collection[str] = ()) -> None:
    """Run a command in its output folder: resume it if it was killed, skip it if it is finished.

    Args:
        run: Takes the arguments; not called if the same run is finished.
        arguments: Dataclasses, one of which has `output_dir`.
        free: Options that do not change this run, besides `FREE`.

    Raises:
        ValueError: Another process writes into the folder, or the folder contains another run or foreign files.
    """
    options = {item.name: getattr(group, item.name) for group in arguments for item in fields(group)}
    training_args = next((group for group in arguments if isinstance(group, TrainingArguments)), None)
    folder, writes = Path(options["output_dir"]), training_args is None or training_args.should_save
    with ExitStack() as stack:
        waiting = (
            nullcontext()
            if training_args is None
            else training_args.main_process_first(local=training_args.save_on_each_node, desc="opening the folder")
        )
        with waiting:
            if writes:
                stack.enter_context(lock_folder(folder))
                is_open = begin_run(folder, options, describe_run(arguments, free))
            else:
                is_open = not read_record(folder).get("finished")
        if not is_open:
            return
        try:
            if training_args is not None and training_args.do_train:
                training_args.resume_from_checkpoint = choose_checkpoint(folder, options["resume_from_checkpoint"])
            run(*arguments)
        except Exception:
            if writes and not list_made(folder):
                (folder / RUN_RECORD).unlink(missing_ok=True)  # a refused run leaves nothing
            raise
        if writes:
            record = read_record(folder) | {"finished": True, "pushed": bool(options.get("push_to_hub"))}
            record |= {"hub_model_id": options["hub_model_id"]} if record["pushed"] else {}
            record["model"] = sorted(
                path.relative_to(folder).as_posix() for name in LOADED for path in folder.glob(name)
            )
            write_text(folder / RUN_RECORD, json.dumps(record, indent=2) + "\n")


def begin_run(folder: Path, options: dict[str, Any], description: dict[str, Any]) -> bool:
    """Record that a run begins, and return whether it has anything to do.

    Args:
        description: Identifies the run, see `describe_run`.

    Raises:
        ValueError: The folder contains another run, or files without the record of a run.
    """
    finish_writing(folder)
    check_inputs(folder, options)
    record, overwrites = read_record(folder), bool(options.get("overwrite_output_dir"))
    chosen = options.get("resume_from_checkpoint")
    # A user who names a checkpoint of this folder wants to resume from it.
    if not overwrites and chosen and Path(chosen).resolve().is_relative_to(folder.resolve()):
        check_held(chosen, record, description)
    elif not overwrites:
        check_same_run(folder, record, description, can_overwrite="overwrite_output_dir" in options)
        if lost := [name for name in record.get("model", []) if not is_whole(folder / name)]:
            logger.warning(
                f"The run in {folder} was finished, but {', '.join(lost)} is missing or damaged: it runs again."
            )
        elif record.get("finished"):
            repository = options.get("hub_model_id")
            is_elsewhere = record.get("pushed") and record.get("hub_model_id", repository) != repository
            if options.get("push_to_hub") and (is_elsewhere or not record.get("pushed")):
                end = "and pushed to another repository" if is_elsewhere else "without a push"
                raise ValueError(
                    f"a run must be unfinished to push its model, but {folder} contains this run, finished {end}. "
                    f"Push the folder with hf upload REPOSITORY {folder}, or train again with --overwrite_output_dir."
                )
            again = "" if "overwrite_output_dir" not in options else " --overwrite_output_dir repeats it."
            sys.stdout.write(f"This run is already finished in {folder}; nothing to do.{again}\n")
            return False
    clear_folder(folder, results=overwrites)
    write_text(folder / RUN_RECORD, json.dumps(description | {"finished": False}, indent=2) + "\n")
    return True


def clear_folder(folder: Path, *, results: bool = False) -> None:
    """Delete the half-written files of a killed process.

    Args:
        results: Also delete complete checkpoints, scores and predictions, but not the model.
    """
    finish_writing(folder)
    for file in [file for name in RESULTS for file in folder.glob(name)] if results else []:
        file.unlink()
    for checkpoint in folder.glob("checkpoint-*"):
        if is_number(checkpoint) and (results or is_damaged(checkpoint)):
            drop_checkpoint(checkpoint)
    for file in folder.glob("*_results.json"):
        if not is_json(file):  # Trainer reads this file to add to it
            file.unlink()


def check_inputs(folder: Path, options: dict[str, Any]) -> None:
    """Raise a ValueError if a run would overwrite its own inputs."""
    own = folder.resolve()
    for name, value in options.items():
        if not name.endswith("_or_path") and name not in PATHS:
            continue
        for path in value if isinstance(value, list) else [value] if value else []:
            place = Path(path).resolve()
            if place == own or (place.parent == own and place.name.startswith("checkpoint-")):
                raise ValueError(
                    f"--output_dir must differ from the folders that the run reads, but would overwrite --{name} "
                    f"{path}. Name another --output_dir."
                )


def check_same_run(folder: Path, record: dict[str, Any], description: dict[str, Any], can_overwrite: bool) -> None:
    """Raise a ValueError unless a folder is free or contains the described run."""
    remedy = "Name another --output_dir"
    remedy += ", or start over with --overwrite_output_dir." if can_overwrite else " or delete this one."
    if not record:
        check_free(folder, remedy)
    if not record or not (list_made(folder) or record.get("finished")):
        return  # the earlier run died before it wrote anything
    if changes := list_changes(record, description):
        state = "finished" if record["finished"] else "unfinished"
        more = f" and {len(changes) - 5} more" if len(changes) > 5 else ""
        raise ValueError(
            f"an output folder must belong to one run, but {folder} contains another run, {state}, with "
            f"{'; '.join(changes[:5])}{more}. {remedy}"
        )


def check_held(checkpoint: str, record: dict[str, Any], description: dict[str, Any]) -> None:
    """Raise a ValueError if a run asks for other values than the optimizer and the scheduler of its checkpoint hold.

    They would restore theirs, and the card would state the others.
    """
    if changes := list_changes(record, description, HELD):
        raise ValueError(
            f"a resumed run must keep the options that its checkpoint holds, but has {'; '.join(changes)}. Leave "
            f"them, or start a new run from the weights: --model_name_or_path {checkpoint}, another --output_dir."
        )


def list_changes(record: dict[str, Any], description: dict[str, Any], names: Sequence[str] = ()) -> list[str]:
    """Return what differs between a recorded run and the described one, in the options that both have.

    Args:
        names: Compare only these options. Default: all.
    """
    ours, theirs, changes = description["options"], record.get("options", {}), []
    for name in sorted({*(names or ours)} & ours.keys() & theirs.keys()):
        if theirs[name] == ours[name]:
            continue
        if "sha256" in str(ours[name]) and "sha256" in str(theirs[name]):  # a digest tells a reader nothing
            changes.append(f"other content of {name}")
        else:
            changes.append(f"{name} {theirs[name]!r}, now {ours[name]!r}")
    return changes


def check_free(folder: Path, remedy: str) -> None:
    """Raise a ValueError if a folder contains files that a run would overwrite."""
    if held := list_made(folder):
        listed = ", ".join(held[:5]) + (f" and {len(held) - 5} more" if len(held) > 5 else "")
        raise ValueError(f"an output folder must not contain files of a model, but {folder} has {listed}. {remedy}")


def list_made(folder: Path) -> list[str]:
    """List the files in a folder that a run would overwrite."""
    return sorted({path.name for pattern in MADE for path in folder.glob(pattern)})


def read_record(folder: Path) -> dict[str, Any]:
    """Return the record of a folder's run; empty without a record."""
    file = folder / RUN_RECORD
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


# ------------------------------------------------------------------------------------------------ what a run is


def describe_run(arguments: Sequence[Any], free: Collection[str] = ()) -> dict[str, Any]:
    """Return the options that identify a run, with digests instead of local paths; see `run_in_folder`."""
    options: dict[str, Any] = {}
    for group in arguments:
        for item in fields(group):
            if item.init and item.name not in {*FREE, *free} and not item.name.startswith(FREE_PREFIXES):
                value = getattr(group, item.name)
                if item.name == "mix" and value is not None:  # a file and its share
                    file, _, value = value.rpartition(":")
                    options["mix_file"] = describe_option("mix_file", file)
                options[item.name] = describe_option(item.name, value)
        if isinstance(group, TrainingArguments) and "num_processes" not in free:
            options["num_processes"] = group.world_size
    return json.loads(json.dumps({"options": options}, default=str))


def describe_option(name: str, value: Any) -> Any:
    """Return the value of an option, or a digest if it names an existing file or folder."""
    if name in CACHES:
        return value is not None
    if isinstance(value, list):
        return [describe_option(name, item) for item in value]
    if isinstance(value, str) and name.endswith("_file"):
        try:
            files = find_files([value])
        except FileNotFoundError:  # reported when it is read
            return value
        return [f"sha256:{identify_url(file)}" if is_url(file) else digest_path(Path(file)) for file in files]
    is_path = isinstance(value, str) and (name.endswith("_or_path") or name in PATHS)
    return digest_path(Path(value)) if is_path and Path(value).exists() else value


def digest_path(path: Path) -> str:
    """Return a digest of a file, or of those files of a folder that a run reads: a datastore's, a model's, or all."""
    files = [path]
    if path.is_dir():
        patterns: tuple[str, ...] = ("**/*",)
        if (path / "datastore.json").is_file():  # it contains the checksums of the other files
            patterns = ("datastore.json",)
        elif (path / "config.json").is_file() or (path / "tokenizer_config.json").is_file():
            patterns = CHECKPOINT_FILES
        files = sorted({file for pattern in patterns for file in path.glob(pattern) if file.is_file()})
    digest = hashlib.sha256()
    for file in files:
        if path.is_dir():
            digest.update(f"{file.relative_to(path).as_posix()} {file.stat().st_size}".encode())
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return f"sha256:{digest.hexdigest()}"


# ------------------------------------------------------------------------------------------------ checkpoints


def choose_checkpoint(folder: Path, chosen: str | None) -> str | None:
    """Return the checkpoint from which training resumes, and log it; None if training starts at step 0.

    Args:
        chosen: Value of `--resume_from_checkpoint`.

    Raises:
        ValueError: The chosen checkpoint is incomplete.
    """
    if chosen is not None and not is_resumable(Path(chosen)):
        raise ValueError(
            "--resume_from_checkpoint must be a complete checkpoint (weights, optimizer, scheduler, random state and "
            f"trainer state), but {chosen} lacks some of these files. Leave the flag out, or name another checkpoint."
        )
    checkpoint = chosen or find_checkpoint(folder)
    if checkpoint is not None:
        logger.info(f"Resuming from {checkpoint}")
    return checkpoint


def find_checkpoint(output_dir: str | Path) -> str | None:
    """Return the newest checkpoint of a folder from which training can resume; None if there is none."""
    checkpoints = [path for path in Path(output_dir).glob("checkpoint-*") if is_number(path) and is_resumable(path)]
    return str(max(checkpoints, key=lambda path: int(path.name.removeprefix("checkpoint-")))) if checkpoints else None


def is_number(checkpoint: Path) -> bool:
    """Return whether a folder is named like a checkpoint of Trainer, which ends in its step."""
    return checkpoint.name.removeprefix("checkpoint-").isdigit()


def is_resumable(checkpoint: Path) -> bool:
    """Return whether training can resume from a checkpoint exactly as if it had never stopped.

    Trainer itself resumes without an optimizer or a random state, and does not warn.
    """
    names = {path.name for path in checkpoint.iterdir()} if checkpoint.is_dir() else set()
    # DeepSpeed and FSDP save weights and optimizer in subfolders.
    is_sharded = any(path.is_dir() and path.name != "adapter" for path in checkpoint.glob("*"))
    has_weights = any(name.endswith(".safetensors") for name in names)
    has_state = any(name.startswith("rng_state") for name in names)
    return (
        has_state and ((has_weights and {"optimizer.pt", "scheduler.pt"} <= names) or is_sharded)
    ) and not is_damaged(checkpoint)


def is_damaged(checkpoint: Path) -> bool:
    """Return whether a run died while it saved this checkpoint.

    Trainer writes the trainer state last, but each process writes its random state by itself.
    """
    num_states = len([*checkpoint.glob("rng_state_*")])
    if 0 < num_states < int(os.environ.get("WORLD_SIZE", "1")):
        return True
    return not (checkpoint / STATE).is_file() or not all(map(is_whole, checkpoint.iterdir()))


def is_whole(file: Path) -> bool:
    """Return whether a file of a checkpoint can be read to its end."""
    if file.suffix == ".json":
        return is_json(file)
    if file.suffix == ".safetensors":
        try:
            with safe_open(file, "pt"):
                return True
        except (OSError, SafetensorError):
            return False
    if file.suffix in (".pt", ".pth", ".bin"):  # written by torch.save
        return zipfile.is_zipfile(file)
    return True


def is_json(file: Path) -> bool:
    """Return whether a file is complete JSON."""
    try:
        json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return True


def drop_checkpoint(checkpoint: Path) -> None:
    """Delete a checkpoint, its state first: a half-deleted one is never resumed."""
    (checkpoint / STATE).unlink(missing_ok=True)
    shutil.rmtree(checkpoint)

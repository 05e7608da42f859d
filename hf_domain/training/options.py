"""The options of `TrainingArguments` that functions of Python pass on, with their types for editors."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, Literal, TypedDict

from transformers import TrainingArguments

# The functions set these themselves; the last two exclude training.
SET = (
    *("output_dir", "do_train", "do_eval", "do_predict", "learning_rate", "seed", "local_rank"),
    *("bf16_full_eval", "fp16_full_eval"),
)
# Names of `TrainingArguments`, or of other packages, for what an argument of the functions says.
MEANT = {"per_device_train_batch_size": "batch_size", "budget": "num_tokens", "max_length": "max_seq_length"}
Strategy = Literal["no", "steps", "epoch"]


class TrainingOptions(TypedDict, total=False):
    """Fields of `TrainingArguments`; see transformers for what they do."""

    lr_scheduler_type: str
    lr_scheduler_kwargs: dict[str, Any] | str
    warmup_steps: float
    optim: str
    optim_args: str
    weight_decay: float
    adam_beta1: float
    adam_beta2: float
    adam_epsilon: float
    optim_target_modules: str | list[str]
    gradient_accumulation_steps: int
    average_tokens_across_devices: bool
    max_grad_norm: float
    label_smoothing_factor: float
    bf16: bool
    fp16: bool
    tf32: bool
    activation_checkpointing: bool
    activation_checkpointing_kwargs: dict[str, Any] | str
    gradient_checkpointing: bool
    gradient_checkpointing_kwargs: dict[str, Any] | str
    torch_compile: bool
    torch_compile_backend: str
    torch_compile_mode: str
    use_liger_kernel: bool
    liger_kernel_config: dict[str, bool]
    use_cache: bool
    neftune_noise_alpha: float
    torch_empty_cache_steps: int
    auto_find_batch_size: bool
    logging_strategy: Strategy
    logging_steps: float
    logging_first_step: bool
    log_on_each_node: bool
    logging_nan_inf_filter: bool
    include_num_input_tokens_seen: str | bool
    log_level: str
    log_level_replica: str
    disable_tqdm: bool
    report_to: str | list[str]
    run_name: str
    project: str
    trackio_space_id: str
    trackio_bucket_id: str
    trackio_static_space_id: str | Literal[False]
    eval_strategy: Strategy
    eval_steps: float
    eval_delay: float
    per_device_eval_batch_size: int
    prediction_loss_only: bool
    eval_on_start: bool
    eval_do_concat_batches: bool
    eval_use_gather_object: bool
    eval_accumulation_steps: int
    include_for_metrics: list[str]
    batch_eval_metrics: bool
    save_only_model: bool
    save_strategy: Literal["no", "steps", "epoch", "best"]
    save_steps: float
    save_on_each_node: bool
    save_total_limit: int
    enable_jit_checkpoint: bool
    push_to_hub: bool
    hub_token: str
    hub_private_repo: bool
    hub_model_id: str
    hub_strategy: Literal["end", "every_save", "checkpoint", "all_checkpoints"]
    hub_always_push: bool
    hub_revision: str
    load_best_model_at_end: bool
    metric_for_best_model: str
    greater_is_better: bool
    ignore_data_skip: bool
    resume_from_checkpoint: str
    restore_callback_states_from_checkpoint: bool
    full_determinism: bool
    data_seed: int
    use_cpu: bool
    accelerator_config: dict[str, Any] | str
    parallelism_config: Any
    dataloader_drop_last: bool
    dataloader_num_workers: int
    dataloader_pin_memory: bool
    dataloader_persistent_workers: bool
    dataloader_prefetch_factor: int
    dataloader_multiprocessing_context: str
    dataloader_in_order: bool
    remove_unused_columns: bool
    label_names: list[str]
    train_sampling_strategy: str
    length_column_name: str
    ddp_find_unused_parameters: bool
    ddp_bucket_cap_mb: int
    ddp_broadcast_buffers: bool
    ddp_static_graph: bool
    ddp_backend: str
    ddp_timeout: int
    fsdp: str
    fsdp_config: dict[str, Any] | str
    deepspeed: dict[str, Any] | str
    debug: str | list[Any]
    skip_memory_metrics: bool


class FineTuningOptions(TrainingOptions, total=False):
    """Fields of `TrainingArguments` for a training that counts epochs or steps."""

    max_steps: int


def check_names(function: Callable[..., Any], given: Mapping[str, Any], meant: Mapping[str, str]) -> None:
    """Raise a TypeError unless all options are fields of `TrainingArguments` that the function does not set itself.

    Args:
        meant: Arguments of the function by names that mean them, besides `MEANT`.
    """
    meant, own = {**MEANT, **meant}, [*inspect.signature(function).parameters][:-1]
    known = {item.name for item in fields(TrainingArguments) if item.init} - {*SET, *own, *meant}
    for name in given:
        if name not in known:
            near = [meant[name]] if meant.get(name) in own else get_close_matches(name, [*own, *sorted(known)], n=1)
            raise TypeError(
                f"an option of {function.__name__} must be one of its arguments or a field of TrainingArguments that "
                f"it does not set, but is {name}. {f'Did you mean {near[0]}?' if near else 'Leave it out.'}"
            )

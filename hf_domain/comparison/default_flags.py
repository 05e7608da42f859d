"""The flags that a comparison gives to the commands of its steps; a plan may say otherwise."""

from collections.abc import Mapping
from typing import Any

# Steps of training from which the time of one is read, where the budget is a time; the first five are not timed.
PROBE_STEPS = 20
# Nothing is kept on the way, and nothing is reported elsewhere; a plan may say otherwise.
TRAINER_OPTIONS: dict[str, Any] = {
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
}
# Masked LM of a real corpus takes hours: a killed one resumes from its last tenth, and a short one has a curve too.
CHECKPOINTS: dict[str, Any] = {
    "save_strategy": "steps",
    "save_steps": 0.1,
    "save_total_limit": 1,
    "logging_steps": 20,
}
# The share of a rung's tokens over which the learning rate falls to 0; our choice.
DECAY = 0.15
PRETRAINING: dict[str, Any] = {
    "per_device_train_batch_size": 32,
    "max_seq_length": 128,
    "warmup_steps": 0.1,
    "max_eval_samples": 256,
}
FINE_TUNING: dict[str, Any] = {
    "per_device_train_batch_size": 16,
    "warmup_steps": 0.1,
    "train_sampling_strategy": "group_by_length",
}
# The command of a kind of tasks, if its name differs.
TASK_COMMANDS = {
    "multi_label": "classification",
    "regression": "classification",
    "similarity": "sentences",
    "retrieval": "sentences",
}
CACHE_FLAGS = ("memory_cache", "passage_cache")
# Flags of masked LM that an evaluation takes: another learning rate must not measure the same loss again.
EVALUATION_FLAGS = {
    *("text_column_name", "line_by_line", "streaming", "max_seq_length", "mlm_probability", "whole_word_mask"),
    *("max_eval_samples", "per_device_eval_batch_size", "bf16", "bf16_full_eval", "fp16", "fp16_full_eval", "dtype"),
    *("use_cpu", "preprocessing_num_workers", "overwrite_cache", "cache_dir", "trust_remote_code"),
    *("report_to", "disable_tqdm"),
}
# Flags of fine-tuning that a probe takes.
PROBE_FLAGS = {
    *("model_name_or_path", "train_file", "validation_file", "test_file", "text_column_names", "label_column_name"),
    *("do_regression", "class_weights", "max_seq_length", "per_device_eval_batch_size", "use_cpu"),
    *("max_train_samples", "max_eval_samples", "max_predict_samples"),
}
# The same for sentence-transformers, which scores an encoder without training data.
FROZEN_FLAGS = PROBE_FLAGS - {"train_file", "max_train_samples", "do_regression", "class_weights"}
FROZEN_FLAGS |= {"corpus_file", "queries_file", "do_eval", "do_predict"}


def put_files(flags: Mapping[str, Any], files: Mapping[str, str]) -> dict[str, Any]:
    """Return the flags of a recipe with the files of a plan in the place of `{domain}` and `{general}`."""
    put = dict(flags)
    for name, value in flags.items():
        if isinstance(value, list):
            put[name] = [str(item).format(**files) for item in value]
        elif isinstance(value, str):
            put[name] = value.format(**files)
    return put

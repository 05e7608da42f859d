"""Write hf_domain/flags.json: what `hf-domain <command> --help` shows, from the parsers of the scripts.

    python tools/make_flags.py

Run it after each change of a flag or of a script's description. A test says so when the file is not current.
"""

import argparse
import dataclasses
import enum
import json
import os
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

from transformers import TrainingArguments

from hf_domain.cli import COMMANDS, GROUPS, RARE, TRAINER, import_command
from hf_domain.training import arguments

FILE = Path(__file__).parents[1] / "hf_domain" / "flags.json"
TRAINERS = {field.name for field in dataclasses.fields(TrainingArguments)}
# The purposes of flags. An own flag that no line names is in the last group.
PURPOSES = {
    "Model": "model_name_or_path model data trust_remote_code head tokenizer",
    "Method": "method memory_name_or_path config_overrides start expanded_vocabulary embedding_init algorithm",
    "Data": "train_file validation_file test_file dataset_name text_column_names label_column_name text_column_name "
    "general_validation_file validation_split_percentage streaming corpus task tasks corpora mix max_seq_length "
    "line_by_line question_column_name context_column_name answer_column_name doc_stride corpus_file queries_file file "
    "id_column_name held_out_file general_file",
    "Objective": "objective recipe mlm_probability whole_word_mask document_boundaries mask_rule",
    "Distillation": "strategy teacher_steps student_steps masked_lm_steps student_name_or_path num_hidden_layers "
    "hidden_size num_attention_heads intermediate_size student_layers loss",
    "Passages": "datastore num_passages append_passage",
    "Task": "do_regression multi_label class_weights nearest_vote labeled_file negative_labels version_2_with_negative",
    "Training": "do_train do_eval do_predict learning_rate num_train_epochs per_device_train_batch_size "
    "seed bf16 train_top_layers early_stopping_patience padding_free dropout",
    "Output": "output_dir dry_run output_file push_to_hub",
}
SELDOM = (
    "config_name tokenizer_name cache_dir model_revision token ignore_mismatched_sizes memory_revision dtype",
    "head_initializer_range dataset_config_name data_license max_train_samples max_eval_samples",
    "max_predict_samples memory_cache passage_cache pad_to_max_length preprocessing_num_workers dask_scheduler",
    "overwrite_cache n_best_size max_answer_length null_score_diff_threshold",
    "num_relation_heads teacher_layer teacher_dtype mlm_learning_rate trust_remote_code verbose",
    "method_learning_rate overwrite_output_dir decay_mlm_probability resume_decay_from head_first_steps",
    "attn_implementation",
)
ABOUT = ("description", "epilog", "reads_options")


class Caught(Exception):
    """A parser, before it parses."""


def catch_parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of a command's script."""

    def catch(self: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        raise Caught(self)

    with (
        patch.object(arguments.OneLineParser, "parse_args", catch),
        patch.object(arguments.ScriptParser, "parse_args_into_dataclasses", catch),
        patch("sys.argv", [command]),
    ):
        try:
            import_command(command).main()
        except Caught as caught:
            return caught.args[0]
    raise RuntimeError(f"{command} must parse its arguments first, but does not. Mend its main.")


def find_group(name: str, has_trainer: bool) -> str:
    """Return the title under which the help shows a flag."""
    if has_trainer and name in " ".join(SELDOM).split():
        return RARE
    for title, names in PURPOSES.items():
        if name in names.split():
            return title
    return TRAINER if has_trainer and name in TRAINERS else GROUPS[-1]


def describe_flag(action: argparse.Action, has_trainer: bool) -> dict[str, Any]:
    """Return the facts of a flag."""
    is_switch = action.nargs == 0 or (action.nargs == "?" and action.const is True)
    kind = "bool" if is_switch else {int: "int", float: "float"}.get(action.type, "str")
    default = action.default.value if isinstance(action.default, enum.Enum) else action.default
    # A file of this installation; the help says which.
    is_local = isinstance(default, str | os.PathLike) and os.path.isabs(default)
    fact = {
        "names": [name for name in action.option_strings if "-" not in name.strip("-")] or [action.dest],
        "type": kind,
        "nargs": action.nargs,
        "required": bool(action.required and action.default is not argparse.SUPPRESS),
        "default": default if isinstance(default, str | int | float | list) and not is_local else None,
        "help": name_commands(" ".join((action.help or "").replace("%%", "%").split())),
        "group": find_group(action.dest, has_trainer),
    }
    if action.choices is not None:
        values = [choice.value if isinstance(choice, enum.Enum) else choice for choice in action.choices]
        fact["choices"] = [str(value) for value in values]
    return fact


def name_commands(text: str) -> str:
    """Replace the scripts of a help text by the commands that run them: an installed package has no folder examples."""
    names = {script: name for name, (script, _) in COMMANDS.items()}
    pattern = rf"(?:python examples/)?\b({'|'.join(names)})\.py\b"
    return re.sub(pattern, lambda found: f"hf-domain {names[found[1]]}", text)


def collect_flags() -> dict[str, Any]:
    """Return the content of flags.json."""
    commands = {}
    for command in COMMANDS:
        parser = catch_parser(command)
        actions = [action for action in parser._actions if action.dest != "help"]
        has_trainer = len({action.dest for action in actions} & TRAINERS) > 50
        flags = [describe_flag(action, has_trainer) for action in actions]
        commands[command] = {
            "description": name_commands((parser.description or "").strip().replace("%%", "%")),
            "epilog": parser.epilog,
            "reads_options": isinstance(parser, arguments.ScriptParser),
            "flags": flags,
        }
    return {"transformers": version("transformers"), "commands": commands}


def write_flags(content: dict[str, Any]) -> str:
    """Return the text of flags.json, with a line for each flag, so that a change is a line."""
    parts = []
    for command, about in content["commands"].items():
        flags = ",\n".join(f"   {json.dumps(flag, ensure_ascii=False)}" for flag in about["flags"])
        head = ",\n".join(f"   {json.dumps(name)}: {json.dumps(about[name])}" for name in ABOUT)
        parts.append(f'  {json.dumps(command)}: {{\n{head},\n   "flags": [\n{flags}\n   ]}}')
    joined = ",\n".join(parts)
    return f'{{\n "transformers": {json.dumps(content["transformers"])},\n "commands": {{\n{joined}\n }}\n}}\n'


if __name__ == "__main__":
    FILE.write_text(write_flags(collect_flags()), encoding="utf-8")

"""Arguments of the scripts in examples/: how they are read, and those that describe a model."""

import argparse
import sys
from dataclasses import dataclass, field
from typing import Any

from transformers import HfArgumentParser

from hf_domain.methods import METHODS, TASK_METHODS


@dataclass
class ModelArguments:
    """Which model is fine-tuned."""

    model_name_or_path: str = field(metadata={"help": "Encoder: a folder or a name on the Hub."})
    config_name: str | None = field(default=None, metadata={"help": "Config, if not that of the model."})
    tokenizer_name: str | None = field(default=None, metadata={"help": "Tokenizer, if not that of the model."})
    cache_dir: str | None = field(default=None, metadata={"help": "Where downloads are kept."})
    model_revision: str = field(default="main", metadata={"help": "Branch, tag or commit of the model."})
    token: str | None = field(default=None, metadata={"help": "Token of the Hub, if not the stored one."})
    trust_remote_code: bool = field(default=False, metadata={"help": "Run code that comes with the model."})
    ignore_mismatched_sizes: bool = field(
        default=False, metadata={"help": "Replace the head of a model that was fine-tuned for other labels."}
    )
    method: str = field(
        default="plain",
        metadata={
            "help": "The encoder as it is, with a memory (gmap), or reading passages (rada).",
            "choices": TASK_METHODS,
        },
    )
    memory_name_or_path: str | None = field(default=None, metadata={"help": "With gmap: the general encoder."})
    memory_revision: str | None = field(default=None, metadata={"help": "Branch, tag or commit of the memory."})
    config_overrides: str | None = field(default=None, metadata={"help": "Options of the method: name=value,..."})
    overwrite_output_dir: bool = field(
        default=False,
        metadata={"help": "Start over and replace what output_dir holds; by default a killed run continues."},
    )

    @property
    def hub_options(self) -> dict[str, Any]:
        """The options that every `from_pretrained` takes."""
        return {
            "cache_dir": self.cache_dir,
            "revision": self.model_revision,
            "token": self.token,
            "trust_remote_code": self.trust_remote_code,
        }


def check_method(model_args: ModelArguments, is_method: bool) -> None:
    """Raise unless the options fit the method.

    Args:
        model_args: Name the method and its options.
        is_method: Whether the model that training starts from is of that method already.

    Raises:
        ValueError: An option is there that the method does not have, or one that it needs is missing.
    """
    method, memory = model_args.method, model_args.memory_name_or_path
    row = METHODS.get(method)
    if model_args.config_overrides and (row is None or row.keeps_encoder):
        raise ValueError(
            f"--config_overrides are options of a method and {method} has none; got {model_args.config_overrides}"
        )
    if (memory is not None) != (row is not None and row.reads_memory and not is_method):
        raise ValueError(
            "--memory_name_or_path names the memory that --method gmap joins to an encoder that has none yet; "
            f"got {memory} with --method {method}"
        )


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows defaults, and a description as it is written."""


def parse_arguments(*classes: Any, description: str | None = None) -> tuple[Any, ...]:
    """Read the command line, or the one JSON or YAML file that it names.

    Args:
        classes: Dataclasses of arguments.
        description: What `--help` begins with, such as the docstring of the script.

    Returns:
        One instance of each.
    """
    parser = HfArgumentParser(classes, description=description, formatter_class=_HelpFormatter)
    if len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
        return parser.parse_json_file(sys.argv[1])
    if len(sys.argv) == 2 and sys.argv[1].endswith((".yaml", ".yml")):
        return parser.parse_yaml_file(sys.argv[1])
    return parser.parse_args_into_dataclasses()

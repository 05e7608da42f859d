"""Check a call in Python, and say for a card how a model was made: by that call or a command, without secrets."""

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields
from difflib import get_close_matches
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, TrainingArguments

from hf_domain.training.settings import read_settings

SECRETS = ("--token", "--hub_token")
SCRIPT_COMMANDS = {
    f"run_{name}": f"hf-domain {name}"
    for name in ("mlm", "classification", "ner", "qa", "distill", "sentences", "expand_vocab")
}
# The functions set these themselves; the last two exclude training.
SET = (
    *("output_dir", "do_train", "do_eval", "do_predict", "learning_rate", "seed", "local_rank"),
    *("bf16_full_eval", "fp16_full_eval"),
)
# Names of `TrainingArguments`, or of other packages, for what an argument of the functions says.
MEANT = {"per_device_train_batch_size": "batch_size", "budget": "num_tokens", "max_length": "max_seq_length"}
# The call of Python that the cards show, instead of the command of this process.
call: ContextVar[str | None] = ContextVar("call", default=None)
# Whether errors speak of flags, because a command calls the functions of Python.
is_command: ContextVar[bool] = ContextVar("is_command", default=False)


def hide_folders(text: str) -> str:
    """Return a text with absolute paths cut to their last names, so that a card leaks no path."""
    return re.sub(r"(?<![\w.:/])/(?:[^\s/,;='\"]+/)*([^\s/,;='\"]+)", r"\1", text)


@contextmanager
def use(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    """Give a variable of this module a value in this context."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@contextmanager
def name_arguments(**names: str) -> Iterator[None]:
    """Let errors in this context speak of the arguments of a function of Python instead of flags.

    Args:
        names: Arguments by the flags that mean them. Default: the name of the flag.
    """
    try:
        yield
    except (ValueError, TypeError, OSError) as error:
        if not is_command.get() and len(error.args) == 1 and isinstance(text := error.args[0], str):
            error.args = (re.sub(r"(?<![\w-])--([a-z]\w*)", lambda flag: names.get(flag[1], flag[1]), text),)
        raise


def check_names(function: Callable[..., Any], given: Mapping[str, Any], meant: Mapping[str, str]) -> None:
    """Raise a TypeError unless all options are fields of `TrainingArguments` that the function does not set itself.

    Args:
        meant: Arguments of the function by names that mean them, besides `MEANT`.
    """
    meant, own = {**MEANT, **meant}, [*signature(function).parameters][:-1]
    known = {item.name for item in fields(TrainingArguments) if item.init} - {*SET, *own, *meant}
    for name in given:
        if name not in known:
            near = [meant[name]] if meant.get(name) in own else get_close_matches(name, [*own, *sorted(known)], n=1)
            raise TypeError(
                f"an option of {function.__name__} must be one of its arguments or a field of TrainingArguments that "
                f"it does not set, but is {name}. {f'Did you mean {near[0]}?' if near else 'Leave it out.'}"
            )


def describe_call(function: Callable[..., Any], given: Mapping[str, Any]) -> str:
    """Return a call of Python with all arguments that are not defaults, without secrets.

    Args:
        given: Values of the parameters; one that is neither a number nor a name is shown as the parameter.
    """
    parts = []
    for name, parameter in signature(function).parameters.items():
        if parameter.kind is Parameter.VAR_KEYWORD:
            options = {option: value for option, value in given[name].items() if f"--{option}" not in SECRETS}
            parts += [f"{option}={show_value(value, option)}" for option, value in options.items()]
        elif parameter.default is Parameter.empty and parameter.kind is not Parameter.KEYWORD_ONLY:
            parts.append(show_value(given[name], name))
        elif given[name] is not parameter.default and show_value(given[name], name) != repr(parameter.default):
            parts.append(f"{name}={show_value(given[name], name)}")
    return f"hf_domain.{function.__name__}({', '.join(parts)})"


def show_value(value: Any, name: str) -> str:
    """Return the source of a number or a name, or of several; `name` for data and other objects."""
    value = getattr(value, "value", value)  # of an enumeration
    if isinstance(value, PreTrainedModel):
        value = value.name_or_path or value
    if isinstance(value, str | os.PathLike):
        return repr(os.fspath(value))
    if isinstance(value, int | float | None):
        return f"{value:_}" if type(value) is int else repr(value)
    if isinstance(value, list | tuple) and all(isinstance(item, int | float) for item in value):
        return repr([*value])
    return name


def describe_command(arguments: Sequence[str] | None = None) -> str:
    """Return the command of this process without secrets and folders, with the settings of a file as flags."""
    program, *flags = arguments if arguments is not None else sys.argv
    if flags and flags[0].endswith((".json", ".yaml", ".yml")):
        flags = [*list_file_flags(flags[0]), *flags[1:]]
    kept: list[str] = []
    for flag in flags:
        if kept and kept[-1] in SECRETS:
            kept.pop()
        elif flag.partition("=")[0] not in SECRETS or "=" not in flag:
            kept.append(flag)
    if kept and kept[-1] in SECRETS:
        kept.pop()
    name = program if program.startswith("hf-domain ") else SCRIPT_COMMANDS.get(Path(program).stem, Path(program).name)
    return f"{name} {shlex.join(map(hide_folders, kept))}".strip()


def list_file_flags(file: str) -> list[str]:
    """Return the settings of a file as flags."""
    flags = []
    for name, value in read_settings(file, as_text=True).items():
        if value is not None:
            flags += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    return flags

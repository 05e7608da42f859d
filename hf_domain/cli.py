"""The `hf-domain` command, which runs the scripts of examples/ by name.

It answers `--help`, `--version` and mistakes in flags from flags.json, without importing torch and transformers, which
takes seconds.
"""

import argparse
import difflib
import importlib
import json
import re
import signal
import sys
import textwrap
import traceback
from functools import cache, partial
from importlib.metadata import version
from importlib.resources import files
from itertools import pairwise
from types import ModuleType
from typing import Any, NoReturn

from hf_domain.extras import EXTRAS, explain_missing
from hf_domain.methods import PRETRAINING_METHODS, TASK_METHODS

# Packages whose ValueErrors are meant for users. A ValueError of another package, such as torch on shapes, is our bug.
SPEAKING = ("hf_domain", "transformers", "datasets", "huggingface_hub", "tokenizers", "accelerate", "peft")
# Titles of flags in the help, in this order; then those of transformers, and those that few need.
GROUPS = (
    "Model",
    "Method",
    "Data",
    "Objective",
    "Distillation",
    "Passages",
    "Task",
    "Training",
    "Work",
    "Output",
    "Options",
)
TRAINER, RARE = "transformers' TrainingArguments", "Rarely needed"
NUMBERS = {"int": int, "float": float}
WIDTH, COLUMN = 120, 34  # of a line of help, and where the description of a flag begins
MODEL_NAME = "pretrained_model_name_or_path"  # the argument of every `from_pretrained`
USAGE = """usage: hf-domain <command> [options]

{commands}

`hf-domain <command> --help` lists the options, `--help_all` also rare ones and those of transformers.
`hf-domain <command> options.yaml` reads them from a file; `compare` reads its plan."""
# Name -> script and description, in the order of a user's work.
COMMANDS = {
    "quickstart": ("quickstart", "Compare methods on a corpus and a task, in one command."),
    "advise": ("advise", "Recommend what to try first on a corpus and its tasks, and write the plan."),
    "expand_vocab": ("run_expand_vocab", "Add the words of a domain to a tokenizer (AdaLM, exBERT)."),
    "mlm": ("run_mlm", "Continue the pre-training of an encoder on domain text, with any method."),
    "distill": ("run_distill", "Distill an encoder into a small student (Adapt-and-Distill)."),
    "build_datastore": ("build_datastore", "Build a datastore of passages for RADA, add to one, or search it."),
    "classification": ("run_classification", "Fine-tune an encoder to classify texts or pairs of texts."),
    "ner": ("run_ner", "Fine-tune an encoder to find named entities."),
    "qa": ("run_qa", "Fine-tune an encoder to find answers to questions in a text."),
    "sentences": ("run_sentences", "Score sentence embeddings on pairs or a search, and train them."),
    "predict": ("predict", "Label raw data with a fine-tuned model, with probabilities."),
    "compare": ("compare", "Compare methods at equal cost, following a plan."),
    "publish": ("publish", "Publish a trained model with its card; one of a comparison with its scores."),
    "export": ("run_export", "Export a model to ONNX."),
}


def describe_commands() -> str:
    """Return a line of help for each command."""
    width = max(map(len, COMMANDS))
    return "\n".join(f"  {name:{width}}  {sentence}" for name, (_, sentence) in COMMANDS.items())


def find_module(name: str) -> str:
    """Return the module of a command; a kind of task of another package names its module itself."""
    return f"hf_domain.examples.{COMMANDS[name][0]}" if name in COMMANDS else name


def import_command(name: str) -> ModuleType:
    """Import the script of a command; it has `main`, and `ARGUMENTS` if its arguments are dataclasses."""
    return importlib.import_module(find_module(name))


@cache
def read_flags() -> dict[str, Any]:
    """Return what tools/make_flags.py found in the parsers of the scripts: importing one takes seconds."""
    return json.loads((files("hf_domain") / "flags.json").read_text(encoding="utf-8"))


def list_flags(command: str) -> list[dict[str, Any]]:
    """Return the flags of a command in the order of its script, and those of transformers behind them."""
    flags = read_flags()["commands"][command]["flags"]
    for flag in flags:
        for methods in (PRETRAINING_METHODS, TASK_METHODS):  # other packages add some
            if flag["names"][0] == "--method" and methods[0] in flag.get("choices", ()):
                flag["choices"] = [*methods]
    return flags


def takes_training_arguments(command: str) -> bool:
    """Return whether a command takes the flags of transformers' TrainingArguments."""
    return any(flag["group"] == TRAINER for flag in list_flags(command))


class FlagParser(argparse.ArgumentParser):
    """A parser whose errors are ValueErrors."""

    def error(self, message: str) -> NoReturn:
        """Raise a ValueError."""
        raise ValueError(message)


def make_parser(command: str, is_short: bool = False) -> FlagParser:
    """Return a parser of the flags that flags.json describes.

    Args:
        is_short: Leave out the flags of transformers and those that few need, and give each other flag one line.
    """
    about, flags, prog = read_flags()["commands"][command], list_flags(command), f"hf-domain {command}"
    needed = [flag["names"][0] for flag in flags if flag["required"]]
    usage = " ".join([prog, *(f"{name} {name.strip('-').upper()}" if "--" in name else name for name in needed)])
    usage += f" [options]\n       {prog} options.yaml [options]" if about["reads_options"] else " [options]"
    description, epilog = about["description"], about["epilog"]
    hidden = [flag["names"][0] for flag in flags if flag["group"] == RARE] if is_short else []
    if is_short:
        description = "\n\n".join(description.split("\n\n")[:2])  # a sentence and the first example
        epilog = textwrap.fill(f"{RARE}: {', '.join(hidden)}", WIDTH, break_on_hyphens=False)
        epilog += f"\nAll flags of {TRAINER} are taken, too: {prog} --help_all"
    formatter = partial(argparse.RawDescriptionHelpFormatter, max_help_position=COLUMN, width=WIDTH)
    options: dict[str, Any] = {"add_help": False, "allow_abbrev": False, "formatter_class": formatter}
    parser = FlagParser(prog, usage, description, epilog, **options)
    groups = {title: parser.add_argument_group(title) for title in (*GROUPS, TRAINER, RARE)}
    for flag in flags:
        if not is_short or flag["group"] not in (TRAINER, RARE):
            groups[flag["group"]].add_argument(*flag["names"], **describe_flag(flag, is_short))
    return parser


def describe_flag(flag: dict[str, Any], is_short: bool) -> dict[str, Any]:
    """Return the options of a flag as argparse takes them."""
    about = re.split(r"(?<=[.;]) (?=[A-Z])", flag["help"])[0].rstrip(".,;") if is_short else flag["help"]
    says_nothing = flag["default"] in (None, False, [], "") or "default" in about.lower()
    default = "" if says_nothing else f" (default: {flag['default']})"
    if is_short:
        about = textwrap.shorten(about, WIDTH - COLUMN - len(default), placeholder=" ...")
    options: dict[str, Any] = {"help": (about + default).replace("%", "%%")}
    if flag["names"][0].startswith("--"):
        options["required"] = flag["required"]
    if flag["nargs"] == 0:
        return options | {"action": "store_true"}
    if is_short:
        return options | {"metavar": ""}
    return options | {"nargs": flag["nargs"], "type": NUMBERS.get(flag["type"]), "choices": flag.get("choices")}


def check_flags(command: str, arguments: list[str]) -> None:
    """Raise a ValueError for a flag that is unknown or missing, or has a value that is no number or no choice of it."""
    parser = make_parser(command)
    # Another version of transformers has other flags and choices, which the script's own parser knows.
    is_strict = not takes_training_arguments(command) or version("transformers") == read_flags()["transformers"]
    has_file = bool(arguments) and arguments[0].endswith((".json", ".yaml", ".yml"))
    for action in parser._actions:
        action.required = action.required and not has_file
        action.choices = action.choices if is_strict else None
    # transformers takes --max-steps, too.
    spelled = [re.sub("(?<=^--)[^=]+", lambda name: name[0].replace("-", "_"), each) for each in arguments]
    unknown = [each for each in parser.parse_known_args(spelled)[1] if each.startswith("--") and is_strict]
    if unknown:
        name = unknown[0].partition("=")[0]
        near = difflib.get_close_matches(name, parser._option_string_actions, n=3)
        advice = f"did you mean {' or '.join(near)}?" if near else "--help_all lists them"
        raise ValueError(f"there is no option {name}: {advice}")


def format_help(command: str, show_all: bool = False) -> str:
    """Return the help of a command.

    Args:
        show_all: Also show the flags of transformers' TrainingArguments, rare ones, and whole descriptions. Default:
            a line for each flag, on one screen or two.
    """
    is_short = takes_training_arguments(command) and not show_all
    text = make_parser(command, is_short).format_help()
    return re.sub(r"(\n  --.*)\n\n(?=\w+:\n)", r"\1\n", text) if is_short else text


def main() -> None:
    """Run the named script with the remaining arguments. A user's mistake gives one line instead of a traceback."""
    usage = USAGE.format(commands=describe_commands())
    if len(sys.argv) < 2:
        sys.exit(usage)
    if sys.argv[1] in ("-h", "--help"):
        sys.stdout.write(usage + "\n")
        return
    if sys.argv[1] == "--version":
        sys.stdout.write(f"hf-domain {version('hf-domain')}\n")
        return
    name = sys.argv.pop(1)
    if name not in COMMANDS:
        sys.exit(f"error: hf-domain has no command {name}\n{usage}")
    sys.argv[0] = f"hf-domain {name}"
    try:
        if {"-h", "--help", "--help_all"} & {*sys.argv}:
            sys.stdout.write(format_help(name, "--help_all" in sys.argv))
        else:
            check_flags(name, sys.argv[1:])
            import_command(name).main()
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted\n")
        sys.exit(128 + signal.SIGINT)
    except Exception as error:
        from hf_domain.safe_io import describe_full_disk, is_disk_full

        if is_disk_full(error):  # safetensors, tokenizers and torch have their own errors for it
            sys.exit(f"error: {describe_full_disk(error, find_output(sys.argv))}")
        if (message := describe_mistake(error)) is None:
            raise
        sys.exit(f"error: {message}")


def find_output(arguments: list[str]) -> str:
    """Return the folder that the arguments of a command name for its output; else the current one."""
    words = [word for argument in arguments for word in argument.split("=", 1)]
    given = dict(pairwise(words))
    return given.get("--output_dir", ".")


def describe_mistake(error: Exception) -> str | None:
    """Return the message of an error that a user can fix; None for a bug, which needs its traceback."""
    is_of_files = isinstance(error, (OSError, ModuleNotFoundError)) or type(error).__name__ == "SafetensorError"
    if not is_of_files and not (isinstance(error, ValueError) and _find_package(error) in SPEAKING):
        return None
    message = str(error)
    if isinstance(error, OSError) and error.strerror and error.filename:
        message = f"{error.strerror}: {error.filename}"
    if isinstance(error, ModuleNotFoundError) and (package := str(error.name).partition(".")[0]) in EXTRAS:
        message = explain_missing("this command", package) or message
    message = describe_lost_model(error) or message
    # Keep the lines of a plan's problems. Shorten other messages: some of transformers list hundreds of classes.
    return message if "\n- " in message else textwrap.shorten(message, 600, placeholder=" ...")


def describe_lost_model(error: Exception) -> str | None:
    """Return what a user of commands can do about a model that was not loaded; None for other errors.

    transformers names no model if it reaches no Hub, and advises a Python argument against code of the model's own.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    names = [frame.f_locals[MODEL_NAME] for frame in frames if MODEL_NAME in frame.f_locals]
    if names and "couldn't connect to" in str(error):
        return (
            f"a model must be a folder or a name on the Hub, but there is no folder {names[0]}, and the Hub cannot be "
            "reached. Correct the path, or connect to the Hub."
        )
    if names and "argument `trust_remote_code=True`" in str(error):
        name = sys.argv[0].rpartition(" ")[2]
        may_run = name in COMMANDS and any("--trust_remote_code" in flag["names"] for flag in list_flags(name))
        advice = "Add --trust_remote_code if you trust it." if may_run else "Use a model that needs none."
        return f"code of a model runs only if you ask for it, but {names[0]} has code of its own. {advice}"
    return None


def _find_package(error: Exception) -> str:
    """Return the package that raised an error."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return str(frames[-1].f_globals.get("__name__", "")).partition(".")[0]

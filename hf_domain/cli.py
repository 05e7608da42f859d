"""The `hf-domain` command, which runs the scripts of examples/ by name.

It answers `--help`, `--version` and mistakes in flags from flags.json, without importing torch and transformers, which
takes seconds.
"""

import difflib
import importlib
import json
import re
import shutil
import signal
import sys
import textwrap
import traceback
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from itertools import pairwise, zip_longest
from types import ModuleType
from typing import Any

from hf_domain.extras import EXTRAS, explain_missing
from hf_domain.methods import PRETRAINING_METHODS, TASK_METHODS

# Packages whose ValueErrors are meant for users. A ValueError of another package, such as torch on shapes, is our bug.
SPEAKING = ("hf_domain", "transformers", "datasets", "huggingface_hub", "tokenizers", "accelerate", "peft", "evaluate")
NUMBERS: dict[str, tuple[type, str]] = {"int": (int, "a whole number"), "float": (float, "a number")}
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
COLUMN = 30  # where the help of a flag begins
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
# Commands of earlier versions, and what does their work.
REPLACED = {
    "average_models": "use hf_domain.averaging.average_models in Python",
    "explore": "run python examples/explore_app/app.py in a clone",
    "probe": "fit a linear model of scikit-learn on the states of the encoder in Python",
    "publish_results": "upload the results/ of the comparison with hf upload --repo-type dataset",
    "report_forgetting": "use hf-domain mlm --do_eval --validation_file DOMAIN --general_validation_file GENERAL",
    "search_datastore": "use hf-domain build_datastore --output_dir DATASTORE --query TEXT",
    "select_text": "use hf_domain.datastore.nearest.choose_nearest in Python",
    "trim_vocab": "use hf_domain.tokenization.trim_vocabulary and hf_domain.methods.adalm.trim.keep_rows in Python",
}


def describe_commands() -> str:
    """Return a line of help for each command."""
    width = max(map(len, COMMANDS))
    return "\n".join(f"  {name:{width}}  {sentence}" for name, (_, sentence) in COMMANDS.items())


def find_module(name: str) -> str:
    """Return the module of a command."""
    return f"hf_domain.examples.{COMMANDS[name][0]}"


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


def check_flags(command: str, arguments: list[str]) -> None:
    """Raise a ValueError for a flag that is unknown or missing, or has a value that is no number or no choice of it."""
    flags = {spelling.lstrip("-"): flag for flag in list_flags(command) for spelling in flag["names"]}
    flags |= {name: {"names": ["--help"], "type": "bool"} for name in ("help", "help_all")}
    given = dict[str, str]()
    # Another version of transformers has other flags and choices, which the script's own parser knows.
    is_strict = not takes_training_arguments(command) or version("transformers") == read_flags()["transformers"]
    for argument, following in zip_longest(arguments, arguments[1:], fillvalue="--"):
        if not argument.startswith("--"):
            continue
        name, sign, value = argument.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        if name not in flags and not is_strict:
            continue
        if name not in flags:
            near = difflib.get_close_matches(name, flags, n=3)
            advice = f"did you mean {' or '.join(f'--{each}' for each in near)}?" if near else "--help_all lists them"
            raise ValueError(f"there is no option --{name}: {advice}")
        value = value if sign else following
        given[flags[name]["names"][0]] = value
        if not value.startswith("--"):
            check_value(name, flags[name] if is_strict else flags[name] | {"choices": None}, value)
    if "--help" not in given and "-h" not in arguments:
        check_required(command, arguments, given)


def check_value(name: str, flag: dict[str, Any], value: str) -> None:
    """Raise a ValueError unless a value is a number where a flag needs one, and one of its choices."""
    number, needed = NUMBERS.get(flag["type"], (str, ""))
    try:
        number(value)
    except ValueError:
        raise ValueError(f"--{name} must be {needed}, but is {value}") from None
    choices = flag.get("choices") or [value]
    if value not in choices:
        raise ValueError(f"--{name} must be one of {', '.join(choices)}, but is {value}. Use one of them.")


def check_required(command: str, arguments: list[str], given: dict[str, str]) -> None:
    """Raise a ValueError unless all required flags are given; a file of options may have them."""
    if arguments and arguments[0].endswith((".json", ".yaml", ".yml")):
        return
    required = [flag["names"][0] for flag in list_flags(command) if flag["required"]]
    missing = [name for name in required if name.startswith("--") and name not in given]
    if all(argument.startswith("--") for argument in arguments):
        missing += [name for name in required if not name.startswith("--")]
    if missing:
        raise ValueError(
            f"the command needs {' and '.join(missing)}, which is missing. Add it; --help lists the flags."
        )


# ------------------------------------------------------------------------------------------------------------- help


def format_help(command: str, show_all: bool = False) -> str:
    """Return the help of a command.

    Args:
        show_all: Also show the flags of transformers' TrainingArguments, rare ones, and whole descriptions. Default:
            a line for each flag, on one screen or two.
    """
    about, prog = read_flags()["commands"][command], f"hf-domain {command}"
    is_short = takes_training_arguments(command) and not show_all
    width = min(shutil.get_terminal_size((120, 24)).columns, 120)
    required = [flag for flag in about["flags"] if flag["required"]]
    needed = " ".join(
        flag["names"][0] + f" {name_value(flag)}" * flag["names"][0].startswith("--") for flag in required
    )
    lines = [f"usage: {prog} {needed}".rstrip() + " [options]"]
    lines += [f"       {prog} options.yaml [options]"] * about["reads_options"] + [""]
    description = about["description"]
    # A sentence and the first example.
    lines += ["\n\n".join(description.split("\n\n")[:2]), ""] if is_short else [description]
    groups: dict[str, list[dict[str, Any]]] = {}
    for flag in about["flags"]:
        groups.setdefault(flag["group"], []).append(flag)
    for title in sorted(groups, key=[*GROUPS, TRAINER, RARE].index):
        if is_short and title in (TRAINER, RARE):
            continue
        lines += [*[""] * (not is_short), f"{title}:"]
        lines += [line for flag in groups[title] for line in format_flag(flag, width, is_short)]
    if is_short:
        rare = ", ".join(flag["names"][0] for flag in groups.get(RARE, ()))
        lines += ["", *textwrap.wrap(f"{RARE}: {rare}", width, break_on_hyphens=False)]
        lines += [f"All flags of {TRAINER} are taken, too: {prog} --help_all"]
    if about["epilog"]:
        lines += ["", about["epilog"]]
    return name_commands("\n".join(lines)) + "\n"


def name_value(flag: dict[str, Any]) -> str:
    """Return what stands for the value of a flag."""
    return flag["names"][0].strip("-").upper()


def format_flag(flag: dict[str, Any], width: int, is_short: bool) -> list[str]:
    """Return the help of a flag: one line with its first sentence, or all of it."""
    name = ", ".join(flag["names"])
    about = re.split(r"(?<=[.;]) (?=[A-Z])", flag["help"])[0].rstrip(".,;") if is_short else flag["help"]
    says_nothing = flag["default"] in (None, False, [], "") or "default" in about.lower()
    default = "" if says_nothing else f" (default: {flag['default']})"
    if is_short:
        room = width - COLUMN - len(default)
        return [f"  {name:{COLUMN - 3}} {textwrap.shorten(about, max(room, 20), placeholder=' ...')}{default}"]
    choices = f" One of {', '.join(flag['choices'])}." if flag.get("choices") else ""
    indent = " " * COLUMN
    text = textwrap.wrap(f"{about}{choices}{default}", width, initial_indent=indent, subsequent_indent=indent)
    if len(name) > COLUMN - 4:
        return [f"  {name}", *text]
    return [f"  {name:{COLUMN - 3}} {text[0].strip() if text else ''}", *text[1:]]


# -------------------------------------------------------------------------------------------------------------- run


def main(is_checked: bool = False) -> None:
    """Run the named script with the remaining arguments. A user's mistake gives one line instead of a traceback.

    Args:
        is_checked: The flags were checked, as a comparison checks those of its steps before the first one.
    """
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
    if name in REPLACED:
        sys.exit(f"error: hf-domain has no command {name} any more: {REPLACED[name]}.")
    if name not in COMMANDS:
        sys.exit(f"error: hf-domain has no command {name}\n{usage}")
    sys.argv[0] = f"hf-domain {name}"
    try:
        run(name, is_checked)
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


def run(name: str, is_checked: bool) -> None:
    """Run a command, or write its help without importing its script."""
    if not is_checked:
        check_flags(name, sys.argv[1:])
    if asked := {"-h", "--help", "--help_all"} & {*sys.argv[1:]}:
        sys.stdout.write(format_help(name, "--help_all" in asked))
        return
    import_command(name).main()


def find_output(arguments: list[str]) -> str:
    """Return the folder that the arguments of a command name for its output; else the current one."""
    words = [word for argument in arguments for word in argument.split("=", 1)]
    given = dict(pairwise(words))
    return given.get("--output_dir", ".")


def name_commands(text: str) -> str:
    """Replace the scripts of a help text by the commands that run them: an installed package has no folder examples."""
    names = {script: name for name, (script, _) in COMMANDS.items()}
    pattern = rf"(?:python examples/)?\b({'|'.join(names)})\.py\b"
    return re.sub(pattern, lambda found: f"hf-domain {names[found[1]]}", text)


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

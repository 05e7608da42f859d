"""Read and check the arguments of the scripts in examples/; define those of models and tasks."""

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, NoReturn, get_origin

from safetensors import SafetensorError, safe_open
from transformers import HfArgumentParser, TrainingArguments

from hf_domain.hub import check_license, is_hub_id
from hf_domain.methods import METHODS, PLAIN, TASK_METHODS
from hf_domain.training.device import compile_if_it_pays, is_fast_in_bfloat16
from hf_domain.training.recipes import list_defaults
from hf_domain.training.settings import read_settings

PADDING_FREE = "Compute no padding: several texts share a row, without attention between them."


@dataclass
class ModelArguments:
    """The model to fine-tune."""

    model_name_or_path: str = field(metadata={"help": "Encoder: a folder or a name on the Hub."})
    config_name: str | None = field(default=None, metadata={"help": "Config to use instead of the model's."})
    tokenizer_name: str | None = field(default=None, metadata={"help": "Tokenizer to use instead of the model's."})
    cache_dir: str | None = field(default=None, metadata={"help": "Folder for downloads."})
    model_revision: str = field(default="main", metadata={"help": "Branch, tag or commit of the model."})
    token: str | None = field(default=None, metadata={"help": "Hub token to use instead of the stored one."})
    trust_remote_code: bool = field(default=False, metadata={"help": "Run code that comes with the model."})
    ignore_mismatched_sizes: bool = field(
        default=False, metadata={"help": "Replace the head of a model that was fine-tuned for other labels."}
    )
    method: str = field(
        default=PLAIN,
        metadata={
            "help": "Fine-tune the encoder alone (plain), with a memory (gmap) or with passages (rada).",
            "choices": TASK_METHODS,
        },
    )
    memory_name_or_path: str | None = field(default=None, metadata={"help": "With gmap: the general encoder."})
    memory_revision: str | None = field(default=None, metadata={"help": "Branch, tag or commit of the memory."})
    config_overrides: str | None = field(default=None, metadata={"help": "Options of the method: name=value,..."})
    start: Literal["recommended", "paper"] = field(
        default="recommended",
        metadata={"help": "How a new model starts: recommended (computes what its encoder does) or as in the paper."},
    )
    method_learning_rate: float | None = field(
        default=None,
        metadata={
            "help": "Learning rate of the weights that the method adds to the encoder. Default: the encoder's, but at "
            "least 1e-3 with rada and 2e-3 with gmap, except with --start paper."
        },
    )
    overwrite_output_dir: bool = field(
        default=False,
        metadata={"help": "Replace the content of output_dir. Default: resume a killed run."},
    )
    verbose: bool = field(
        default=False, metadata={"help": "Show all arguments and the messages of transformers and datasets."}
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


@dataclass
class FineTuningArguments(ModelArguments):
    """The model to fine-tune, and how much of it to train."""

    head_initializer_range: float | None = field(
        default=None,
        metadata={"help": "Standard deviation of a new head's weights. Default: set from the states it reads."},
    )
    train_top_layers: int = field(
        default=0, metadata={"help": "Train only the head and this many top layers. Default: everything."}
    )
    early_stopping_patience: int | None = field(
        default=None,
        metadata={
            "help": "Stop after this many evaluations (epochs) without a better score, and keep the best weights."
        },
    )
    padding_free: bool = field(default=False, metadata={"help": PADDING_FREE})


@dataclass
class FineTunerArguments(TrainingArguments):
    """transformers' training arguments, with a learning rate that fits the encoder, and a length that fits the task."""

    learning_rate: float | None = field(  # type: ignore[assignment] # FineTuningTrainer sets it
        default=None, metadata={"help": "Default: 5e-5 * (768 / hidden_size)^2, at most 5e-4."}
    )
    per_device_train_batch_size: int = field(default=16, metadata={"help": "Examples in a batch of a device."})
    warmup_steps: float = field(default=0.1, metadata={"help": "Steps of warm-up, or below 1 their share of all."})
    num_train_epochs: float | None = field(  # type: ignore[assignment] # FineTuningTrainer sets it
        default=None,
        metadata={
            "help": "Default: without --max_steps, the longer of 3 epochs and 1,000 steps, and no longer than the "
            "validation score improves."
        },
    )
    train_sampling_strategy: str = field(
        default="group_by_length",
        metadata={
            "help": "Sampler for training. Default: batches of texts of like lengths, which computes less padding.",
            "choices": ["random", "sequential", "group_by_length", "batch_rebalance"],
        },
    )

    @property
    def is_open_ended(self) -> bool:
        """Whether the run chooses how long to train."""
        return self.do_train and self.num_train_epochs is None and self.max_steps <= 0


# argparse's options of a flag that needs no value but has three states.
SWITCH = {"nargs": "?", "const": True}


@dataclass
class PretrainerArguments(TrainingArguments):
    """transformers' training arguments, which choose what suits the encoder and a GPU unless the run says so."""

    learning_rate: float | None = field(  # type: ignore[assignment] # `pretrain` sets it
        default=None, metadata={"help": "Default: by the encoder's size and the method."}
    )
    per_device_train_batch_size: int = field(default=32, metadata={"help": "Examples in a batch of a device."})
    warmup_steps: float = field(default=0.1, metadata={"help": "Steps of warm-up, or below 1 their share of all."})
    bf16: bool | None = field(  # type: ignore[assignment] # set below
        default=None,
        metadata=SWITCH
        | {"help": "Train in bfloat16 mixed precision. Default: on a GPU of compute capability 8 or more."},
    )
    torch_compile: bool | None = field(  # type: ignore[assignment] # set below
        default=None,
        metadata=SWITCH
        | {"help": "Compile the model. Default: on such a GPU, if the training is long enough to gain time."},
    )

    def __post_init__(self) -> None:
        self.may_compile = self.torch_compile is None and not self.torch_compile_backend and not self.torch_compile_mode
        self.torch_compile = bool(self.torch_compile)
        if self.bf16 is None:
            self.bf16 = not self.fp16 and not self.deepspeed and is_fast_in_bfloat16(self.use_cpu)
        super().__post_init__()

    def choose_compilation(self, passes: int) -> None:
        """Compile a training of this many forward passes, all of equal shape, if that pays and no flag decides."""
        if self.may_compile:
            compile_if_it_pays(self, passes)


def check_method(model_args: ModelArguments, is_method: bool) -> None:
    """Raise a ValueError unless the options fit the method.

    Args:
        is_method: Whether training starts from a model of that method.
    """
    method, memory = model_args.method, model_args.memory_name_or_path
    row = METHODS.get(method)
    if model_args.config_overrides and (row is None or row.trains_stock_model):
        raise ValueError(
            f"--config_overrides needs a method with options, but {method} has none and the flag is "
            f"{model_args.config_overrides}. Leave it out."
        )
    needs_memory = row is not None and row.reads_memory and not is_method
    if (memory is not None) != needs_memory:
        raise ValueError(
            f"--memory_name_or_path must be given exactly when --method gmap builds a new G-MAP, but is {memory} "
            f"with --method {method}. {'Add' if needs_memory else 'Remove'} it."
        )


def check_work(training_args: TrainingArguments, *names: str) -> None:
    """Raise a ValueError unless a run has something to do, and does not convert the weights that it trains.

    Args:
        names: Flags that give it something, such as `do_train`.
    """
    if not any(getattr(training_args, name) for name in names):
        raise ValueError(f"a run must have something to do. Add {' or '.join(f'--{name}' for name in names)}.")
    if training_args.do_train and (training_args.bf16_full_eval or training_args.fp16_full_eval):
        raise ValueError(
            "--bf16_full_eval and --fp16_full_eval must come without --do_train, because Trainer then converts the "
            "weights that it trains, but both are given. Use --bf16 or --fp16, or evaluate in a run of its own."
        )


def check_best_metric(training_args: TrainingArguments, names: Sequence[str]) -> None:
    """Raise a ValueError unless the evaluation computes the metric that chooses the best checkpoint.

    Trainer looks for the metric only after training began.

    Args:
        names: Metrics of the evaluation, beside the loss.
    """
    name, known = training_args.metric_for_best_model, ("loss", *names)
    if training_args.do_train and training_args.do_eval and name and name.removeprefix("eval_") not in known:
        raise ValueError(
            f"--metric_for_best_model must be one of {', '.join(known)}, but is {name}. Name one of them, or leave the "
            "flag out."
        )


# The range of each number by its flag, for all scripts. NaN is in no range.
_RULES: dict[str, Callable[[float], bool]] = {
    "at least 1": lambda value: 1 <= value < math.inf,
    "at least 0": lambda value: 0 <= value < math.inf,
    "above 0": lambda value: 0 < value < math.inf,
    "above 0 and at most 1": lambda value: 0 < value <= 1,
    "at least 0 and below 1": lambda value: 0 <= value < 1,
    "at least 0 and below 100": lambda value: 0 <= value < 100,
    "at least 1, or -1 for no limit": lambda value: 1 <= value < math.inf or value == -1,
    "a whole number from 0 to 4294967295": lambda value: 0 <= value < 2**32,
    # Two special tokens and one of the text.
    "at least 3": lambda value: 3 <= value < math.inf,
}
RANGES = {
    name: rule
    for rule, names in {
        "at least 1": "per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps "
        "max_train_samples max_eval_samples max_predict_samples max_samples preprocessing_num_workers num_workers "
        "num_passages batch_size n_best_size max_answer_length max_length num_hidden_layers hidden_size "
        "num_attention_heads intermediate_size num_relation_heads student_layers teacher_layer num_tokens num_seeds "
        "early_stopping_patience size step max_size min_frequency max_word_length num_processes",
        "at least 0": "weight_decay warmup_steps max_grad_norm threshold weights teacher_steps "
        "head_first_steps student_steps masked_lm_steps train_top_layers doc_stride dataloader_num_workers "
        "neftune_noise_alpha",
        "above 0": "learning_rate pretraining_learning_rate mlm_learning_rate method_learning_rate "
        "num_train_epochs adam_epsilon",
        "above 0 and at most 1": "mlm_probability decay_mlm_probability",
        "at least 0 and below 1": "adam_beta1 adam_beta2 label_smoothing_factor",
        "at least 0 and below 100": "validation_split_percentage",
        "at least 1, or -1 for no limit": "max_steps",
        "a whole number from 0 to 4294967295": "seed data_seed",
        "at least 3": "max_seq_length task_max_seq_length",
    }.items()
    for name in names.split()
}


def find_wrong_values(values: Mapping[str, Any]) -> list[str]:
    """Return an error message for each number that is out of range."""
    return [
        f"--{name} must be {RANGES[name]}, but is {item}"
        for name, value in values.items()
        if name in RANGES
        for item in (value if isinstance(value, list) else [value])
        if item is not None and not _is_in_range(item, _RULES[RANGES[name]])
    ]


def _is_in_range(value: float | str, rule: Callable[[float], bool]) -> bool:
    try:
        return rule(float(value))  # the quickstart's rates are text, copied into a plan
    except ValueError:
        return False


def find_wrong_paths(values: Mapping[str, Any]) -> list[str]:
    """Return an error message for each model that cannot be loaded, and for an output folder that is not writable."""
    models = [values.get(name) for name in ("model_name_or_path", "memory_name_or_path", "student_name_or_path")]
    names = [name for value in models for name in (value if isinstance(value, list) else [value]) if name]
    problems = [problem for name in names if (problem := find_damage(name))]
    if (folder := values.get("output_dir")) and not _can_write(Path(folder)):
        problems.append(f"--output_dir must be a writable folder, but {folder} is not")
    return problems


def find_wrong_license(values: Mapping[str, Any]) -> list[str]:
    """Return an error message for a license that the Hub does not know: the card is written after training."""
    try:
        check_license(values.get("data_license"))
    except ValueError as error:
        return [f"--data_license: {error}".rstrip(".")]
    return []


MODEL_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json")


def find_damage(name: str, parent: str | Path = "") -> str | None:
    """Return why a model folder cannot be loaded; None if it can. transformers' own errors do not name the file."""
    folder = Path(parent, name)
    if not folder.is_dir():
        is_path = folder.exists() or not is_hub_id(name, parent)
        return f"a model must be a folder or a name on the Hub, but {name} is neither" if is_path else None
    settings = [file for name in MODEL_FILES if (file := folder / name).is_file()]
    if not settings:
        return f"a model must have one of the files {', '.join(MODEL_FILES)}, but {name} has none"
    for file in settings:
        try:
            is_object = isinstance(json.loads(file.read_text(encoding="utf-8")), dict)
        except (ValueError, RecursionError):
            is_object = False
        if not is_object:
            return f"{file} must be a JSON object, but is not. Save the model again"
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt"):
                pass
        except SafetensorError as error:
            return f"{file} must be a complete weights file, but cannot be read ({error}). Copy or save the model again"
    return None


def check_model(name: str | os.PathLike) -> None:
    """Raise a ValueError if a model folder cannot be loaded, see `find_damage`."""
    if (damage := find_damage(os.fspath(name))) is not None:
        raise ValueError(f"{damage}. Check the name.")


def _can_write(folder: Path) -> bool:
    """Return whether a folder can be written, or created if it does not exist."""
    parent = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of a description; `hf-domain <command> --help` shows the same flags by purpose."""

    def _format_usage(self, usage: str | None, actions: Any, groups: Any, prefix: str | None) -> str:
        # A usage of a hundred flags would hide the description.
        return super()._format_usage(usage, [action for action in actions if action.required], groups, prefix)


class OneLineParser(argparse.ArgumentParser):
    """argparse's parser with one-line errors: the usage of a training script fills three screens."""

    source = ""
    """File that the arguments come from, for errors."""

    def error(self, message: str) -> NoReturn:
        """End the program."""
        source = f"{self.source}: " if self.source else ""
        self.exit(2, f"error: {source}{' '.join(message.split())}; `{self.prog} --help` lists the options\n")


class ScriptParser(OneLineParser, HfArgumentParser):
    """Fills dataclasses from the command line, and refuses unknown flags and values out of range."""

    def __init__(self, classes: Any, **options: Any):
        # An abbreviation may mean another flag in the next release.
        super().__init__(classes, allow_abbrev=False, **options)

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:  # type: ignore[override]
        """Parse and check all arguments; unknown ones are an error."""
        values, unknown = super().parse_known_args(args, namespace)
        if (recipe := getattr(values, "recipe", None)) is not None:
            self.set_defaults(**list_defaults(recipe))
            values, unknown = super().parse_known_args(args, namespace)
        if unknown:
            known = [f"--{item.name}" for kind in self.dataclass_types for item in fields(kind)]
            similar = get_close_matches(unknown[0].partition("=")[0], known, n=1)
            self.error(f"there is no argument {unknown[0]}{f'; did you mean {similar[0]}?' if similar else ''}")
        if wrong := self.find_wrong(vars(values)):
            self.error(". ".join(wrong))
        return values, unknown

    def find_wrong(self, values: Mapping[str, Any]) -> list[str]:
        """Return an error message for each value that cannot be used."""
        return find_wrong_values(values) or find_wrong_license(values) or find_wrong_paths(values)

    def read_file(self, file: str) -> list[str]:
        """Return the settings of a YAML or JSON file as a command line, so that the flags define the types.

        Raises:
            ValueError: A name is unknown or trusts code, or a value has another form; see also `read_settings`.
        """
        kinds = {item.name: item.type for kind in self.dataclass_types for item in fields(kind)}
        arguments = []
        for name, value in read_settings(file, as_text=True).items():
            if name not in kinds:
                similar = get_close_matches(str(name), kinds, n=1)
                raise ValueError(
                    f"{file} has the unknown name {name}{f'; did you mean {similar[0]}?' if similar else ''}"
                )
            if name == "trust_remote_code":  # anybody may have written the file
                raise ValueError(
                    f"{file} must not run code of others, but sets trust_remote_code. Remove it, and add "
                    "--trust_remote_code to the command line if you trust the code."
                )
            if value is None:
                continue  # an empty entry keeps the default
            if isinstance(value, list) and get_origin(kinds[name]) is not list:
                raise ValueError(f"{file}: {name} must be one value, but is a list of {len(value)}")
            if isinstance(value, list):
                texts = [*map(_write, value)]
                if flags := [text for text in texts if text.startswith("--")]:
                    raise ValueError(
                        f"{file}: {name} must have values, but has the flag {flags[0]}. Write it as a line of its own."
                    )
                arguments += [f"--{name}", *texts]
            else:
                arguments.append(f"--{name}={_write(value)}")
        return arguments


def _write(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def parse_arguments(*classes: Any, description: str | None = None) -> tuple[Any, ...]:
    """Return one instance of each class, filled from the command line.

    The command line may begin with a JSON or YAML file; flags after it override its values.

    Args:
        description: First lines of `--help`, such as the docstring of the script.

    Raises:
        ValueError: The file cannot be read.
        SystemExit: An argument is unknown, missing or out of range.
    """
    parser = ScriptParser(classes, description=description, formatter_class=HelpFormatter)
    arguments = sys.argv[1:]
    if arguments and arguments[0].endswith((".json", ".yaml", ".yml")):
        parser.source = arguments[0]
        arguments = [*parser.read_file(arguments[0]), *arguments[1:]]
    return parser.parse_args_into_dataclasses(arguments, look_for_args_file=False)


@contextmanager
def keep_last_batch(args: TrainingArguments) -> Iterator[None]:
    """Ignore `dataloader_drop_last`, which is for training."""
    drops, args.dataloader_drop_last = args.dataloader_drop_last, False
    try:
        yield
    finally:
        args.dataloader_drop_last = drops

"""Check the steps of a comparison before the first of them runs."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from transformers import MODEL_FOR_MASKED_LM_MAPPING, AutoConfig, AutoTokenizer

from hf_domain.cli import import_command
from hf_domain.comparison.plan import Plan
from hf_domain.comparison.step import Step
from hf_domain.data.causal import check_causal
from hf_domain.data.corpora import check_length
from hf_domain.training.arguments import ScriptParser, find_wrong_values

# What two encoders share whose weights have the same sizes.
SIZES = ("model_type", "vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size", "max_position_embeddings")


class _FlagParser(ScriptParser):
    def find_wrong(self, values: Mapping[str, Any]) -> list[str]:
        return find_wrong_values(values)  # paths are relative to the plan, and some are made by earlier steps

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def check_step_flags(steps: Iterable[Step]) -> None:
    """Check that the commands take the flags of their steps, before the first of them runs.

    Raises:
        ValueError: A flag is unknown or has a value of a wrong type; lists all of them.
    """
    given: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for step in steps:
        for name in step.flags:  # one by one, because a parser reports only its first problem
            given[step.command, *step.list_arguments(name)].append(step.name)
    parsers: dict[str, _FlagParser] = {}
    problems: dict[str, list[str]] = {}
    for (command, *arguments), names in given.items():
        if command not in parsers:
            parsers[command] = _FlagParser(import_command(command).ARGUMENTS)
            for action in parsers[command]._actions:
                action.required = False
        try:
            # A value such as --trust_remote_code would be a flag of its own on the step's command line.
            if flags := [value for value in arguments[1:] if value.startswith("--")]:
                raise ValueError(f"{arguments[0]} must have values, but has the flag {flags[0]}. Remove it.")
            parsers[command].parse_args(arguments)
        except ValueError as error:
            problems[f"{command}: {error}"] = names
    if problems:
        lines = "".join(
            f"\n- {problem} ({names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''})"
            for problem, names in problems.items()
        )
        raise ValueError(f"the flags of the plan have {len(problems)} problem(s); nothing was run:{lines}")


def check_encoders(plan: Plan, steps: Iterable[Step]) -> None:
    """Check before the first run that the encoders have a masked LM, and allow the texts' lengths and causal stages.

    Raises:
        ValueError: Some do not; lists all of them.
    """
    problems = []
    lengths, causal, averaged = list_uses(plan, steps)
    for encoder, length in lengths.items():
        folder = plan.folder / encoder
        name = folder if folder.is_dir() else encoder
        try:
            config = AutoConfig.from_pretrained(name, trust_remote_code=False)
            tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        except (OSError, ValueError) as error:
            if "trust_remote_code" in str(error):
                problems.append(
                    f"{encoder}: a plan must not run code of others, but this encoder has its own. Use another encoder."
                )
            continue  # the first step that reads it reports other errors
        if type(config) not in MODEL_FOR_MASKED_LM_MAPPING:
            problems.append(f"{encoder}: it must be an encoder such as BERT or RoBERTa, but is a {config.model_type}")
            continue
        try:
            if encoder in causal:
                check_causal(config.model_type)
            if encoder in averaged:
                check_alike(encoder, config, tokenizer, plan)
            check_length(tokenizer, length)
        except ValueError as error:
            problems.append(f"{encoder}: {error}")
    if problems:
        lines = "".join(f"\n- {problem}" for problem in problems)
        raise ValueError(f"{len(problems)} encoder(s) cannot do what the plan asks for; nothing was run:{lines}")


def list_uses(plan: Plan, steps: Iterable[Step]) -> tuple[dict[str, int], set[str], set[str]]:
    """Return the maximum length by encoder, those with a causal stage, and those averaged with the plan's encoder."""
    lengths: dict[str, int] = {}
    causal, averaged = set[str](), set[str]()
    for step in [step for step in steps if step.method is not None]:
        own = plan.methods[plan.get_root(str(step.method))].encoder
        encoder = own or plan.encoder
        if step.kind == "average" and own is not None:
            averaged.add(encoder)
        if "max_seq_length" in step.flags:
            lengths[encoder] = max(lengths.get(encoder, 0), int(step.flags["max_seq_length"]))
            causal |= {encoder} if step.flags.get("objective") == "clm" else {*()}
    return lengths, causal, averaged


def check_alike(encoder: str, config: Any, tokenizer: Any, plan: Plan) -> None:
    """Check that an encoder can be averaged with the plan's; the step that does it comes after its training.

    Raises:
        ValueError: They have different words or sizes.
    """
    folder = plan.folder / plan.encoder
    name = folder if folder.is_dir() else plan.encoder
    try:
        other = AutoConfig.from_pretrained(name, trust_remote_code=False)
        words = AutoTokenizer.from_pretrained(name, trust_remote_code=False).get_vocab()
    except (OSError, ValueError):
        return  # the first step that reads it says so
    sizes = [[getattr(one, size, None) for size in SIZES] for one in (config, other)]
    if sizes[0] != sizes[1] or tokenizer.get_vocab() != words:
        raise ValueError(
            f"a row that averages needs an encoder with the vocabulary and the sizes of the plan's, {plan.encoder}, "
            f"but {encoder} has others. Remove the row, or compare this encoder in a plan of its own."
        )

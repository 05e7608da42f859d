"""Average the weights of encoders, such as one before and after continued pre-training.

    python examples/average_models.py --model_name_or_path bert-base-uncased adapted --output_dir averaged

Averaging needs no training, and the average forgets less than the adapted encoder. G-MAP has the same aim, but reads
both encoders for every text.
"""

from dataclasses import dataclass, field

from transformers import AutoModelForMaskedLM, AutoTokenizer

import hf_domain  # noqa: F401  the Auto classes then know its models
from hf_domain.averaging import average_models
from hf_domain.safe_io import write_folder
from hf_domain.training.arguments import parse_arguments
from hf_domain.training.cards import write_average_card
from hf_domain.training.run_folder import run_in_folder
from hf_domain.training.terminal import log_place, start_logging, suggest_command


@dataclass
class Arguments:
    """The models and their weights."""

    model_name_or_path: list[str] = field(
        metadata={"help": "Two or more models; the average keeps the tokenizer and config of the first."}
    )
    output_dir: str = field(metadata={"help": "Folder for the average."})
    weights: list[float] | None = field(default=None, metadata={"help": "Weight of each model. Default: all equal."})


ARGUMENTS = (Arguments,)


def main() -> None:
    start_logging()
    run_in_folder(run, *parse_arguments(*ARGUMENTS, description=__doc__))


def run(args: Arguments) -> None:
    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path[0], trust_remote_code=False)
    for name in args.model_name_or_path[1:]:
        other = read_vocabulary(name)
        if other is not None and other != tokenizer.get_vocab():
            raise ValueError(
                f"the models of an average must have the same vocabulary, but the tokens of {name} have other ids than "
                f"those of {args.model_name_or_path[0]}. Average models that were made from one encoder."
            )
    models = [AutoModelForMaskedLM.from_pretrained(name, trust_remote_code=False) for name in args.model_name_or_path]
    model = average_models(models, args.weights)
    with write_folder(args.output_dir) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        write_average_card(folder, args, tokenizer)
    what = f"Average of {len(models)} models, {model.num_parameters():,} parameters"
    log_place(what, args.output_dir, suggest_command("fill-mask", args.output_dir))


def read_vocabulary(name: str) -> dict[str, int] | None:
    """Return the id of each token of a model's tokenizer; None if the model has none."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError):
        return None
    vocabulary = tokenizer.get_vocab()
    # Without files, transformers returns a tokenizer of special tokens only.
    return None if set(vocabulary) <= set(tokenizer.all_special_tokens) else vocabulary


if __name__ == "__main__":
    main()

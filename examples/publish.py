r"""Publish a model that a comparison trained, with a card that shows its results.

    python examples/publish.py --comparison plan --method varmae --corpus cs --output_dir hub --license apache-2.0 \
        --license_note "Base model: Apache-2.0. Abstracts: CC BY 4.0." --limits "English abstracts only." \
        --example "We train a language [MASK]." --repo_id you/encoder-cs

`--task acl_arc` instead of --method and --corpus publishes the fine-tuned model with the best validation score.

The script gathers weights, tokenizer, code, pictures and card in a folder. It runs the code on the card in a process
without this package, and pushes the folder in one commit. Without --repo_id nothing is pushed.
"""

from dataclasses import dataclass, field
from pathlib import Path

from hf_domain.comparison.publish import make_publication
from hf_domain.hub import publish
from hf_domain.training.arguments import parse_arguments


@dataclass
class Arguments:
    """The model, and facts for its card."""

    comparison: str = field(metadata={"help": "Output folder of the comparison."})
    output_dir: str = field(metadata={"help": "Folder of the publication."})
    license_note: str = field(metadata={"help": "Licenses of the base model and of the corpus."})
    limits: str = field(metadata={"help": "Uses for which the model was not tested."})
    example: str = field(metadata={"help": "Example text for the card; for an encoder, with its mask token."})
    method: str | None = field(default=None, metadata={"help": "A method of the plan: publish its encoder."})
    corpus: str | None = field(default=None, metadata={"help": "The corpus of that encoder; for TAPT, the task."})
    task: str | None = field(
        default=None, metadata={"help": "A task of the plan: publish its best fine-tuned model instead."}
    )
    license: str | None = field(
        default=None, metadata={"help": "License of the weights as an identifier of the Hub, such as apache-2.0."}
    )
    language: str = field(default="en", metadata={"help": "Code of the language of the corpus."})
    repo_id: str | None = field(
        default=None, metadata={"help": "Repository to push to, user/name. Default: push nothing."}
    )
    private: bool = field(
        default=False, metadata={"help": "Make a new repository private. Default: the owner's setting."}
    )


def main() -> None:
    (args,) = parse_arguments(Arguments, description=__doc__)
    given = [name for name in ("method", "corpus", "task") if getattr(args, name) is not None]
    if given not in (["task"], ["method", "corpus"]):
        raise ValueError(
            f"publish needs --method and --corpus, or --task alone, but has {' and '.join(given) or 'none'}. Name "
            "either an encoder by the first two, or a fine-tuned model by its task."
        )
    folder = make_publication(
        Path(args.comparison),
        Path(args.output_dir),
        method=args.method,
        corpus=args.corpus,
        task=args.task,
        model_name=args.repo_id or Path(args.output_dir).name,
        license=args.license,
        license_note=args.license_note,
        limits=args.limits,
        example=args.example,
        language=args.language,
    )
    print(f"Ready for the Hub: {folder}")
    if args.repo_id is not None:
        print(publish(folder, args.repo_id, private=args.private or None))


if __name__ == "__main__":
    main()

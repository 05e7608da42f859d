r"""Publish a trained model: push its folder to the Hub in one commit, with the card that its run wrote.

    python examples/publish.py --model_name_or_path adapted --license apache-2.0 --repo_id you/encoder-cs
    python examples/publish.py --comparison plan --task acl_arc --repo_id you/classifier
    python examples/publish.py --comparison plan --method varmae --corpus cs --repo_id you/encoder-cs

Of a comparison, `--task` takes the fine-tuned model with the best validation score, and `--method` with `--corpus` the
encoder of a row. Its card then shows the scores of the comparison. Without --repo_id nothing is pushed: edit README.md
in the folder that the script prints, and repeat the command with it.
"""

from dataclasses import dataclass, field
from pathlib import Path

from hf_domain.comparison.publish import complete_card, find_model
from hf_domain.hub import publish
from hf_domain.safe_io import write_text
from hf_domain.training.arguments import parse_arguments


@dataclass
class Arguments:
    """The model, and where it goes."""

    model_name_or_path: str | None = field(default=None, metadata={"help": "Folder of a trained model with its card."})
    comparison: str | None = field(
        default=None, metadata={"help": "Output folder of a comparison, whose model is published instead."}
    )
    task: str | None = field(default=None, metadata={"help": "A task of the plan: publish its best fine-tuned model."})
    method: str | None = field(default=None, metadata={"help": "A method of the plan: publish its encoder."})
    corpus: str | None = field(default=None, metadata={"help": "The corpus of that encoder; for TAPT, the task."})
    license: str | None = field(
        default=None,
        metadata={"help": "License of the weights as the Hub spells it, such as apache-2.0. Default: the base's."},
    )
    repo_id: str | None = field(
        default=None, metadata={"help": "Repository to push to, user/name. Default: push nothing."}
    )
    private: bool = field(
        default=False, metadata={"help": "Make a new repository private. Default: the owner's setting."}
    )


def main() -> None:
    (args,) = parse_arguments(Arguments, description=__doc__)
    names = ("model_name_or_path", "comparison", "task", "method", "corpus")
    given = [name for name in names if getattr(args, name) is not None]
    if given not in (["model_name_or_path"], ["comparison", "task"], ["comparison", "method", "corpus"]):
        raise ValueError(
            "publish needs --model_name_or_path alone, or --comparison with --task, or with --method and --corpus, but "
            f"has {' and '.join(given) or 'none'}. Name either a folder, or a model of a comparison."
        )
    if args.comparison is None:
        folder, results = Path(args.model_name_or_path), ""
    else:
        folder, results = find_model(Path(args.comparison), task=args.task, method=args.method, corpus=args.corpus)
    complete_card(folder, license=args.license, results=results)
    print(f"Ready for the Hub: {folder}")
    if args.repo_id is None:
        return
    before = (folder / "README.md").read_text(encoding="utf-8")
    complete_card(folder, name=args.repo_id)
    try:
        print(publish(folder, args.repo_id, private=args.private or None))
    except BaseException:  # the card must not name a repository that does not exist
        write_text(folder / "README.md", before)
        raise


if __name__ == "__main__":
    main()

r"""Publish the raw results of a comparison as a dataset: scores, costs, settings and predictions.

    python examples/publish_results.py --comparison plan --output_dir dataset --license cc-by-4.0 --repo_id you/results

The dataset has the labels of the tasks, but none of their texts. Without --repo_id nothing is pushed.
"""

from dataclasses import dataclass, field
from pathlib import Path

from hf_domain.comparison.results_dataset import make_results_dataset, push_results
from hf_domain.training.arguments import parse_arguments


@dataclass
class Arguments:
    """The comparison, and facts for the card."""

    comparison: str = field(metadata={"help": "Output folder of the comparison."})
    output_dir: str = field(metadata={"help": "Folder of the dataset."})
    license: str | None = field(
        default=None, metadata={"help": "License of the results as an identifier of the Hub, such as cc-by-4.0."}
    )
    repo_id: str | None = field(
        default=None, metadata={"help": "Repository to push to, user/name. Default: push nothing."}
    )
    private: bool = field(
        default=False, metadata={"help": "Make a new repository private. Default: the owner's setting."}
    )


def main() -> None:
    (args,) = parse_arguments(Arguments, description=__doc__)
    folder = make_results_dataset(
        Path(args.comparison),
        Path(args.output_dir),
        name=args.repo_id or Path(args.output_dir).resolve().name,
        license=args.license,
    )
    print(f"Ready for the Hub: {folder}")
    if args.repo_id is not None:
        print(push_results(folder, args.repo_id, private=args.private or None))


if __name__ == "__main__":
    main()

r"""Recommend what to try first on a corpus and its tasks, with the numbers behind each reason, and write the plan.

    python examples/advise.py --model_name_or_path bert-base-uncased --corpus corpus.txt.gz --task acl_arc scierc \
        --general wikipedia.txt.gz --output_dir advice

The script measures samples and trains nothing: how words are split, how well the encoder predicts the corpus, how much
text there is, which differences the test sets can show, the score of a vote of the nearest texts, and the speed of this
machine. `hf-domain compare advice/plan.yaml` runs the plan. `hf_domain.advise` does the same in Python.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

import datasets
import transformers

from hf_domain.advice import advise
from hf_domain.safe_io import remove_unfinished
from hf_domain.training.arguments import parse_arguments


@dataclass
class Arguments:
    """The encoder, the corpus and the tasks."""

    model_name_or_path: str = field(
        metadata={"help": "Encoder to adapt: a folder or a name on the Hub.", "aliases": ["--encoder"]}
    )
    corpus: str = field(metadata={"help": "Text of the domain, one file: .txt .jsonl .json .csv .tsv (.gz) .parquet."})
    task: list[str] = field(metadata={"help": "Folders of tasks, each with train, validation and test .jsonl."})
    output_dir: str = field(metadata={"help": "New folder for plan.yaml, advice.md and advice.json."})
    general: str | None = field(default=None, metadata={"help": "General text to compare the corpus with."})
    hours: float = field(default=8.0, metadata={"help": "Maximum hours of the plan, with fine-tuning."})
    max_seq_length: int = field(default=128, metadata={"help": "Number of tokens in an example of pre-training."})


ARGUMENTS = (Arguments,)
LEFT = r"(advice\.(json|md)|(advice\.(json|md)|plan\.yaml)\.\w+\.unfinished)$"


def main() -> None:
    (args,) = parse_arguments(*ARGUMENTS, description=__doc__)
    folder = Path(args.output_dir)
    # A killed command leaves no plan, which is written last; nothing but its files is replaced.
    is_left = folder.is_dir() and all(re.match(LEFT, path.name) for path in folder.iterdir())
    if folder.exists() and not is_left:
        raise FileExistsError(f"--output_dir must be a new folder, but {folder} exists. Name another.")
    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    advice = advise(
        args.model_name_or_path,
        args.corpus,
        args.task,
        general=args.general,
        hours=args.hours,
        max_seq_length=args.max_seq_length,
    )
    plan = advice.save(folder)
    remove_unfinished(folder)
    print(advice, f"Next: hf-domain compare {plan} --dry_run", sep="\n\n")


if __name__ == "__main__":
    main()

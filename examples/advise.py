r"""Recommend what to compare on a corpus and its tasks in a given time, and write the plan.

    python examples/advise.py --model_name_or_path bert-base-uncased --corpus corpus.txt.gz --task acl_arc scierc \
        --general wikipedia.txt.gz --minutes 120 --output_dir advice

The script measures samples and trains nothing: how words are split, how much text there is, and the speed of this
machine. `hf-domain compare advice/plan.yaml` runs the plan; `hf-domain quickstart` does both. `hf_domain.advise` does
the same in Python.
"""

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
    corpus: str = field(metadata={"help": "Text of the domain: .txt .jsonl .json .csv .tsv (.gz .zst) .parquet."})
    task: list[str] = field(metadata={"help": "Folders of tasks, each with train, validation and test .jsonl."})
    output_dir: str = field(metadata={"help": "New folder for plan.yaml."})
    general: str | None = field(default=None, metadata={"help": "General text, to measure what encoders forget."})
    minutes: float = field(default=120.0, metadata={"help": "Time that the plan is made for."})
    max_seq_length: int = field(default=128, metadata={"help": "Number of tokens in an example of pre-training."})


ARGUMENTS = (Arguments,)


def main() -> None:
    (args,) = parse_arguments(*ARGUMENTS, description=__doc__)
    folder = Path(args.output_dir)
    remove_unfinished(folder)  # of a killed command, which leaves nothing else: the plan is its only file
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"--output_dir must be new or empty, but {folder} is not. Name another.")
    if table := next((task for task in args.task if Path(task).is_file()), None):
        raise ValueError(f"--task must name folders, but {table} is a file. `hf-domain quickstart` splits one table.")
    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    advice = advise(
        args.model_name_or_path,
        args.corpus,
        args.task,
        general=args.general,
        minutes=args.minutes,
        max_seq_length=args.max_seq_length,
    )
    print(advice, f"Next: hf-domain compare {advice.save(folder)}", sep="\n\n")


if __name__ == "__main__":
    main()

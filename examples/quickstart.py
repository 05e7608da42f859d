r"""Adapt an encoder to your text in minutes, find out what pays, and get a model that is ready to use.

    python examples/quickstart.py                                 # the demo, on the data in quickstart_data/
    python examples/quickstart.py --task mine.csv --output_dir mine
    python examples/quickstart.py --model_name_or_path bert-base-uncased --corpus corpus.txt --task my_task/ \
        --minutes 60 --output_dir mine

`--task` is one table with a text column and a label column, which is split here, or a folder with train, validation and
test .jsonl. Without `--corpus`, the texts of the task are the corpus. The script measures samples as `hf-domain advise`
does, writes a plan that fits into `--minutes`, and runs it as `hf-domain compare` does. It ends with the report, and
with the best model, and the command that publishes it. Repeat the command to resume a killed run.
"""

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import datasets
import transformers

from hf_domain.advice import advise, find_saved_plan
from hf_domain.comparison.decision import answer, list_next_commands
from hf_domain.comparison.prepare import load_plan, open_task
from hf_domain.comparison.report import make_markdown, make_tables, write_report
from hf_domain.comparison.results import find_winner
from hf_domain.comparison.run import count_workers, run_comparison
from hf_domain.data.objects import find_file
from hf_domain.safe_io import remove_unfinished
from hf_domain.training.arguments import parse_arguments

DATA = Path(__file__).parent / "quickstart_data"


@dataclass
class Arguments:
    """The encoder, the data and the time."""

    model_name_or_path: str = field(default=str(DATA / "encoder"), metadata={"help": "Encoder. Default: the demo's."})
    task: str = field(default=str(DATA / "acl_arc"), metadata={"help": "Table or folder of a task. Default: a demo."})
    corpus: str | None = field(default=None, metadata={"help": "Domain text. Default: the texts of the task."})
    general: str | None = field(default=None, metadata={"help": "General text, to measure what encoders forget."})
    output_dir: str = field(default="quickstart", metadata={"help": "Folder for all output."})
    minutes: float = field(default=10.0, metadata={"help": "Time that the plan is made for."})
    text_column_name: str | None = field(default=None, metadata={"help": "Column of texts of a table."})
    label_column_name: str = field(default="label", metadata={"help": "Column of labels of a table."})
    max_seq_length: int = field(default=128, metadata={"help": "Number of tokens in an example of pre-training."})


ARGUMENTS = (Arguments,)


def main() -> None:
    (args,) = parse_arguments(*ARGUMENTS, description=__doc__)
    started, folder = time.perf_counter(), Path(args.output_dir)
    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
    remove_unfinished(folder)
    record = asdict(args) | {"output_dir": None}
    if (path := find_saved_plan(folder, record)) is None:
        task = open_task(Path(args.task), folder, args.text_column_name, args.label_column_name)
        corpus = args.corpus or (DATA / "corpus.txt.gz" if task.parent == DATA else task / "train.jsonl")
        advice = advise(
            args.model_name_or_path,
            find_file(corpus),
            {task.name: task},
            general=args.general and find_file(args.general),
            minutes=args.minutes,
            max_seq_length=args.max_seq_length,
        )
        print(advice, flush=True)
        path = advice.save(folder, record)
    plan = load_plan(path)
    print(f"Comparing {', '.join(plan.methods)} on {', '.join(plan.tasks)}; the plan: {plan.path}", flush=True)
    run_comparison(plan, folder / "plan", num_processes=count_workers())
    report = write_report(folder / "plan")
    for name, error in report.failed.items():
        raise RuntimeError(f"{name} failed: {error}")
    report.plan |= {"path": str(plan.path), "root": str(folder / "plan")}  # for commands in the user's folder
    print(make_markdown(report, make_tables(report), picture=""))
    commands = list_next_commands(report)
    # Repeated, because a terminal shows the end of a long report.
    print(*(line for line in answer(report) if line not in commands), sep="\n")
    print(f"The report: {folder / 'plan' / 'report.html'}")
    for task in plan.tasks:  # a plan that was edited may have several
        print(f"The best model: {find_winner(folder / 'plan', task)}")
    print(*commands, sep="\n")
    print(f"{(time.perf_counter() - started) / 60:.1f} minutes in total")


if __name__ == "__main__":
    main()

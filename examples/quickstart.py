r"""Adapt an encoder to a corpus, measure whether this pays, and prepare the result for the Hub.

    python examples/quickstart.py                                 # on the data in quickstart_data/
    python examples/quickstart.py --model_name_or_path bert-base-uncased \
        --pretraining_learning_rate 1e-4 --corpus mine.jsonl --task my_task/ --output_dir mine

The script compares four encoders: the original, and those after DAPT, TAPT and VarMAE on as many tokens. Each is
fine-tuned on a task (a folder with train, validation and test .jsonl) with several seeds; the original also for three
times as long, and DAPT, on texts and with tantivy, also a vote of the nearest. A folder for the Hub gets the VarMAE
model. Repeat the command to resume a killed run. Extend the plan and run it: `hf-domain compare PLAN`.
"""

import time
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import torch
from dask.system import CPU_COUNT
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

from hf_domain.comparison.answer import answer
from hf_domain.comparison.dry_run import estimate_work
from hf_domain.comparison.engine import run_comparison
from hf_domain.comparison.plan_loading import load_plan, write_plan
from hf_domain.comparison.publication import make_publication
from hf_domain.comparison.report import write_report
from hf_domain.comparison.rows import RECIPES
from hf_domain.data.corpora import check_length, load_corpus
from hf_domain.methods import BASELINE
from hf_domain.safe_io import read_json, remove_unfinished
from hf_domain.tasks.files import check_task_files, fills_batch, find_kind
from hf_domain.training.arguments import parse_arguments

DATA = Path(__file__).parent / "quickstart_data"


@dataclass
class Arguments:
    """The encoder, the corpus, the task and the budget."""

    model_name_or_path: str = field(default=str(DATA / "encoder"), metadata={"help": "Encoder. Default: the demo's."})
    corpus: str = field(default=str(DATA / "corpus.txt.gz"), metadata={"help": "Domain text. Default: the demo's."})
    task: str = field(default=str(DATA / "acl_arc"), metadata={"help": "Folder of a task. Default: the demo's."})
    output_dir: str = field(default="quickstart", metadata={"help": "Folder for all output."})
    num_tokens: int = field(default=300_000, metadata={"help": "Tokens to pre-train on; raise it for a real answer."})
    num_train_epochs: int = field(default=2, metadata={"help": "Epochs of fine-tuning."})
    learning_rate: str | None = field(default=None, metadata={"help": "Of fine-tuning; if left out, by the width."})
    pretraining_learning_rate: str | None = field(default=None, metadata={"help": "Default: 3e-4; BERT base: 1e-4."})
    num_seeds: int = field(default=3, metadata={"help": "Fine-tunings of each row; from four on also scored together."})
    max_seq_length: int = field(default=128, metadata={"help": "Number of tokens in an example of pre-training."})
    expand_vocabulary: bool = field(default=False, metadata={"help": "Also expand the vocabulary first (AdaLM)."})
    task_max_seq_length: int = field(default=64, metadata={"help": "Maximum number of tokens of a task's text."})


def make_plan(args: Arguments, output_dir: Path, tokenizer: PreTrainedTokenizerBase) -> Path:
    """Write the plan of the comparison."""
    kind = find_kind("train.jsonl", Path(args.task))
    splits = {split: f"{split}.jsonl" for split in ("train", "validation", "test")}
    if problems := check_task_files(kind, splits, Path(args.task)):
        raise ValueError("; ".join([f"--task {args.task} cannot be used as {kind}: {problems[0]}", *problems[1:]]))
    windows = {"max_seq_length": args.max_seq_length, "doc_stride": args.max_seq_length // 4}  # overlapping
    options = windows if kind == "qa" else {"max_seq_length": args.task_max_seq_length}
    encoder, task, corpus = (Path(path).resolve() for path in (args.model_name_or_path, args.task, args.corpus))
    methods: dict = dict.fromkeys(["fine_tune", "dapt", "tapt", "varmae", *["adalm"] * args.expand_vocabulary])
    methods["longer"] = {"fine_tuning": {"num_train_epochs": 3 * args.num_train_epochs}}
    if not fills_batch(kind, task / "train.jsonl", tokenizer, args.max_seq_length, size=32):
        print("TAPT is left out: the training texts of the task do not fill a batch.", flush=True)
        del methods["tapt"]
    if kind in (RECIPES["vote"].kinds or ()) and find_spec("tantivy"):
        methods["vote"] = None
    masked_lm = [name for name in methods if RECIPES[name].method == BASELINE]
    if rate := args.pretraining_learning_rate:
        methods |= {name: {"pretraining": {"learning_rate": rate}} for name in masked_lm}
    content = {
        "encoder": str(encoder) if encoder.is_dir() else args.model_name_or_path,
        "corpus": str(corpus),
        "tasks": {task.name: {"folder": str(task), "kind": kind, "options": options}},
        "methods": methods,
        "seeds": list(range(args.num_seeds)),
        "budget": {"tokens": args.num_tokens},
        "pretraining": {"max_seq_length": args.max_seq_length},
        # With batches of 16, several runs of the demo's encoder stayed at the majority class.
        "fine_tuning": {"num_train_epochs": args.num_train_epochs, "per_device_train_batch_size": 8}
        | ({"learning_rate": args.learning_rate} if args.learning_rate else {}),
        "vocabulary": {"step": 1000},
    }
    load_corpus(args.corpus)  # refuses an unreadable file before anything is written
    remove_unfinished(output_dir)
    if changes := write_plan(content, output_dir / "plan.yaml"):
        print(changes, flush=True)
    return output_dir / "plan.yaml"


def main() -> None:
    (args,) = parse_arguments(Arguments, description=__doc__)
    for name, path in (("corpus", args.corpus), ("task", f"{args.task}/train.jsonl")):
        if not Path(path).is_file():
            found = "is a folder" if Path(path).is_dir() else "does not exist"
            raise FileNotFoundError(f"--{name} must be a file, but {path} {found}. Name a file.")
    AutoConfig.from_pretrained(args.model_name_or_path, trust_remote_code=False)  # fails early for a wrong name
    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path, trust_remote_code=False)
    check_length(tokenizer, args.max_seq_length)
    started, output_dir, encoder = time.perf_counter(), Path(args.output_dir), Path(args.model_name_or_path)
    is_demo = Path(args.corpus).parent == DATA and encoder.parent == DATA
    plan = load_plan(make_plan(args, output_dir, tokenizer))
    print(f"Comparing {', '.join(plan.methods)} on {', '.join(plan.tasks)}; the plan: {plan.path}", flush=True)
    # Two small models on a core each finish sooner than one after the other on both.
    num_processes = torch.cuda.device_count() or min(2, CPU_COUNT)
    print(estimate_work(plan, output_dir / "plan", num_processes), flush=True)
    run_comparison(plan, output_dir / "plan", num_processes=num_processes)
    report = write_report(output_dir / "plan")
    for name, error in report.failed.items():
        raise RuntimeError(f"{name} failed: {error}")
    folder = make_publication(
        output_dir / "plan",
        output_dir / "hub",
        method="varmae",
        corpus="domain",
        model_name=f"{encoder.name}-varmae",
        license="apache-2.0" if is_demo else None,
        license_note="The sources and licenses of the demo's data are in examples/quickstart_data/NOTICE.md."
        if is_demo
        else "Before you publish, name the licenses of the base model and of the corpus here.",
        limits="Made by the quickstart of hf-domain with a small budget: a demonstration, not a model for production.",
        example=f"We train a language {tokenizer.mask_token} on a large corpus.",
    )
    print((output_dir / "plan" / "report.md").read_text(encoding="utf-8"))
    printed = (folder / "README.md").read_text(encoding="utf-8").split("```text\n")[1].split("```")[0]
    print(*answer(report), sep="\n")  # repeated, because a terminal shows the end of a long report
    print(
        f"{read_json(folder / 'config.json')['architectures'][0]} from {folder}, without hf_domain:\n{printed}\n"
        f"The report: {output_dir / 'plan' / 'report.html'}\n"
        f"Ready for the Hub: {folder} (hf upload <user>/<name> {folder})\n"
        f"{time.perf_counter() - started:.0f} seconds in total"
    )


if __name__ == "__main__":
    main()

# /// script
# requires-python = ">=3.11"
# dependencies = ["hf-domain"]
# ///
"""From a corpus to a published domain encoder, and whether it was worth it.

    python examples/quickstart.py                                 # on the data in quickstart_data/
    python examples/quickstart.py --model_name_or_path bert-base-uncased --corpus mine.jsonl --task my_task/

It continues the pre-training of an encoder by DAPT and by VarMAE on equally many tokens, fine-tunes all three on a
classification task (a folder with train, validation and test .jsonl), compares them over several seeds, writes a folder
that is ready for the Hub, and loads that folder in a process that cannot import this package. Each step prints the
command that does it alone. Steps whose results are there are skipped: a killed run goes on where it was.
"""

import shlex
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from hf_domain.examples import run_classification, run_expand_vocab, run_mlm
from transformers import AutoConfig, AutoTokenizer, HfArgumentParser

from hf_domain.publishing import write_model_card
from hf_domain.results import describe_environment, read_json, write_json

DATA = Path(__file__).parent / "quickstart_data"
NAMES = {"base": "fine-tuning only", "dapt": "DAPT", "varmae": "VarMAE", "adalm": "new vocabulary + DAPT"}
# Each method with the learning rate that fits it: VarMAE trains small new networks over a frozen encoder.
LEARNING_RATES = {"dapt": "3e-4", "varmae": "1e-3", "adalm": "3e-4"}
BATCH_SIZE = 32
TRAINER_OPTIONS = {"save_strategy": "no", "report_to": "none", "log_level": "error"}


@dataclass
class Arguments:
    """Whose encoder, corpus and task, and how much of them."""

    model_name_or_path: str = field(default=str(DATA / "encoder"), metadata={"help": "Encoder to adapt."})
    corpus: str = field(default=str(DATA / "corpus.txt.gz"), metadata={"help": "Text of the domain."})
    task: str = field(default=str(DATA / "acl_arc"), metadata={"help": "Folder with a classification task."})
    output_dir: str = field(default="quickstart", metadata={"help": "Where everything is written."})
    num_tokens: int = field(default=400_000, metadata={"help": "Tokens of pre-training, the same for each method."})
    num_train_epochs: int = field(default=2, metadata={"help": "Epochs of fine-tuning."})
    num_seeds: int = field(default=3, metadata={"help": "Fine-tuning runs of each encoder."})
    max_seq_length: int = field(default=128, metadata={"help": "Tokens of an example of pre-training."})
    expand_vocabulary: bool = field(default=False, metadata={"help": "Also expand the vocabulary first (AdaLM)."})
    task_max_seq_length: int = field(default=64, metadata={"help": "Tokens of a text of the task at most."})


def run_script(script, results: Path, **options) -> dict:
    """Run a script of examples/ in this process, unless its result file is there; return what that holds."""
    arguments = []
    for name, value in {**options, "output_dir": results.parent}.items():
        arguments += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    name = script.__name__.rpartition(".")[2].removeprefix("run_")
    print(f"\n$ hf-domain {name} {shlex.join(arguments)}", flush=True)
    if results.is_file():
        print(f"done before: {results}")
        return read_json(results)
    argv, sys.argv = sys.argv, [name, *arguments]
    started = time.perf_counter()
    try:
        script.main()
    finally:
        sys.argv = argv
    print(f"{time.perf_counter() - started:.0f} seconds", flush=True)
    return read_json(results)


def expand_vocabulary(args: Arguments) -> Path:
    """Expand the tokenizer of the encoder by words of the corpus."""
    folder = Path(args.output_dir) / "vocabulary"
    run_script(
        run_expand_vocab,
        folder / "vocabulary_report.json",
        model_name_or_path=args.model_name_or_path,
        train_file=args.corpus,
        validation_file=Path(args.task) / "train.jsonl",
        embedding_init="none",
        step=1000,
    )
    return folder


def pretrain(args: Arguments, method: str) -> dict:
    """Continue the pre-training of the encoder on the corpus; `base` is only evaluated, on the same held-out text."""
    options = {"do_eval": True, "max_eval_samples": 256}
    if method == "adalm":
        options["expanded_vocabulary"] = expand_vocabulary(args)
    if method == "varmae":
        # All masked and about as many unmasked tokens: an unbiased estimate of the paper's loss at a lower cost.
        options["config_overrides"] = "unmasked_ratio=0.15"
    if method != "base":
        options |= {
            "do_train": True,
            "max_steps": count_steps(args),
            "per_device_train_batch_size": BATCH_SIZE,
            "learning_rate": LEARNING_RATES[method],
            "warmup_steps": 0.1,
            "logging_steps": 20,
        }
    return run_script(
        run_mlm,
        Path(args.output_dir) / method / "all_results.json",
        method="varmae" if method == "varmae" else "dapt",
        model_name_or_path=args.model_name_or_path,
        train_file=args.corpus,
        max_seq_length=args.max_seq_length,
        **options,
        **TRAINER_OPTIONS,
    )


def count_steps(args: Arguments) -> int:
    """Return the steps that `num_tokens` make."""
    return max(1, args.num_tokens // (BATCH_SIZE * args.max_seq_length))


def fine_tune(args: Arguments, method: str, seed: int) -> dict:
    """Fine-tune an encoder on the task and test it."""
    task = Path(args.task)
    return run_script(
        run_classification,
        Path(args.output_dir) / f"{method}-task-seed{seed}" / "all_results.json",
        model_name_or_path=args.model_name_or_path if method == "base" else Path(args.output_dir) / method,
        train_file=task / "train.jsonl",
        validation_file=task / "validation.jsonl",
        test_file=task / "test.jsonl",
        max_seq_length=args.task_max_seq_length,
        num_train_epochs=args.num_train_epochs,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=64,
        learning_rate="2e-4",
        warmup_steps=0.1,
        train_sampling_strategy="group_by_length",
        seed=seed,
        do_train=True,
        do_eval=True,
        do_predict=True,
        **TRAINER_OPTIONS,
    )


def make_table(results: dict) -> str:
    """Lay the results out as a Markdown table."""
    lines = [
        "| encoder | test macro F1 | test micro F1 | held-out masked-LM loss | pre-training tokens | seconds |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for method, row in results["methods"].items():
        cells = [NAMES[method]]
        for metric in ("macro_f1", "micro_f1"):
            scores = [100 * run[f"predict_{metric}"] for run in row["task"]]
            deviation = statistics.stdev(scores) if len(scores) > 1 else 0.0
            cells.append(f"{statistics.mean(scores):.1f} ± {deviation:.1f}")
        cells += [f"{row['masked_lm_loss']:.3f}", f"{row['tokens']:,}", f"{row['seconds']:.0f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot_results(results: dict, file: Path) -> None:
    """Plot the scores of every seed, and the held-out loss of the pre-trained encoders."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.6), width_ratios=(3, 2))
    methods = results["methods"]
    for position, row in enumerate(methods.values()):
        scores = [100 * run["predict_macro_f1"] for run in row["task"]]
        left.bar(position, statistics.mean(scores), width=0.6, color=f"C{position}", alpha=0.35)
        left.scatter([position] * len(scores), scores, color=f"C{position}", zorder=3)
        right.bar(position, row["masked_lm_loss"], width=0.6, color=f"C{position}", alpha=0.7)
    for axes in (left, right):
        axes.set_xticks(range(len(methods)), [NAMES[method] for method in methods])
        axes.spines[["top", "right"]].set_visible(False)
    left.set_title("Test macro F1, a dot a seed")
    right.set_title("Masked-LM loss on held-out domain text")
    figure.tight_layout()
    figure.savefig(file, dpi=150)


def make_hub_folder(args: Arguments, results: dict, method: str) -> Path:
    """Gather weights, tokenizer, code, results, plot and card."""
    output_dir, encoder = Path(args.output_dir), Path(args.model_name_or_path)
    is_demo = Path(args.corpus).parent == DATA
    folder = output_dir / "hub"
    shutil.rmtree(folder, ignore_errors=True)
    trained = output_dir / method
    folder.mkdir()
    saved = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    for file in (*(trained / name for name in saved), *trained.glob("*.py")):
        shutil.copy(file, folder)
    shutil.copy(output_dir / "results.json", folder)
    shutil.copy(output_dir / "results.png", folder)
    row = results["methods"][method]
    write_model_card(
        folder,
        method=method,
        model_name=f"{encoder.name}-{method}",
        base_model=encoder.name if encoder.exists() else args.model_name_or_path,
        corpus=Path(args.corpus).name,
        settings={
            "tokens": f"{row['tokens']:,}",
            "learning rate": LEARNING_RATES[method],
            "examples per step": BATCH_SIZE,
            "tokens per example": args.max_seq_length,
            "masked": "15 %, 80/10/10",
            "seconds": f"{row['seconds']:.0f}",
            "versions": ", ".join(f"{name} {value}" for name, value in results["environment"]["versions"].items()),
        },
        limits="Made by the quickstart of hf-domain with a small budget: a demonstration, not a model for production. "
        f"The test set of {Path(args.task).name} is small; differences within the spread of the seeds mean nothing.",
        licence="apache-2.0" if is_demo else None,
        licence_note="The sources and licences of the demo's data stand in examples/quickstart_data/NOTICE.md."
        if is_demo
        else "Not stated yet: name the licences of the base model and of the corpus here before you publish.",
        example=f"We train a language {AutoTokenizer.from_pretrained(folder).mask_token} on a large corpus.",
        results_table=make_table(results),
        results_note=f"Test set of {Path(args.task).name}, mean and standard deviation of {args.num_seeds} seeds.",
        plot="results.png",
    )
    return folder


LOAD_WITHOUT_PACKAGE = """
import sys
sys.modules["hf_domain"] = None  # importing the package now raises ImportError
from transformers import pipeline
folder, text = sys.argv[1:]
fill_mask = pipeline("fill-mask", folder, trust_remote_code=True)
print(f"{type(fill_mask.model).__name__} from {folder}, without hf_domain:")
for answer in fill_mask(text.format(mask=fill_mask.tokenizer.mask_token), top_k=3):
    print(f"  {answer['score']:.3f}  {answer['sequence']}")
"""


def main() -> None:
    (args,) = HfArgumentParser(Arguments).parse_args_into_dataclasses()
    for name, path in (("corpus", args.corpus), ("task", f"{args.task}/train.jsonl")):
        if not Path(path).is_file():
            raise FileNotFoundError(
                f"--{name}: there is no {path}; the demo's own data are in a clone of the repository"
            )
    AutoConfig.from_pretrained(args.model_name_or_path)  # a wrong name is told before anything is trained
    output_dir = Path(args.output_dir)
    started = time.perf_counter()
    rows: dict[str, dict] = {}
    for method in NAMES if args.expand_vocabulary else [method for method in NAMES if method != "adalm"]:
        metrics = pretrain(args, method)
        rows[method] = {
            # VarMAE's own loss has more terms; this one compares.
            "masked_lm_loss": metrics.get("eval_masked_reconstruction_loss", metrics["eval_loss"]),
            "tokens": 0 if method == "base" else count_steps(args) * BATCH_SIZE * args.max_seq_length,
            "seconds": metrics.get("train_runtime", 0.0),
            "task": [],
        }
    for seed in range(args.num_seeds):
        for method, row in rows.items():
            row["task"].append(fine_tune(args, method, seed))
    results = {"arguments": vars(args), "environment": describe_environment(), "methods": rows}
    write_json(output_dir / "results.json", results)
    plot_results(results, output_dir / "results.png")
    folder = make_hub_folder(args, results, "varmae")
    print(f"\n{make_table(results)}\n", flush=True)
    text = "We train a language {mask} on a large corpus."
    subprocess.run([sys.executable, "-c", LOAD_WITHOUT_PACKAGE, folder.resolve(), text], check=True)
    print(
        f"\nResults: {output_dir / 'results.json'}, plot: {output_dir / 'results.png'}\n"
        f"Ready for the Hub: {folder} (hf upload <user>/<name> {folder})\n"
        f"{time.perf_counter() - started:.0f} seconds in all"
    )


if __name__ == "__main__":
    main()

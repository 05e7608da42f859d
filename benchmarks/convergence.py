"""Measure what fine-tuning until the classifier has learned gains over three fixed epochs.

    python benchmarks/convergence.py --model_name_or_path encoder --tasks acl_arc scicite --output convergence.json

Each task is a folder with train, validation and test .jsonl. It is fine-tuned once as by default, and once with three
epochs, with the same seed, batch, length and learning rate. Seconds are the processor's, reading and scoring included.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import hf_domain
from hf_domain.data.files import SPLITS, load_table
from hf_domain.tasks.files import PLAN_KINDS, find_plan_kind

COMMON = {"batch_size": 16, "seed": 1, "report_to": "none", "disable_tqdm": True, "save_strategy": "no"}
SETTINGS = {"three epochs": {"num_train_epochs": 3}, "default": {}}
# What the commands call a metric.
NAMES = {"entity_f1": "f1"}


def fine_tune(args: argparse.Namespace, folder: Path, options: dict) -> dict:
    """Fine-tune on a task, and return its score in percent, the steps and the seconds."""
    own = {**COMMON, **options, "max_seq_length": args.max_seq_length, "bf16": args.bf16, "use_cpu": args.use_cpu}
    if "num_train_epochs" not in own:  # checkpoints keep the best weights
        del own["save_strategy"]
    metric = PLAN_KINDS[find_plan_kind("train.jsonl", folder)].plan_metrics[0]
    splits = {split: load_table(str(folder / f"{split}.jsonl")) for split in SPLITS}
    splits["train"] = splits["train"].take(min(args.max_train_samples, len(splits["train"])))
    started = time.process_time()
    with tempfile.TemporaryDirectory() as output_dir:
        found = hf_domain.fine_tune(args.model_name_or_path, splits, output_dir=Path(output_dir, "model"), **own)
        state = json.loads(Path(output_dir, "model", "trainer_state.json").read_text(encoding="utf-8"))
    return {
        "score": 100 * found.metrics[f"predict_{NAMES.get(metric, metric)}"],
        "steps": state["global_step"],
        "best_step": state.get("best_global_step"),
        "seconds": time.process_time() - started,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", required=True, help="encoder")
    parser.add_argument("--tasks", type=Path, nargs="+", required=True, help="folders of tasks")
    parser.add_argument("--max_train_samples", type=int, default=1000, help="training examples of a task")
    parser.add_argument("--max_seq_length", type=int, default=96, help="maximum number of tokens of a text")
    parser.add_argument("--bf16", action="store_true", help="train in mixed precision")
    parser.add_argument("--use_cpu", action="store_true", help="train on the processor")
    parser.add_argument("--output", type=Path, help="file for the figures, as JSON; what it has is not run again")
    args = parser.parse_args()
    done = args.output is not None and args.output.is_file()
    figures = json.loads(args.output.read_text(encoding="utf-8")) if done else {}
    print("| task | setting | score | steps | best | seconds |\n| --- | --- | --- | --- | --- | --- |", flush=True)
    for task in args.tasks:
        for setting, options in SETTINGS.items():
            if setting not in figures.setdefault(task.name, {}):
                figures[task.name][setting] = fine_tune(args, task, options)
            own = figures[task.name][setting]
            cells = [f"{own['score']:.1f}", own["steps"], own["best_step"] or "", f"{own['seconds']:.0f}"]
            print(f"| {task.name} | {setting} | {' | '.join(map(str, cells))} |", flush=True)
            if args.output is not None:
                args.output.write_text(json.dumps(figures, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()

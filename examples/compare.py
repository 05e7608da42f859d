# /// script
# requires-python = ">=3.11"
# dependencies = ["hf-domain"]
# ///
"""Is it better than plain continued pre-training, at equal cost? Run a plan and write the report.

    python examples/compare.py plan.yaml                # into a folder named after the plan, beside it
    python examples/compare.py plan.yaml --dry_run      # list the runs
    python examples/compare.py plan.yaml --shard 2/4    # the second of four parts; each may run on its own machine
    python examples/compare.py plan.yaml --num_processes 4  # four steps at once, for small models on a CPU
    python examples/compare.py plan.yaml --report_only  # from the existing results

A short plan has `encoder`, `corpus: corpus.txt`, `tasks: [acl_arc]`, `methods: [dapt, varmae]`, `budget`. A whole one:

    encoder: bert-base-uncased
    corpora:
      cs: {train_file: corpus.txt.gz, validation_file: heldout.txt.gz}
      general: {train_file: wikipedia.txt.gz, validation_file: wikipedia_heldout.txt.gz}
    general: general                  # the corpus of the control, and the text on which forgetting shows
    tasks:
      acl_arc: {kind: classification, folder: acl_arc, corpus: cs, metric: macro_f1, options: {max_seq_length: 96}}
    methods:                          # one row of the report each
      fine_tune:                      # the encoder as it is
      control: {pretraining: {learning_rate: 1e-4}}  # as many steps on general text: training itself may help
      dapt: {pretraining: {learning_rate: 1e-4}}     # the default, 3e-4, is for small encoders
      slow_dapt: {recipe: dapt, pretraining: {learning_rate: 5e-5}}
      varmae:
      average: {after: dapt}          # of the encoder before and after DAPT
      exbert:
      gmap: {after: dapt}             # the encoder of DAPT reads the one before it as memory
      rada:                           # reads passages of the corpus
      append_passage: {tasks: [acl_arc]}  # the best passage simply appended; for texts to be classified
      mine: {recipe: fine_tune, encoder: my-encoder}  # a checkpoint made elsewhere
    seeds: [1, 2, 3]
    budget: {tokens: 10000000}        # or {minutes: 30}, the same for every method
    pretraining: {per_device_train_batch_size: 32}
    fine_tuning: {learning_rate: 3e-5, num_train_epochs: 4}

`pretraining`, `fine_tuning`, `vocabulary` and `datastore` are flags of run_mlm.py, of the scripts of the tasks, of
run_expand_vocab.py and of build_datastore.py. Finished steps are skipped, a killed comparison continues, and a
run that failed is tried again. Each run leaves one file in results/; the results of several machines are put into one
folder.
"""

import argparse
import shlex
import sys
from pathlib import Path

from hf_domain.comparison.answer import answer, foresee_power
from hf_domain.comparison.plan_loading import load_plan
from hf_domain.comparison.report import write_report
from hf_domain.comparison.results import gather_results
from hf_domain.comparison.runner import list_missing_steps, run_comparison
from hf_domain.training.arguments import OneLineParser


def read_shard(text: str) -> tuple[int, int]:
    """Read `2/4`."""
    number, slash, count = text.partition("/")
    if not (slash and number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"a shard is written 2/4, the second of four, got {text}")
    return int(number), int(count)


def main() -> None:
    parser = OneLineParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("plan", type=Path)
    parser.add_argument("--output_dir", type=Path, default=None, help="default: the plan's path without its ending")
    parser.add_argument("--shard", type=read_shard, default=(1, 1))
    parser.add_argument(
        "--num_processes", type=int, default=1, help="steps that run at once, for small models on a CPU"
    )
    parser.add_argument("--dry_run", action="store_true", help="list the steps that are missing and run none")
    parser.add_argument("--report_only", action="store_true", help="write the report from the existing results")
    args = parser.parse_args()
    output_dir = args.output_dir or args.plan.with_suffix("")
    plan = load_plan(args.plan, output_dir)
    if args.dry_run:
        steps = list_missing_steps(plan, output_dir, args.shard)
        for step in steps:
            print(f"{step.name}: hf-domain {step.command} {shlex.join(step.list_arguments())}")
        if steps:
            print(f"{len(steps)} steps. {foresee_power(plan)}")
        return
    if args.report_only:
        gather_results(plan, output_dir)
    else:
        run_comparison(plan, output_dir, args.shard, num_processes=args.num_processes)
    report = write_report(output_dir)
    print((output_dir / "report.md").read_text(encoding="utf-8"))
    print(f"The report: {output_dir / 'report.html'}")
    print("", *answer(report), sep="\n")  # again: the end of a long report is what a terminal shows
    if report.failed:
        sys.exit(f"{len(report.failed)} runs failed; the same command tries them again")


if __name__ == "__main__":
    main()

"""Find out which method pays on your text, at equal cost: run a plan and write the report.

    python examples/compare.py plan.yaml                # writes into a folder beside the plan, named after it
    python examples/compare.py plan.yaml --dry_run      # list what would run
    python examples/compare.py plan.yaml --num_processes 4  # four steps at once: small models on a CPU, or four GPUs
    python examples/compare.py plan.yaml --dask_scheduler tcp://host:8786  # on the workers of a Dask cluster
    python examples/compare.py plan.yaml --num_seeds 6  # more seeds than the plan has, for a surer answer
    python examples/compare.py plan.yaml --report_only  # write the report from the existing results

A short plan has `encoder`, `corpus: corpus.txt`, `tasks: [acl_arc]`, `methods: [dapt, varmae]`, `budget`. A full one:

    encoder: bert-base-uncased
    corpora:
      cs: {train_file: corpus.txt.gz, validation_file: heldout.txt.gz}
      general: {train_file: wikipedia.txt.gz, validation_file: wikipedia_heldout.txt.gz}
    general: general                  # trains general_text, and measures forgetting
    tasks:
      acl_arc: {kind: classification, folder: acl_arc, corpus: cs, metric: macro_f1, options: {max_seq_length: 96}}
    methods:                          # each is a row of the report
      no_adaptation:
      general_text:                   # as many steps on general text: training itself may help
      dapt:                           # at the rate that fits the encoder's size
      slow_dapt: {recipe: dapt, pretraining: {learning_rate: 5e-5}}
      varmae:
      exbert:
      gmap:                           # the encoder of DAPT reads the one before it as memory
      rada:                           # reads passages of the corpus
      vote: {tasks: [acl_arc]}        # only for classification
      mine: {recipe: no_adaptation, encoder: my-encoder}  # a checkpoint made elsewhere
    seeds: [1, 2, 3]
    budget: {tokens: 10000000}        # or {minutes: 30}, the same for every method
    pretraining: {per_device_train_batch_size: 32}
    fine_tuning: {learning_rate: 3e-5, num_train_epochs: 4}

`pretraining`, `fine_tuning`, `vocabulary` and `datastore` take flags of run_mlm.py, of the task's script, of
run_expand_vocab.py and of build_datastore.py. Repeat the command to resume a killed comparison: finished steps are
skipped, and failed runs are repeated. After a change of the plan, only the affected steps run. Each run writes one file
to results/.
"""

import argparse
import sys
from pathlib import Path

from hf_domain.comparison.decision import answer
from hf_domain.comparison.plan import add_seeds
from hf_domain.comparison.prepare import load_plan
from hf_domain.comparison.report import write_report
from hf_domain.comparison.rows import ROWS
from hf_domain.comparison.run import describe_work, gather_results, run_comparison
from hf_domain.training.arguments import OneLineParser, find_wrong_values


def main() -> None:
    options = {"description": __doc__, "epilog": ROWS, "formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = OneLineParser(**options, allow_abbrev=False)
    parser.add_argument("plan", type=Path, help="YAML file of the plan")
    parser.add_argument("--output_dir", type=Path, help="default: the plan's path without its extension")
    parser.add_argument("--num_processes", type=int, default=1, help="number of steps to run at once on this machine")
    parser.add_argument("--dask_scheduler", help="address or file of a Dask scheduler, whose workers run the steps")
    parser.add_argument("--num_seeds", type=int, help="seeds of fine-tuning, instead of the plan's")
    mode, switch = parser.add_mutually_exclusive_group(), {"action": "store_true"}
    about = "count the missing steps, and tell which differences the plan can see, without running them"
    mode.add_argument("--dry_run", **switch, help=about)
    mode.add_argument("--report_only", **switch, help="write the report from the existing results")
    args = parser.parse_args()
    if wrong := find_wrong_values(vars(args)):
        parser.error(". ".join(wrong))
    output_dir = args.output_dir or args.plan.with_suffix("")
    plan = load_plan(args.plan, output_dir)
    if args.num_seeds is not None:
        add_seeds(plan, args.num_seeds)
    if args.dry_run:
        print(describe_work(plan, output_dir))
        return
    if args.report_only:
        gather_results(plan, output_dir)
    else:
        run_comparison(plan, output_dir, None, args.num_processes, args.dask_scheduler)
    report = write_report(output_dir)
    print((output_dir / "report.md").read_text(encoding="utf-8"))
    print(f"The report: {output_dir / 'report.html'}")
    print("", *answer(report), sep="\n")  # repeated, because a terminal shows the end of a long report
    if report.failed:
        sys.exit(f"{len(report.failed)} runs failed. Repeat the command to run them again.")


if __name__ == "__main__":
    main()

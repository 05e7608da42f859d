r"""Distill a large general encoder into a small domain encoder, by one of four strategies (Adapt-and-Distill, AdaLM).

    python examples/run_distill.py --model_name_or_path bert-base-uncased --strategy adapt_and_distill \
        --train_file corpus.txt.gz --general_file general.txt.gz --num_hidden_layers 6 --hidden_size 384 \
        --intermediate_size 1536 --teacher_steps 10000 --student_steps 30000 --output_dir distilled --dry_run

A strategy is a list of stages, each a masked LM or a distillation; `--dry_run` prints them. Each stage writes a
checkpoint into the output directory. Repeat the command to resume: finished stages are skipped, and a killed stage
resumes from its last checkpoint. Strategies with the same output directory share its adapted teacher. Batch size and
other options of Trainer apply to every stage, `--learning_rate` to distillation, `--mlm_learning_rate` to masked LM.

The student is a new model of the shape above, or consists of teacher layers (`--student_layers 1 3 5`), or is a
checkpoint (`--student_name_or_path`). With `--expanded_vocabulary` teacher and student get the same new rows.

A distilled student is for fine-tuning. It cannot predict masked tokens, because distillation trains neither the end of
its last layer nor its LM head; `--masked_lm_steps` trains both at the end, if you need them.
"""

from transformers import TrainingArguments

from hf_domain.training.arguments import parse_arguments
from hf_domain.training.distillation import (
    DistillationArguments,
    DistillationCorpusArguments,
    check_text,
    plan_steps,
    run_strategy,
)
from hf_domain.training.orders import describe_strategy

ARGUMENTS = (DistillationArguments, DistillationCorpusArguments, TrainingArguments)


def main():
    args, data_args, training_args = parse_arguments(*ARGUMENTS, description=__doc__)
    plan = plan_steps(args, data_args, training_args.output_dir)
    check_text(data_args)
    is_main = training_args.process_index == 0
    if is_main:
        print(describe_strategy(plan), flush=True)
    if args.dry_run:
        return
    run_strategy(plan, args, data_args, training_args)
    if is_main:
        if plan[-1].kind == "distill":
            print("The student is for fine-tuning. To predict masked tokens, it needs --masked_lm_steps.")
        print(f"The student: {plan[-1].output_dir}")


def _mp_fn(index):
    main()


if __name__ == "__main__":
    main()

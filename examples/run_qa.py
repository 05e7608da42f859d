r"""Fine-tune any encoder to find answers to questions in texts.

    python examples/run_qa.py \
        --model_name_or_path bert-base-uncased \
        --train_file train.jsonl --validation_file validation.jsonl --test_file test.jsonl \
        --do_train --do_eval --do_predict --num_train_epochs 2 --output_dir output

The files have the columns of SQuAD: `id`, `question`, `context`, `answers` with `text` and `answer_start`.
"""

from hf_domain.tasks.question_answering import QuestionAnswering
from hf_domain.training.fine_tuning import fine_tune_from_flags, list_arguments

ARGUMENTS = list_arguments(QuestionAnswering)


def main():
    fine_tune_from_flags(QuestionAnswering, __doc__)


def _mp_fn(index):
    main()


if __name__ == "__main__":
    main()

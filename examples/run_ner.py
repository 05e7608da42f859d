r"""Fine-tune any encoder to find named entities.

    python examples/run_ner.py \
        --model_name_or_path bert-base-cased \
        --train_file train.jsonl --validation_file validation.jsonl --test_file test.jsonl \
        --do_train --do_eval --do_predict --num_train_epochs 3 --output_dir output

The files have a column of words, `tokens`, and a column of their tags, `tags`, such as B-Disease, I-Disease and O.
"""

from hf_domain.tasks.token_classification import TokenClassification
from hf_domain.training.fine_tuning import fine_tune_from_flags, list_arguments

ARGUMENTS = list_arguments(TokenClassification)


def main():
    fine_tune_from_flags(TokenClassification, __doc__)


def _mp_fn(index):
    main()


if __name__ == "__main__":
    main()

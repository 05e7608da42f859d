r"""Fine-tune any encoder to classify texts or pairs of texts.

    python examples/run_classification.py \
        --model_name_or_path bert-base-uncased \
        --train_file train.jsonl --validation_file validation.jsonl --test_file test.jsonl \
        --do_train --do_eval --do_predict --max_seq_length 128 --num_train_epochs 3 --output_dir output

The files have a column of text, or two for pairs (text and text_pair, premise and hypothesis, ...), and one of labels:
names or numbers (single-label), lists (multi-label), or fractions (regression).

`--method gmap --memory_name_or_path <general encoder>` lets an adapted encoder read a frozen general encoder as memory.
`--memory_cache <folder>` caches the memory's states. `--nearest_vote true` mixes the model's probabilities with a vote
of the nearest training texts.
"""

from hf_domain.tasks.classification import Classification
from hf_domain.training.fine_tuning import fine_tune_from_flags, list_arguments

ARGUMENTS = list_arguments(Classification)


def main():
    fine_tune_from_flags(Classification, __doc__)


def _mp_fn(index):
    main()


if __name__ == "__main__":
    main()

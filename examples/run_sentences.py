r"""Score the sentence embeddings of an encoder, as it is or fine-tuned, on pairs of texts or on a search.

    python examples/run_sentences.py --model_name_or_path bert-base-uncased \
        --train_file train.jsonl --validation_file validation.jsonl --test_file test.jsonl \
        --do_train --do_eval --do_predict --output_dir sentences

An embedding is the mean of the states of a text; sentence-transformers computes, scores and trains it. Without
`--do_train` the encoder is scored as it is.

The files are pairs of texts with a `score` of similarity; or tables of BEIR, such as scifact/qrels/test.tsv, with
`--corpus_file scifact/corpus.jsonl --queries_file scifact/queries.jsonl`. The output folder loads with
`SentenceTransformer(folder)`.
"""

import hf_domain  # noqa: F401  the Auto classes then know its models
from hf_domain.training.arguments import FineTunerArguments, parse_arguments
from hf_domain.training.run import start_run
from hf_domain.training.run_folder import run_in_folder
from hf_domain.training.sentences import SentenceArguments, run_sentences

ARGUMENTS = (SentenceArguments, FineTunerArguments)


def main():
    arguments = parse_arguments(*ARGUMENTS, description=__doc__)
    start_run(arguments[-1], arguments[0].verbose)
    run_in_folder(run_sentences, *arguments)


if __name__ == "__main__":
    main()

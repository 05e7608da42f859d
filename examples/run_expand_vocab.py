r"""Add the words of a domain to a tokenizer, and their embedding rows to a model.

    python examples/run_expand_vocab.py \
        --model_name_or_path bert-base-uncased --train_file corpus.txt.gz \
        --validation_file heldout.txt.gz --output_dir bert-biomed

The output is a checkpoint for `AutoModelForMaskedLM`, `AutoTokenizer` and `run_mlm.py` (AdaLM),
`vocabulary_delta.json`, and the report: `vocabulary_report.json`, `curve.png` and `lengths.png`.
"""

from hf_domain.training.arguments import parse_arguments
from hf_domain.training.expansion import (
    ExpandedModelArguments,
    ExpansionArguments,
    ExpansionCorpusArguments,
    expand_from_flags,
)
from hf_domain.training.run_folder import run_in_folder
from hf_domain.training.terminal import start_logging

ARGUMENTS = (ExpandedModelArguments, ExpansionCorpusArguments, ExpansionArguments)


def main() -> None:
    start_logging()
    run_in_folder(expand_from_flags, *parse_arguments(*ARGUMENTS, description=__doc__))


if __name__ == "__main__":
    main()

# /// script
# requires-python = ">=3.11"
# dependencies = ["hf-domain[datastore]"]
# ///
"""Show what a model reads for a text: the passages that a datastore finds, with the words they have in common marked.

    python examples/search_datastore.py --datastore_dir datastore --text "lung lesions" --html_file reading.html

With `--model_name_or_path` a RADA reads them: every passage has the probability that it is chosen, the words of the
chosen one are marked where they weigh more than the average word, and a classifier's prediction is shown.
"""

import sys
from dataclasses import dataclass, field

from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from hf_domain import RadaConfig
from hf_domain.data.file_loading import load_files, locate_row
from hf_domain.data.text_columns import find_text_columns
from hf_domain.datastore import Datastore
from hf_domain.datastore.highlight import format_html, format_text, read_passages
from hf_domain.files import write_text
from hf_domain.rada.explanation import explain
from hf_domain.rada.passages import PassageArguments, load_datastore
from hf_domain.training.arguments import parse_arguments


@dataclass
class SearchArguments:
    """What is searched."""

    datastore_dir: str = field(metadata={"help": "Folder that build_datastore wrote."})
    text: list[str] = field(default_factory=list, metadata={"help": "One or several texts."})
    text_pair: list[str] = field(default_factory=list, metadata={"help": "The second text of each, for pairs."})
    text_file: str | None = field(
        default=None, metadata={"help": "File with more texts: .txt .jsonl .json .csv (.gz) .parquet."}
    )
    text_column_name: str | None = field(
        default=None,
        metadata={
            "help": "Column of the file, or two as first,second. Default: a known pair, `text`, or the only one."
        },
    )
    model_name_or_path: str | None = field(default=None, metadata={"help": "A RADA, to show which passage it chooses."})
    k: int = field(default=10, metadata={"help": "Number of passages for each text."})
    max_query_terms: int | None = field(
        default=None, metadata={"help": "Use only this many of the rarest terms of a query: faster, different results."}
    )
    html_file: str | None = field(default=None, metadata={"help": "Write an HTML page instead of printing."})


def read_texts(args: SearchArguments):
    """Yield the texts, or pairs of texts, of the file."""
    if args.text_file is None:
        return
    rows = load_files(args.text_file, streaming=True)
    columns = find_text_columns(rows, args.text_column_name, option="--text_column_name")
    print(f"reads {' + '.join(columns)} of {args.text_file}", file=sys.stderr)
    for number, row in enumerate(rows):
        texts = tuple(row.get(column) for column in columns)
        if not all(isinstance(text, str) for text in texts):
            place = locate_row(args.text_file, number)
            raise ValueError(
                f"a text must be a string, but {place} has {texts} as {', '.join(columns)}. Fill in the text."
            )
        yield texts


def main() -> None:
    (args,) = parse_arguments(SearchArguments, description=__doc__)
    if args.html_file and not args.html_file.endswith(".html"):
        raise ValueError(f"--html_file must end in .html, but is {args.html_file}: another file would be replaced")
    if args.text_pair and len(args.text_pair) != len(args.text):
        raise ValueError(
            f"--text_pair must have one text for each --text, but has {len(args.text_pair)} for {len(args.text)}. "
            "Give as many of both."
        )
    texts = [*zip(args.text, args.text_pair, strict=True)] if args.text_pair else [(text,) for text in args.text]
    texts += read_texts(args)
    if not texts:
        raise ValueError("a search needs a text. Give --text or --text_file.")
    options = {"max_query_terms": args.max_query_terms}
    if not args.model_name_or_path:
        datastore = Datastore.load(args.datastore_dir)
        readings = [read_passages(datastore, " ".join(text), args.k, **options) for text in texts]
    else:
        config = AutoConfig.from_pretrained(args.model_name_or_path)
        if not isinstance(config, RadaConfig):
            raise ValueError(
                f"--model_name_or_path must be a RADA, but {args.model_name_or_path} is a {config.model_type}"
            )
        is_classifier = (config.architectures or [""])[0].endswith("ForSequenceClassification")
        head = AutoModelForSequenceClassification if is_classifier else AutoModel
        model = head.from_pretrained(args.model_name_or_path)
        tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
        datastore = load_datastore(PassageArguments(args.datastore_dir), model, tokenizer, None)
        readings = []
        for text in texts:
            explanation = explain(model, tokenizer, datastore, text, args.k, **options)
            readings.append(read_passages(datastore, " ".join(text), args.k, **options, **vars(explanation)))
    if args.html_file:
        write_text(args.html_file, format_html(readings))
        print(args.html_file)
    else:
        print("\n".join(format_text(reading, sys.stdout.isatty()) for reading in readings))


if __name__ == "__main__":
    main()

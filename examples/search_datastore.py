# /// script
# requires-python = ">=3.11"
# dependencies = ["hf-domain[datastore]"]
# ///
"""Show what a model reads for a text: the passages that a datastore finds, with the words they have in common marked.

python examples/search_datastore.py --datastore_dir datastore --text "bilateral lung lesions" --html_file reading.html
"""

import sys
from dataclasses import dataclass, field

from transformers import HfArgumentParser

from hf_domain.corpora import find_text_column, load_files
from hf_domain.datastore import Datastore
from hf_domain.datastore.reading import format_html, format_text, read_passages
from hf_domain.outputs import write_text


@dataclass
class SearchArguments:
    """What is searched."""

    datastore_dir: str = field(metadata={"help": "Folder that build_datastore wrote."})
    text: list[str] = field(default_factory=list, metadata={"help": "One or several texts."})
    text_file: str | None = field(default=None, metadata={"help": "More texts: .txt .jsonl .json .csv (.gz) .parquet."})
    text_column_name: str | None = field(default=None, metadata={"help": "Default: text, or the only one with text."})
    k: int = field(default=10, metadata={"help": "Passages for each text."})
    max_query_terms: int | None = field(
        default=None, metadata={"help": "Search with the rarest terms only; faster, and finds others."}
    )
    html_file: str | None = field(default=None, metadata={"help": "Write a page of HTML instead of the terminal."})


def main() -> None:
    (args,) = HfArgumentParser(SearchArguments).parse_args_into_dataclasses()
    texts = list(args.text)
    if args.text_file:
        rows = load_files(args.text_file, streaming=True)
        column = args.text_column_name or find_text_column(next(iter(rows)))
        texts += [row[column] for row in rows]
    if not texts:
        raise ValueError("there is nothing to search for: give text or text_file.")
    datastore = Datastore.load(args.datastore_dir)
    readings = [read_passages(datastore, text, args.k, max_query_terms=args.max_query_terms) for text in texts]
    if args.html_file:
        write_text(args.html_file, format_html(readings))
        print(args.html_file)
    else:
        print("\n".join(format_text(reading, sys.stdout.isatty()) for reading in readings))


if __name__ == "__main__":
    main()

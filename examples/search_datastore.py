# /// script
# requires-python = ">=3.11"
# dependencies = ["hf-domain[datastore]"]
# ///
"""Show what a model reads for a text: the passages that a datastore finds, with the words they have in common marked.

    python examples/search_datastore.py --datastore_dir datastore --text "lung lesions" --html_file reading.html

With `--model_name_or_path` a RADA reads them: the passage it chose is named, and its words are marked by their weights.
"""

import sys
from dataclasses import dataclass, field

from transformers import AutoModel, AutoTokenizer

from hf_domain import RadaModel
from hf_domain.arguments import parse_arguments
from hf_domain.corpora import find_text_column, load_files
from hf_domain.datastore import Datastore
from hf_domain.datastore.highlight import format_html, format_text, read_passages
from hf_domain.files import write_text
from hf_domain.passage_reading import PassageArguments, load_datastore, weigh_words


@dataclass
class SearchArguments:
    """What is searched."""

    datastore_dir: str = field(metadata={"help": "Folder that build_datastore wrote."})
    text: list[str] = field(default_factory=list, metadata={"help": "One or several texts."})
    text_file: str | None = field(default=None, metadata={"help": "More texts: .txt .jsonl .json .csv (.gz) .parquet."})
    text_column_name: str | None = field(default=None, metadata={"help": "Default: text, or the only one with text."})
    model_name_or_path: str | None = field(default=None, metadata={"help": "A RADA that reads the passages."})
    k: int = field(default=10, metadata={"help": "Passages for each text."})
    max_query_terms: int | None = field(
        default=None, metadata={"help": "Search with the rarest terms only; faster, and finds others."}
    )
    html_file: str | None = field(default=None, metadata={"help": "Write a page of HTML instead of the terminal."})


def main() -> None:
    (args,) = parse_arguments(SearchArguments, description=__doc__)
    texts = list(args.text)
    if args.text_file:
        rows = load_files(args.text_file, streaming=True)
        column = args.text_column_name or find_text_column(next(iter(rows)))
        for number, row in enumerate(rows):
            if not isinstance(text := row.get(column), str):
                raise ValueError(f"a text is a string; row {number} of {args.text_file} has {text!r} as {column}.")
            texts.append(text)
    if not texts:
        raise ValueError("there is nothing to search for: give text or text_file.")
    weights: dict = {}
    if not args.model_name_or_path:
        datastore = Datastore.load(args.datastore_dir)
    else:
        model = AutoModel.from_pretrained(args.model_name_or_path)
        if not isinstance(model, RadaModel):
            raise ValueError(f"a RADA reads passages; {args.model_name_or_path} is a {model.config.model_type}")
        tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
        datastore = load_datastore(PassageArguments(args.datastore_dir), model, tokenizer, None)
        options = {"num_passages": args.k, "max_query_terms": args.max_query_terms}
        weights = {text: weigh_words(model, tokenizer, datastore, text, **options) for text in texts}
    readings = [
        read_passages(datastore, text, args.k, max_query_terms=args.max_query_terms, weights=weights.get(text))
        for text in texts
    ]
    if args.html_file:
        write_text(args.html_file, format_html(readings))
        print(args.html_file)
    else:
        print("\n".join(format_text(reading, sys.stdout.isatty()) for reading in readings))


if __name__ == "__main__":
    main()

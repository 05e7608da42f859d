"""Show the passages that a datastore finds for a text, with the common words marked.

    python examples/search_datastore.py --datastore datastore --text "lung lesions" --html_file reading.html

With `--model_name_or_path` a RADA reads the passages. The output then shows the probability that each passage is
selected, marks words of the selected passage with more than average weight, and gives a classifier's prediction.
"""

import sys
from dataclasses import dataclass, field

from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from hf_domain import RadaConfig
from hf_domain.data.columns import find_text_columns
from hf_domain.data.files import load_files, locate_row
from hf_domain.datastore import Datastore
from hf_domain.datastore.highlight import format_html, format_text, read_passages
from hf_domain.methods.rada.explanation import explain
from hf_domain.methods.rada.passages import PassageArguments, load_datastore
from hf_domain.safe_io import write_text
from hf_domain.training.arguments import parse_arguments


@dataclass
class SearchArguments:
    """The datastore and the texts."""

    datastore: str = field(metadata={"help": "Folder that build_datastore wrote."})
    text: list[str] = field(default_factory=list, metadata={"help": "One or several texts."})
    text_pair: list[str] = field(default_factory=list, metadata={"help": "For pairs: the second text of each."})
    text_file: str | None = field(
        default=None, metadata={"help": "File with more texts: .txt .jsonl .json .csv (.gz) .parquet."}
    )
    text_column_name: str | None = field(
        default=None,
        metadata={"help": "Column of text, or two as first,second. Default: a known pair, `text`, or the only column."},
    )
    model_name_or_path: str | None = field(default=None, metadata={"help": "A RADA, to show which passage it selects."})
    num_passages: int | None = field(
        default=None,
        metadata={"help": "Passages of each text. Default: 10, or as many as the model read in fine-tuning."},
    )
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
    print(f"Columns of text in {args.text_file}: {' + '.join(columns)}", file=sys.stderr)
    for number, row in enumerate(rows):
        texts = tuple(row.get(column) for column in columns)
        if not all(isinstance(text, str) for text in texts):
            place = locate_row(args.text_file, number)
            raise ValueError(
                f"a text must be a string, but {place} has {texts} in {', '.join(columns)}. Fill in the text."
            )
        yield texts


def main() -> None:
    (args,) = parse_arguments(SearchArguments, description=__doc__)
    if args.html_file and not args.html_file.endswith(".html"):
        raise ValueError(f"--html_file must end in .html, but is {args.html_file}. Choose another name.")
    if args.text_pair and len(args.text_pair) != len(args.text):
        raise ValueError(
            f"--text_pair must have one text for each --text, but has {len(args.text_pair)} for {len(args.text)}. "
            "Give as many of both."
        )
    texts = [*zip(args.text, args.text_pair, strict=True)] if args.text_pair else [(text,) for text in args.text]
    texts += read_texts(args)
    if not texts:
        raise ValueError("a search must have a text, but none is given. Use --text or --text_file.")
    options = {"max_query_terms": args.max_query_terms}
    if not args.model_name_or_path:
        datastore = Datastore.load(args.datastore)
        k = 10 if args.num_passages is None else args.num_passages
        readings = [read_passages(datastore, " ".join(text), k, **options) for text in texts]
    else:
        config = AutoConfig.from_pretrained(args.model_name_or_path, trust_remote_code=False)
        if not isinstance(config, RadaConfig):
            raise ValueError(
                f"--model_name_or_path must be a RADA, but {args.model_name_or_path} is a {config.model_type}"
            )
        is_classifier = (config.architectures or [""])[0].endswith("ForSequenceClassification")
        head = AutoModelForSequenceClassification if is_classifier else AutoModel
        model = head.from_pretrained(args.model_name_or_path, trust_remote_code=False)
        tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path, trust_remote_code=False)
        datastore = load_datastore(PassageArguments(args.datastore), model, tokenizer, None)
        readings = []
        for text in texts:
            explanation = explain(model, tokenizer, datastore, text, args.num_passages, **options)
            readings.append(read_passages(datastore, " ".join(text), **vars(explanation)))
    if args.html_file:
        write_text(args.html_file, format_html(readings))
        print(args.html_file)
    else:
        print("\n".join(format_text(reading, sys.stdout.isatty()) for reading in readings))


if __name__ == "__main__":
    main()

"""Label raw data with a fine-tuned model, with probabilities.

    python examples/predict.py output new.txt                           # JSON lines on the terminal
    python examples/predict.py output new.jsonl --output_file labels.csv
    python examples/predict.py rada-output new.jsonl --datastore datastore
    python examples/predict.py voted-output new.jsonl --labeled_file train.jsonl
    python examples/predict.py seed-1 new.jsonl --ensemble seed-2 seed-3

A classifier reads texts or pairs of texts; an entity model reads `tokens` (lists of words) or texts; question answering
reads `question` and `context`. Other columns are copied to the output. In a .csv file, each label's probability has a
column of its own, and lists (tags, several labels) are JSON. `hf_domain.predict` does the same in Python, with lists,
DataFrames and datasets.
"""

import argparse
import sys
from pathlib import Path

from hf_domain.comparison.results import find_winner
from hf_domain.prediction import check_new_file, format_rows, predict, write_rows
from hf_domain.training.arguments import OneLineParser, find_wrong_values
from hf_domain.training.calls import is_command, use
from hf_domain.training.terminal import show_bars


def main() -> None:
    parser = OneLineParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "model_name_or_path", help="fine-tuned model, or the folder of a comparison, whose best model predicts"
    )
    parser.add_argument("file", help="data: .txt .jsonl .json .csv .tsv (.gz .zst) .parquet, a path or a glob")
    parser.add_argument(
        "--output_file", type=Path, help="new file, .jsonl or .csv; default: JSON lines on the terminal"
    )
    parser.add_argument("--text_column_names", help="column of text, or two as first,second; default: as in training")
    parser.add_argument(
        "--ensemble",
        nargs="+",
        default=[],
        metavar="MODEL",
        help="more models of the task: their predictions are joined",
    )
    parser.add_argument("--datastore", help="folder of the passages that a RADA reads")
    parser.add_argument(
        "--num_passages", type=int, help="number of passages to retrieve for a row; default: as many as in fine-tuning"
    )
    parser.add_argument("--labeled_file", help="texts with labels that vote, of a model trained with --nearest_vote")
    parser.add_argument(
        "--max_seq_length", type=int, help="maximum number of tokens of a row; default: that of the training, else 512"
    )
    parser.add_argument("--batch_size", type=int, default=32, help="number of rows in a batch")
    parser.add_argument("--trust_remote_code", action="store_true", help="run code that comes with the model")
    parser.add_argument("--verbose", action="store_true", help="show progress bars")
    args = parser.parse_args()
    if wrong := find_wrong_values(vars(args)):
        parser.error(". ".join(wrong))
    model = args.model_name_or_path
    if Path(model, "plan.json").is_file():
        model = str(find_winner(Path(model)))
        print(f"The model: {model}", file=sys.stderr)
    if args.output_file is not None:
        check_new_file(args.output_file)
    with use(is_command, True), show_bars(args.verbose):
        rows = predict(
            [model, *args.ensemble],
            args.file,
            datastore=args.datastore,
            num_passages=args.num_passages,
            labeled_texts=args.labeled_file,
            text_columns=args.text_column_names,
            max_seq_length=args.max_seq_length,
            batch_size=args.batch_size,
            progress=args.verbose,
            trust_remote_code=args.trust_remote_code,
        )
    if args.output_file is None:
        print(format_rows(rows), end="")
    else:
        write_rows(rows, args.output_file)
        print(f"{len(rows):,} rows: {args.output_file}", file=sys.stderr)


if __name__ == "__main__":
    main()

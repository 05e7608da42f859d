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
import csv
import json
import sys
from pathlib import Path

import datasets
import pandas
import transformers

from hf_domain.comparison.results import find_winner
from hf_domain.prediction import predict
from hf_domain.safe_io import explain_full_disk, write_text
from hf_domain.training.arguments import OneLineParser, find_damage
from hf_domain.training.calls import name_flags


def find_model(name: str) -> str:
    """Return the best model of a comparison's folder; any other name as it is."""
    if not Path(name, "plan.json").is_file():
        return name
    model = str(find_winner(Path(name)))
    print(f"The model: {model}", file=sys.stderr)
    return model


def main() -> None:
    parser = OneLineParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "model_name_or_path", help="fine-tuned model, or the folder of a comparison, whose best model predicts"
    )
    parser.add_argument("file", help="data: .txt .jsonl .json .csv .tsv (.gz) .parquet, a path or a glob")
    parser.add_argument("--output_file", help="new file, .jsonl or .csv; default: JSON lines on the terminal")
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
    model = find_model(args.model_name_or_path)
    models = [model, *args.ensemble]
    for damage in filter(None, map(find_damage, models)):
        raise ValueError(damage)
    output_file = args.output_file and Path(args.output_file)
    if output_file and output_file.suffix not in (".jsonl", ".csv"):
        raise ValueError(f"--output_file must end in .jsonl or .csv, but is {output_file}")
    if output_file and output_file.exists():
        raise FileExistsError(f"--output_file must be a new file, but {output_file} exists. Name another.")
    for leftover in output_file.parent.glob(f"{output_file.name}.*.unfinished") if output_file else ():
        leftover.unlink()  # of a call that was killed
    for name in ("num_passages", "max_seq_length", "batch_size"):
        if (value := getattr(args, name)) is not None and value < 1:
            raise ValueError(f"--{name} must be at least 1, but is {value}")
    if not args.verbose:
        transformers.utils.logging.disable_progress_bar()  # for loading weights
        datasets.disable_progress_bars()
    with name_flags():
        rows = predict(
            models,
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
    if output_file and output_file.suffix == ".csv":
        text = format_csv(rows)
    else:
        # Dates, which datasets reads in JSON and Parquet, have no form in JSON.
        text = "".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
    if output_file is None:
        print(text, end="")
        return
    with explain_full_disk(output_file.absolute().parent):
        write_text(output_file, text)


def format_csv(rows: datasets.Dataset) -> str:
    """Return rows as CSV, with lists as JSON: pandas writes NumPy's text, which leaves out the middle of long lists."""
    rows = rows.flatten()
    table = rows.to_pandas()
    for name, feature in rows.features.items():
        if isinstance(feature, datasets.Value) and "int" in feature.dtype and table[name].isna().any():
            # Otherwise 7 becomes 7.0, and long ids lose digits.
            table[name] = pandas.array(rows[name], dtype=feature.dtype.replace("int", "Int").replace("u", "U"))
        if not isinstance(feature, datasets.Value):
            values = rows[name]
            table[name] = [
                json.dumps(each, ensure_ascii=False) if isinstance(each, list | dict) else each for each in values
            ]
    # Unquoted, a carriage return ends a row for most readers.
    has_returns = any("\r" in cell for name in table for cell in table[name] if isinstance(cell, str))
    return table.to_csv(index=False, quoting=csv.QUOTE_NONNUMERIC if has_returns else csv.QUOTE_MINIMAL)


if __name__ == "__main__":
    main()

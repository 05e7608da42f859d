r"""Choose the text of a corpus that is nearest to the texts of a task, for the pre-training of an encoder.

    python examples/select_text.py --datastore datastore --text_file task/train.jsonl \
        --training_tokens 819200 --output_file nearest.jsonl
    python examples/run_mlm.py --model_name_or_path bert-base-uncased --train_file nearest.jsonl ...

The file holds the texts of the task and the passages that BM25 finds for them, those that rank first for any text
before those that rank second. It is the text of kNN-TAPT (Gururangan et al. 2020), with BM25 instead of an embedding.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

from hf_domain.data.corpora import read_texts
from hf_domain.datastore import Datastore
from hf_domain.datastore.nearest import choose_nearest
from hf_domain.safe_io import explain_full_disk, write_whole
from hf_domain.training.arguments import parse_arguments


@dataclass
class SelectionArguments:
    """The datastore, the texts, and how much text to choose."""

    datastore: str = field(metadata={"help": "Folder that build_datastore wrote, with passages of the corpus."})
    text_file: str = field(
        metadata={"help": "Training texts of the task, labeled or not: .txt .jsonl .json .csv .tsv (.gz) .parquet."}
    )
    output_file: str = field(metadata={"help": "Write the chosen text to this .jsonl."})
    text_column_name: str | None = field(
        default=None, metadata={"help": "Column of text, or two as first,second. Default: as in hf-domain mlm."}
    )
    training_tokens: int | None = field(
        default=None,
        metadata={
            "help": "Tokens of the planned training: passages are chosen until the file has as many, but at least "
            "half as many. Default: all that the texts find."
        },
    )
    num_passages: int = field(default=50, metadata={"help": "Passages that a text chooses at most."})
    max_query_terms: int | None = field(
        default=None, metadata={"help": "Use only this many of the rarest terms of a text: faster, different results."}
    )
    preprocessing_num_workers: int | None = field(default=None, metadata={"help": "Processes that search."})


ARGUMENTS = (SelectionArguments,)


def check_arguments(args: SelectionArguments) -> None:
    if not args.output_file.endswith(".jsonl"):
        raise ValueError(f"--output_file must end in .jsonl, but is {args.output_file}. Choose another name.")
    if args.training_tokens is not None and args.training_tokens < 1:
        raise ValueError(f"--training_tokens must be at least 1, but is {args.training_tokens}. Raise it.")


def main() -> None:
    (args,) = parse_arguments(*ARGUMENTS, description=__doc__)
    check_arguments(args)
    datastore = Datastore.load(args.datastore)
    texts = list(dict.fromkeys(filter(str.strip, read_texts(args.text_file, args.text_column_name))))
    if not texts:
        raise ValueError(f"--text_file must have texts, but all of {args.text_file} are blank. Check the column.")
    own = sum(map(len, datastore.tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]))
    total = args.training_tokens
    numbers = choose_nearest(
        datastore,
        texts,
        None if total is None else max(total - own, total // 2),
        num_passages=args.num_passages,
        max_query_terms=args.max_query_terms,
        num_proc=args.preprocessing_num_workers,
    )
    passages = datastore.passages.select_columns("text").select(numbers)["text"]
    folder = Path(args.output_file).parent
    folder.mkdir(parents=True, exist_ok=True)
    with explain_full_disk(folder), write_whole(args.output_file) as file, open(file, "w", encoding="utf-8") as lines:
        for text in (*texts, *passages):
            lines.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    print(
        f"{len(texts):,} texts with {own:,} tokens and {len(numbers):,} of {len(datastore):,} passages in "
        f"{args.output_file}"
    )


if __name__ == "__main__":
    main()

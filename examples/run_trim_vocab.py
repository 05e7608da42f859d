r"""Remove the entries that a corpus does not use from the vocabulary of an encoder, with their embedding rows.

    python examples/run_trim_vocab.py \
        --model_name_or_path bert-base-uncased --train_file corpus.txt.gz task/train.jsonl \
        --validation_file heldout.txt.gz --output_dir bert-small-vocabulary

On the texts of the corpus the smaller encoder computes what the old one did. List every file that it will read, with
those of tasks: words of other texts may be split into more pieces, and --validation_file shows how many.
"""

from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path

from transformers import AutoModelForMaskedLM, AutoTokenizer

from hf_domain.checks import check_weights
from hf_domain.data.corpora import read_texts
from hf_domain.data.files import find_files
from hf_domain.methods.adalm.trim import check_tables, keep_rows
from hf_domain.safe_io import write_folder
from hf_domain.tokenization import compare_lengths, trim_vocabulary
from hf_domain.training.arguments import parse_arguments
from hf_domain.training.command_cards import write_trimming_card
from hf_domain.training.run_folder import run_in_folder
from hf_domain.training.terminal import log_place, shows_bar, start_logging, suggest_training


@dataclass
class Arguments:
    """The encoder, the text, and how much to keep."""

    model_name_or_path: str = field(metadata={"help": "Encoder with a masked-LM head."})
    train_file: list[str] = field(metadata={"help": "Text that it will read: .txt .jsonl .json .csv (.gz) .parquet."})
    output_dir: str = field(metadata={"help": "Folder for the smaller encoder."})
    validation_file: list[str] = field(
        default_factory=list, metadata={"help": "Held-out texts and task files whose lengths are compared."}
    )
    text_column_name: str | None = field(
        default=None, metadata={"help": "Columns of text: title,abstract. Default: those that look like text."}
    )
    min_frequency: int = field(default=1, metadata={"help": "Minimum occurrences of an entry in the text."})


ARGUMENTS = (Arguments,)


def main() -> None:
    start_logging()
    run_in_folder(run, *parse_arguments(*ARGUMENTS, description=__doc__))


def run(args: Arguments) -> None:
    find_files([*args.train_file, *args.validation_file])
    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path, trust_remote_code=False)
    model = AutoModelForMaskedLM.from_pretrained(args.model_name_or_path, trust_remote_code=False)
    check_weights(model, args.model_name_or_path)
    check_tables(model)
    parameters = model.num_parameters()
    read = partial(read_texts, text_column=args.text_column_name)
    texts = chain.from_iterable(map(read, args.train_file))
    new_tokenizer, kept = trim_vocabulary(tokenizer, texts, min_frequency=args.min_frequency, progress=shows_bar())
    keep_rows(model, kept)
    lines = [f"Vocabulary: {len(tokenizer):,} entries before, {len(kept):,} now."]
    lines += [f"Parameters: {parameters:,} before, {model.num_parameters():,} now."]
    for path in args.validation_file:
        name, lengths = "/".join(Path(path).parts[-2:]), compare_lengths(tokenizer, new_tokenizer, read(path))
        lines.append(
            f"{name}: {max(0.0, -lengths.saved):.1%} more tokens; {lengths.longer:.1%} of the texts have more."
        )
    with write_folder(args.output_dir) as folder:
        model.save_pretrained(folder)
        new_tokenizer.save_pretrained(folder)
        write_trimming_card(folder, args, new_tokenizer, lines)
    print(*lines, sep="\n")
    log_place("Model and tokenizer", args.output_dir, suggest_training(args.output_dir, args.train_file))


if __name__ == "__main__":
    main()

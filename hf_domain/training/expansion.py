"""Expand the vocabulary of an encoder, as the flags of `hf-domain expand_vocab` say."""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from transformers import AutoModelForMaskedLM, AutoTokenizer, set_seed

from hf_domain.checks import check_weights
from hf_domain.clusters import count_tasks, open_executor
from hf_domain.data.corpora import read_texts
from hf_domain.data.files import find_files
from hf_domain.extras import explain_missing
from hf_domain.methods import METHODS
from hf_domain.methods.adalm.expand import identify_corpus
from hf_domain.methods.new_embeddings import apply_delta
from hf_domain.safe_io import write_folder
from hf_domain.tokenization import (
    ExpansionReport,
    VocabularyDelta,
    WordCounts,
    batch_texts,
    compare_lengths,
    count_words,
    expand_vocabulary,
    plot_curve,
    plot_lengths,
)
from hf_domain.training.cards import describe_files, write_command_card
from hf_domain.training.terminal import shows_bar

logger = logging.getLogger(__name__)


@dataclass
class ExpandedModelArguments:
    """The model to expand."""

    model_name_or_path: str = field(metadata={"help": "Encoder with a masked-LM head, or only a tokenizer."})
    embedding_init: Literal["pieces", "random", "mean", "none"] = field(
        default="pieces", metadata={"help": "Start of new rows; none writes only the tokenizer and the delta."}
    )


@dataclass
class ExpansionCorpusArguments:
    """The texts."""

    train_file: list[str] = field(metadata={"help": "Corpus: .txt .jsonl .json .csv .tsv (.gz .zst) .parquet."})
    validation_file: list[str] = field(
        default_factory=list, metadata={"help": "Held-out texts and task files whose lengths are compared."}
    )
    counts_file: str | None = field(
        default=None, metadata={"help": "Parquet file of word counts: read if it exists, otherwise written."}
    )
    num_workers: int = field(default=2, metadata={"help": "Number of processes that count words."})
    dask_scheduler: str | None = field(default=None, metadata={"help": "Count on a Dask cluster: its scheduler."})


@dataclass
class ExpansionArguments:
    """The options of expand_vocabulary, and the output folder."""

    output_dir: str = field(metadata={"help": "Folder for the new checkpoint and the report."})
    method: Literal["adalm", "exbert", "words"] = field(
        default="adalm", metadata={"help": "exbert needs WordPiece; words adds only those of --words."}
    )
    words: str | None = field(default=None, metadata={"help": "File of your own words to add, one a line."})
    size: int | None = field(default=None, metadata={"help": "Size of the vocabulary. Default: Algorithm 1 chooses."})
    step: int = field(default=10_000, metadata={"help": "Number of entries that each step of Algorithm 1 adds."})
    threshold: float = field(default=0.01, metadata={"help": "Stop when the relative rise of P(D) falls below this."})
    select: Literal["algorithm", "last_accepted"] = field(
        default="algorithm", metadata={"help": "Use the step that fell below the threshold, or the one before."}
    )
    max_size: int | None = field(default=None, metadata={"help": "Follow the curve up to this size."})
    min_frequency: int = field(default=5, metadata={"help": "Minimum occurrences of a new entry in the corpus."})
    max_word_length: int = field(default=50, metadata={"help": "Ignore words with more characters than this."})
    training_tokens: int | None = field(
        default=None, metadata={"help": "Tokens of the planned training; keep only entries that it shows often enough."}
    )
    min_exposures: float = field(
        default=5.0, metadata={"help": "Minimum expected occurrences of an entry in --training_tokens."}
    )
    seed: int = field(default=42, metadata={"help": "Seed of --embedding_init random."})


def expand_from_flags(
    model_args: ExpandedModelArguments, data_args: ExpansionCorpusArguments, expansion_args: ExpansionArguments
) -> None:
    """Expand the vocabulary of a tokenizer, and the tables of its model; write both with a card and a report."""
    set_seed(expansion_args.seed)
    words = Path(*find_files([expansion_args.words])).read_text("utf-8").splitlines() if expansion_args.words else []
    find_files(data_args.validation_file)  # a missing one would be found only after hours of counting
    tokenizer = AutoTokenizer.from_pretrained(model_args.model_name_or_path, trust_remote_code=False)
    counts_file, source = data_args.counts_file, identify_corpus(data_args.train_file)
    if counts_file and Path(counts_file).exists():
        counts = WordCounts.load(counts_file, source)
    else:
        shards = batch_texts(text for path in data_args.train_file for text in read_texts(path))
        with open_executor(data_args.num_workers, data_args.dask_scheduler) as executor:
            counts = count_words(shards, tokenizer.backend_tokenizer, executor, shows_bar(), count_tasks(executor))
        if counts_file:
            counts.source = source
            counts.save(counts_file)

    options = {name: value for name, value in vars(expansion_args).items() if name not in ("output_dir", "seed")}
    options["words"] = words
    new_tokenizer, delta, report = expand_vocabulary(tokenizer, counts, progress=shows_bar(), **options)
    for path in data_args.validation_file:
        report.lengths["/".join(Path(path).parts[-2:])] = compare_lengths(tokenizer, new_tokenizer, read_texts(path))

    with write_folder(expansion_args.output_dir) as folder:
        if (init := model_args.embedding_init) != "none":
            model = AutoModelForMaskedLM.from_pretrained(model_args.model_name_or_path, trust_remote_code=False)
            check_weights(model, model_args.model_name_or_path)
            apply_delta(model, delta, init=init)
            model.save_pretrained(folder)
            write_card(folder, model_args, data_args, expansion_args, new_tokenizer.mask_token, delta, report)
        new_tokenizer.save_pretrained(folder)
        delta.save(folder)
        report.save(folder / "vocabulary_report.json")
        if (missing := explain_missing("a picture of the vocabulary", "matplotlib")) is not None:
            logger.info(missing)
        else:
            plot_curve(report, folder / "curve.png")
            if report.lengths:
                plot_lengths(report, folder / "lengths.png")
    for line in (f"{delta.old_size:,} + {len(delta.pieces):,} entries by {report.stopped_by}", *report.describe()):
        logger.info(line)
    what = "Tokenizer and delta" if init == "none" else "Model and tokenizer"
    logger.info(f"{what}: {expansion_args.output_dir}")


def write_card(
    folder: Path,
    model_args: ExpandedModelArguments,
    data_args: ExpansionCorpusArguments,
    expansion_args: ExpansionArguments,
    mask_token: str,
    delta: VocabularyDelta,
    report: ExpansionReport,
) -> None:
    """Write the card of a model whose vocabulary was expanded."""
    # With a file of counts, the text itself may be gone.
    files = [data_args.counts_file] if data_args.counts_file else find_files(data_args.train_file)
    count = f"{len(delta.pieces):,}"
    write_command_card(
        folder,
        model_args.model_name_or_path,
        model_name=Path(expansion_args.output_dir).resolve().name,
        method=expansion_args.method if expansion_args.method in METHODS else "adalm",  # "words" has no paper
        method_name="vocabulary expansion",
        summary=f"{{base_model}} with {count} words of a domain added to its vocabulary. Nothing else was trained.",
        corpus=describe_files(files, [f"{report.documents:,} documents"]),
        settings={
            "new entries": count,
            "size of the vocabulary": f"{delta.new_size:,}",
            "start of the new rows": model_args.embedding_init,
            "chosen by": report.stopped_by,
            "minimum occurrences": expansion_args.min_frequency,
            "seed": expansion_args.seed,
        },
        limits="The model was not evaluated. Train it before use with `hf-domain mlm`, because the new rows have only "
        "a start.",
        example=f"This is a {mask_token}.",
    )

"""The corpus of masked-LM training: its flags, its examples, and how they are masked."""

import logging
from dataclasses import dataclass, field
from typing import Any, Literal

from datasets import DatasetDict, IterableDataset, concatenate_datasets, interleave_datasets
from transformers import PreTrainedTokenizerBase, TrainingArguments

from hf_domain.clusters import open_executor
from hf_domain.data.causal import DataCollatorForNextToken
from hf_domain.data.columns import warn_of_shared_rows
from hf_domain.data.corpora import check_known, load_corpus, tokenize_corpus
from hf_domain.data.files import is_saved, load_files
from hf_domain.data.masking import DataCollatorForTokenMask, DataCollatorForWholeWordMask
from hf_domain.training.arguments import ModelArguments

logger = logging.getLogger(__name__)


@dataclass
class CorpusArguments:
    """The text, and how to cut and mask it."""

    train_file: list[str] | None = field(
        default=None, metadata={"help": ".txt .jsonl .json .csv .tsv (.gz .zst) .parquet."}
    )
    validation_file: list[str] | None = field(default=None, metadata={"help": "Text to evaluate on."})
    general_validation_file: list[str] | None = field(
        default=None, metadata={"help": "Held-out general text: the card then shows what the encoder forgets."}
    )
    dataset_name: str | None = field(default=None, metadata={"help": "A dataset of the Hub instead of files."})
    dataset_config_name: str | None = field(default=None, metadata={"help": "Configuration of the dataset."})
    data_license: str | None = field(
        default=None, metadata={"help": "License of the data for the card, as the Hub spells it: cc-by-4.0."}
    )
    text_column_name: str | None = field(
        default=None, metadata={"help": "Column of text. Default: `text`, or the only column."}
    )
    validation_split_percentage: int = field(
        default=5, metadata={"help": "Percentage of the text to hold out if there is no validation text."}
    )
    streaming: bool = field(default=False, metadata={"help": "Read the text during training; needs --max_steps."})
    max_seq_length: int = field(default=128, metadata={"help": "Number of tokens in an example."})
    line_by_line: bool = field(
        default=False, metadata={"help": "Make one example per document instead of packed blocks."}
    )
    mix: str | None = field(
        default=None,
        metadata={"help": "Replay: add other text as a share of all examples, as general.txt:0.1."},
    )
    objective: Literal["mlm", "clm"] = field(
        default="mlm", metadata={"help": "clm predicts next tokens with causal attention; train with mlm afterwards."}
    )
    mlm_probability: float = field(default=0.15, metadata={"help": "Share of tokens (or words) to mask."})
    whole_word_mask: bool = field(default=False, metadata={"help": "Mask all tokens of a word together."})
    max_train_samples: int | None = field(default=None, metadata={"help": "Use only this many training examples."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Use only this many validation examples."})
    preprocessing_num_workers: int | None = field(
        default=None, metadata={"help": "Number of processes for tokenization."}
    )
    dask_scheduler: str | None = field(
        default=None,
        metadata={"help": "Tokenize text and encode passages on a Dask cluster: address or file of its scheduler."},
    )
    overwrite_cache: bool = field(default=False, metadata={"help": "Tokenize again, even if a cached result exists."})


def load_documents(
    args: CorpusArguments, model_args: ModelArguments, do_eval: bool, corpus: Any = None, validation: Any = None
) -> Any:
    """Return the splits of a corpus; see `load_examples`.

    Raises:
        ValueError: Nothing is held out for an evaluation.
    """
    options: dict[str, Any] = {"streaming": args.streaming, "cache_dir": model_args.cache_dir}
    if corpus is None and args.train_file:
        is_whole = len(args.train_file) == 1 and is_saved(args.train_file[0])  # with its validation split
        corpus = args.train_file[0] if is_whole else load_files(args.train_file, **options)
    if validation is None and args.validation_file:
        validation = load_files(args.validation_file, **options)
    splits = load_corpus(
        corpus,
        validation,
        dataset_name=args.dataset_name,
        dataset_config_name=args.dataset_config_name,
        text_column=args.text_column_name,
        validation_split_percentage=args.validation_split_percentage if do_eval else 0,
        **options,
    )
    if do_eval and "validation" not in splits:
        raise ValueError(
            "--do_eval needs text that is held out, but there is no validation split and --validation_split_percentage "
            f"is {args.validation_split_percentage}. Add --validation_file, or hold out a percentage."
        )
    if args.validation_file and not args.streaming:
        warn_of_shared_rows(splits, ["text"])
    return splits


def load_examples(
    args: CorpusArguments,
    model_args: ModelArguments,
    do_eval: bool,
    tokenizer: Any,
    corpus: Any = None,
    validation: Any = None,
    general: Any = None,
    document_boundaries: bool = False,
) -> tuple[Any, Any]:
    """Return the tokenized splits (or streams) of a corpus, and its documents.

    Args:
        corpus: Documents in memory, see `load_corpus`. Default: the files that the arguments name.
        validation: Held-out documents in memory.
        general: Held-out general text in memory.
        document_boundaries: See `tokenize_corpus`.
    """
    splits = load_documents(args, model_args, do_eval, corpus, validation)
    tokenizing: dict[str, Any] = {
        "max_seq_length": args.max_seq_length,
        "line_by_line": args.line_by_line,
        "document_boundaries": document_boundaries,
        "whole_words": args.whole_word_mask,
        "num_proc": args.preprocessing_num_workers,
        "overwrite_cache": args.overwrite_cache,
    }
    with open_executor(dask_scheduler=args.dask_scheduler) as executor:
        examples = tokenize_corpus(splits, tokenizer, executor=executor, **tokenizing)
        if "validation" in examples:
            fill_split(examples, "validation", splits["validation"], tokenizer, tokenizing)
        for split, rows in examples.items():
            check_known(rows, tokenizer, split)
        if args.mix is not None:
            path, share = split_mix(args.mix)
            options: dict[str, Any] = {"streaming": args.streaming, "cache_dir": model_args.cache_dir}
            other = load_corpus(path, validation_split_percentage=0, **options)
            other = tokenize_corpus(other, tokenizer, executor=executor, **tokenizing)
            examples["train"] = mix_examples(examples["train"], other["train"], share)
        if general is None and args.general_validation_file and do_eval:
            general = load_files(args.general_validation_file, cache_dir=model_args.cache_dir)
        if general is not None:
            text = load_corpus(general, validation_split_percentage=0)
            examples["general"] = tokenize_corpus(text, tokenizer, executor=executor, **tokenizing)["train"]
            fill_split(examples, "general", text["train"], tokenizer, tokenizing)
    limits = {"validation": args.max_eval_samples, "general": args.max_eval_samples}
    for split, limit in ({"train": args.max_train_samples} | limits).items():
        if limit is not None and split in examples:
            is_stream = isinstance(examples[split], IterableDataset)
            examples[split] = examples[split].take(limit if is_stream else min(limit, len(examples[split])))
    return examples, splits


def fill_split(examples: Any, split: str, documents: Any, tokenizer: Any, tokenizing: dict[str, Any]) -> None:
    """Make an example of each document of a held-out split that fills no block: a loss needs one.

    Args:
        examples: Tokenized splits, changed in place.
        documents: The split's text.
        tokenizing: Options of `tokenize_corpus`.
    """
    if isinstance(examples[split], IterableDataset) or len(examples[split]):
        return
    text = DatasetDict(train=documents)
    examples[split] = tokenize_corpus(text, tokenizer, **tokenizing | {"line_by_line": True})["train"]
    logger.warning(
        f"The {split} text fills no block of {tokenizing['max_seq_length']} tokens, so that each of its "
        f"{len(documents):,} documents is an example. Hold out more text for a steadier loss."
    )


def split_mix(mix: str) -> tuple[str, float]:
    """Split `general.txt:0.1` into a path or glob and a share."""
    path, _, share = mix.rpartition(":")
    try:
        number = float(share)
    except ValueError:
        number = 0.0
    if not path or not 0 < number < 1:
        raise ValueError(f"--mix must be a file and its share of all examples, as general.txt:0.1, but is {mix}")
    return path, number


def mix_examples(examples: Any, others: Any, share: float) -> Any:
    """Mix examples of other text into those of a corpus.

    Args:
        examples: Examples of the corpus; all are kept.
        others: Examples of the other text; drawn at random, and repeated if there are too few.
        share: Share of other text in the result, above 0 and below 1.
    """
    if next(iter(others), None) is None:
        raise ValueError("--mix must name text that fills a block of --max_seq_length, but fills none. Use more text.")
    if isinstance(examples, IterableDataset):
        return interleave_datasets(
            [examples, others], probabilities=[1 - share, share], seed=0, stopping_strategy="all_exhausted"
        )
    count = max(1, round(len(examples) * share / (1 - share)))
    others = others.shuffle(seed=0).select([number % len(others) for number in range(count)])
    # In a random order, so that the first examples alone (`max_train_samples`) hold the share, too.
    return concatenate_datasets([examples, others]).shuffle(seed=0)


def make_collator(tokenizer: PreTrainedTokenizerBase, args: CorpusArguments, training_args: TrainingArguments) -> Any:
    """Return the collator that masks tokens, masks whole words, or prepares next-token prediction."""
    if args.objective == "clm":
        # Trainer counts tokens by the sum of the attention mask; the sum of an additive mask is no count.
        training_args.include_num_input_tokens_seen = "all"
        return DataCollatorForNextToken(tokenizer, args.mlm_probability, training_args.seed)
    training_args.remove_unused_columns = not args.whole_word_mask  # the collator reads and drops word_ids
    collator_class: Any = DataCollatorForWholeWordMask if args.whole_word_mask else DataCollatorForTokenMask
    return collator_class(tokenizer, mlm_probability=args.mlm_probability, seed=training_args.seed)

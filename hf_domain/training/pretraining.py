"""Continued pre-training by masked LM: its arguments, the model of a method, and the examples of a corpus."""

import logging
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from datasets import IterableDataset, concatenate_datasets, interleave_datasets
from transformers import (
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
)

from hf_domain.data.causal import DataCollatorForNextToken, check_causal
from hf_domain.data.corpora import load_corpus, tokenize_corpus
from hf_domain.data.file_loading import check_held_out
from hf_domain.data.masking import DataCollatorForTokenMask, DataCollatorForWholeWordMask, check_mask_token
from hf_domain.data.word_weights import load_counts, weigh_words
from hf_domain.distillation.new_rows import distill_new_rows
from hf_domain.methods import BASELINE, METHODS, PRETRAINING_METHODS, find_methods
from hf_domain.modeling.backbone import find_encoder
from hf_domain.new_rows import NewRowsFirst, RowDistances, apply_delta, check_not_expanded
from hf_domain.tokenization import VocabularyDelta
from hf_domain.training.arguments import ModelArguments, check_work
from hf_domain.training.finiteness import check_weights
from hf_domain.training.method_rate import choose_method_rate
from hf_domain.training.overrides import load_config
from hf_domain.training.runs import save_metrics
from hf_domain.training.stock_models import autocast_as_trained, check_tokenizer_fits
from hf_domain.training.terminal import hide_load_report, report_new_weights, show_progress

logger = logging.getLogger(__name__)

# Batches on which a start is measured: a running average of torch's momentum remembers as many.
PREPARING_BATCHES = 10


@dataclass
class PretrainingArguments(ModelArguments):
    """Which encoder, and what is made of it."""

    method: str = field(
        default=BASELINE,
        metadata={
            "help": "What to train: the encoder (dapt), low-rank changes (lora), or a method of this package.",
            "choices": PRETRAINING_METHODS,
        },
    )
    expanded_vocabulary: str | None = field(default=None, metadata={"help": "Folder written by expand_vocab."})
    embedding_init: Literal["pieces", "distill"] = field(
        default="pieces", metadata={"help": "New rows: the mean of their pieces, or distilled on the training text."}
    )
    new_rows_first_steps: int = field(
        default=0, metadata={"help": "Train only the new rows for this many steps, then everything."}
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = field(
        default="float32", metadata={"help": "Data type of the weights; use --bf16 for mixed precision."}
    )

    def __post_init__(self) -> None:
        if self.expanded_vocabulary is not None:
            self.tokenizer_name = self.expanded_vocabulary


@dataclass
class CorpusArguments:
    """Which text, and how it is cut and masked."""

    train_file: list[str] | None = field(default=None, metadata={"help": ".txt .jsonl .json .csv (.gz) .parquet."})
    validation_file: list[str] | None = field(default=None, metadata={"help": "Text to evaluate on."})
    dataset_name: str | None = field(default=None, metadata={"help": "A dataset of the Hub instead of files."})
    dataset_config_name: str | None = field(default=None, metadata={"help": "Configuration of the dataset."})
    text_column_name: str | None = field(
        default=None, metadata={"help": "Column of text. Default: `text`, or the only one."}
    )
    validation_split_percentage: int = field(
        default=5, metadata={"help": "Percentage held out without validation text."}
    )
    streaming: bool = field(default=False, metadata={"help": "Read while training; needs --max_steps."})
    max_seq_length: int = field(default=128, metadata={"help": "Number of tokens in an example."})
    line_by_line: bool = field(default=False, metadata={"help": "One example a document instead of packed blocks."})
    mix: str | None = field(
        default=None,
        metadata={"help": "Replay: other text and its share of the training, as general.txt:0.1."},
    )
    objective: Literal["mlm", "clm"] = field(
        default="mlm", metadata={"help": "clm predicts next tokens, with causal attention; go on with mlm after it."}
    )
    mlm_probability: float = field(default=0.15, metadata={"help": "Share of tokens (or words) to mask."})
    whole_word_mask: bool = field(default=False, metadata={"help": "Mask all pieces of a word together."})
    word_counts: list[str] | None = field(
        default=None,
        metadata={"help": "Mask words of the domain more: its text and general text, or their --counts_file."},
    )
    word_rule: Literal["ratio", "keyword", "random"] = field(
        default="ratio", metadata={"help": "With --word_counts: which words are masked more."}
    )
    max_train_samples: int | None = field(default=None, metadata={"help": "Use only this many training examples."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Use only this many validation examples."})
    preprocessing_num_workers: int | None = field(
        default=None, metadata={"help": "Processes that tokenize, and search."}
    )
    overwrite_cache: bool = field(default=False, metadata={"help": "Tokenize again, even if a cached result exists."})


def check_options(
    model_args: PretrainingArguments, data_args: CorpusArguments, training_args: TrainingArguments
) -> None:
    """Check what the flags ask for together.

    Raises:
        ValueError: One needs another, or the text of the evaluation is trained on.
    """
    check_work(training_args, "do_train", "do_eval")
    if training_args.do_train:
        check_held_out(data_args.train_file, {"validation_file": data_args.validation_file})
    if data_args.word_counts is not None and (len(data_args.word_counts) != 2 or not data_args.whole_word_mask):
        raise ValueError(
            "--word_counts must name two files, of the domain and of general text, beside --whole_word_mask, but names "
            f"{', '.join(data_args.word_counts)} with whole_word_mask={data_args.whole_word_mask}"
        )
    if data_args.objective == "clm" and (data_args.whole_word_mask or not METHODS[model_args.method].keeps_encoder):
        raise ValueError(
            "--objective clm trains the encoder itself (--method dapt or lora) and masks nothing, but got --method "
            f"{model_args.method} with whole_word_mask={data_args.whole_word_mask}"
        )
    if data_args.objective == "clm":
        check_causal(load_config(model_args)[0].model_type)
    if data_args.mix is not None:
        path, _ = split_mix(data_args.mix)
        check_held_out([path], {"validation_file": data_args.validation_file})
    if data_args.streaming and training_args.do_train and training_args.max_steps <= 0:
        raise ValueError(
            "--streaming needs --max_steps, because the length of a stream is not known, but none is given"
        )
    if METHODS[model_args.method].finish and training_args.push_to_hub and not training_args.do_train:
        raise ValueError(
            f"--method {model_args.method} pushes the trained model, so --push_to_hub needs --do_train. Add it."
        )
    check_new_rows(model_args, data_args)


def check_new_rows(model_args: PretrainingArguments, data_args: CorpusArguments) -> None:
    """Check the flags of new rows, see `check_options`."""
    distills = model_args.embedding_init == "distill"
    if not distills and not model_args.new_rows_first_steps:
        return
    flag = "--embedding_init distill" if distills else "--new_rows_first_steps"
    if model_args.expanded_vocabulary is None:
        raise ValueError(f"{flag} needs an --expanded_vocabulary, but none is given")
    if distills and data_args.streaming:
        raise ValueError(f"{flag} draws its text from the whole corpus, but got --streaming. Leave one out.")
    if METHODS[model_args.method].trains_rows_apart:
        raise ValueError(
            f"{flag} must not be used with {model_args.method}, which freezes the encoder and "
            "trains the new rows separately. Leave the flag out."
        )


def load_delta(args: PretrainingArguments) -> VocabularyDelta | None:
    """Load what the expanded vocabulary adds; None without one."""
    return None if args.expanded_vocabulary is None else VocabularyDelta.load(args.expanded_vocabulary)


def load_model(
    args: PretrainingArguments, tokenizer: PreTrainedTokenizerBase, delta: VocabularyDelta | None
) -> PreTrainedModel:
    """Load the model to train: the encoder itself, or the method's model around it.

    Raises:
        ValueError: The checkpoint is no masked LM, cannot take new entries, or has weights that are not finite; the
            tokenizer has no mask token or does not fit; see also `load_config`.
    """
    check_mask_token(tokenizer)
    config, overrides = load_config(args)
    if type(config) not in MODEL_FOR_MASKED_LM_MAPPING and not args.trust_remote_code:
        raise ValueError(
            f"masked language modeling needs an encoder such as BERT or RoBERTa, but this is a {config.model_type}"
        )
    extends = any(method.extends_vocabulary for method in find_methods(config.model_type))
    if delta is not None and (extends or hasattr(config, "memory_config")):
        raise ValueError(
            f"the vocabulary of an {config.model_type} must be expanded before the model is built, because a part "
            f"of it cannot read new words. Leave out --expanded_vocabulary {args.expanded_vocabulary}."
        )
    if getattr(config, "memory_tokenizer", "same") != "same":
        raise ValueError(
            "in masked-LM training both encoders must have one tokenizer, because the memory reads the masked "
            f"text, but the memory of {args.model_name_or_path} has its own"
        )
    with hide_load_report():
        model, info = AutoModelForMaskedLM.from_pretrained(
            args.model_name_or_path, config=config, dtype=args.dtype, output_loading_info=True, **args.hub_options
        )
    report_new_weights(model, set(info["missing_keys"]), is_head_new=False)
    method = METHODS[args.method]
    if delta is not None and not method.extends_vocabulary:
        if (own := load_own_tokenizer(args)) is not None:
            check_not_expanded(own, delta)
        apply_delta(model, delta)
    if method.model_type != config.model_type:
        model = method.build(model, tokenizer, delta, args, overrides)  # type: ignore[misc]
    check_tokenizer_fits(tokenizer, model)
    check_weights(model, args.model_name_or_path)
    choose_method_rate(model, args)
    return model


def load_own_tokenizer(args: PretrainingArguments) -> PreTrainedTokenizerBase | None:
    """Load the tokenizer that lies beside the checkpoint; None if there is none."""
    try:
        return AutoTokenizer.from_pretrained(args.model_name_or_path, **args.hub_options)
    except (OSError, ValueError):
        return None


def load_examples(
    args: CorpusArguments, model_args: ModelArguments, do_eval: bool, tokenizer: Any
) -> tuple[Any, int | None]:
    """Load, tokenize and cut the corpus; return its splits, or streams, and the number of training documents."""
    corpus = load_corpus(
        args.train_file and [Path(file) for file in args.train_file],
        args.validation_file and [Path(file) for file in args.validation_file],
        dataset_name=args.dataset_name,
        dataset_config_name=args.dataset_config_name,
        text_column=args.text_column_name,
        validation_split_percentage=args.validation_split_percentage if do_eval else 0,
        streaming=args.streaming,
        cache_dir=model_args.cache_dir,
    )
    options: dict[str, Any] = {
        "max_seq_length": args.max_seq_length,
        "line_by_line": args.line_by_line,
        "whole_words": args.whole_word_mask,
        "num_proc": args.preprocessing_num_workers,
        "overwrite_cache": args.overwrite_cache,
    }
    examples = tokenize_corpus(corpus, tokenizer, **options)
    if args.mix is not None:
        path, share = split_mix(args.mix)
        other = load_corpus(
            path, validation_split_percentage=0, streaming=args.streaming, cache_dir=model_args.cache_dir
        )
        other = tokenize_corpus(other, tokenizer, **options)
        examples["train"] = mix_examples(examples["train"], other["train"], share)
    for split, limit in (("train", args.max_train_samples), ("validation", args.max_eval_samples)):
        if limit is not None and split in examples:
            count = limit if args.streaming else min(limit, len(examples[split]))
            examples[split] = examples[split].take(count) if args.streaming else examples[split].select(range(count))
    return examples, None if args.streaming else len(corpus["train"])


def split_mix(mix: str) -> tuple[str, float]:
    """Split `general.txt:0.1` into a path or glob and a share.

    Raises:
        ValueError: It has no such form.
    """
    path, _, share = mix.rpartition(":")
    try:
        number = float(share)
    except ValueError:
        number = 0.0
    if not path or not 0 < number < 1:
        raise ValueError(f"--mix must be a file and its share of the training, as general.txt:0.1, but is {mix}")
    return path, number


def mix_examples(examples: Any, others: Any, share: float) -> Any:
    """Mix examples of other text into those of a corpus, as the given share of all of them.

    Args:
        examples: Of the corpus; all of them stay.
        others: Of the other text; drawn at random, repeated if there are too few.
        share: Of the others, above 0 and below 1.
    """
    if isinstance(examples, IterableDataset):
        return interleave_datasets(
            [examples, others], probabilities=[1 - share, share], seed=0, stopping_strategy="all_exhausted"
        )
    count = max(1, round(len(examples) * share / (1 - share)))
    others = others.shuffle(seed=0).select([number % len(others) for number in range(count)])
    # In a random order, so that the first examples alone (`max_train_samples`) hold the share, too.
    return concatenate_datasets([examples, others]).shuffle(seed=0)


def make_collator(tokenizer: PreTrainedTokenizerBase, args: CorpusArguments, training_args: TrainingArguments) -> Any:
    """Return the collator that masks tokens or whole words, or asks for next tokens."""
    if args.objective == "clm":
        return DataCollatorForNextToken(tokenizer, args.mlm_probability, training_args.seed)
    training_args.remove_unused_columns = not args.whole_word_mask  # the collator reads and drops word_ids
    collator_class: Any = DataCollatorForWholeWordMask if args.whole_word_mask else DataCollatorForTokenMask
    collator = collator_class(tokenizer, mlm_probability=args.mlm_probability, seed=training_args.seed)
    if args.word_counts is not None:
        domain, general = (load_counts(path, tokenizer) for path in args.word_counts)
        collator.weights = weigh_words(tokenizer, domain, general, args.word_rule, training_args.seed)
        logger.info(f"masks {len(collator.weights):,} words more than others")
    return collator


def prepare_start(trainer: Trainer, args: PretrainingArguments) -> None:
    """Measure on the training text what the recommended start of a new model needs, before the first step.

    A checkpoint of the method, and a run that continues, have it behind them.
    """
    method, train_args = METHODS[args.method], trainer.args
    if method.prepare is None or args.start == "paper" or train_args.resume_from_checkpoint is not None:
        return
    if not method.is_built_around(load_config(args)[0].model_type):
        return
    model: Any = trainer.model
    size = train_args.per_device_train_batch_size
    dataset: Any = trainer.train_dataset
    # Of all places of the corpus, and the same in every process; every epoch draws other masks.
    rows = list(dataset.shuffle(seed=train_args.seed).take(PREPARING_BATCHES * size))
    batches = (trainer.data_collator(rows[first : first + size]) for first in range(0, len(rows), size))
    devices = [model.device] if model.device.type == "cuda" else []
    # A resumed run does not come here: what it draws must be what this run draws.
    with torch.random.fork_rng(devices), autocast_as_trained(train_args):
        method.prepare(model, ({name: value.to(model.device) for name, value in batch.items()} for batch in batches))


def evaluate_start(trainer: Trainer) -> None:
    """Measure the held-out loss before the first step, for the card, where the run evaluates anyway."""
    args = trainer.args
    if not args.do_eval or args.resume_from_checkpoint is not None or args.deepspeed or args.fsdp:
        return
    show_progress(trainer)
    devices = [args.device] if args.device.type == "cuda" else []
    with torch.random.fork_rng(devices):  # training draws what it would draw without this
        loss = trainer.evaluate()["eval_loss"]
    if trainer.is_world_process_zero():
        logger.info(f"Validation before the first step: loss {loss:.4g}")
    if math.isfinite(loss):
        trainer.save_metrics("start", {"start_loss": loss}, combined=False)


def prepare_new_rows(trainer: Trainer, delta: VocabularyDelta | None, args: PretrainingArguments) -> None:
    """Distill new rows and train them alone at first, if the run asks for it, and log how far they move."""
    if delta is None or METHODS[args.method].trains_rows_apart:
        return
    model: Any = trainer.model
    train_args = trainer.args
    if args.embedding_init == "distill" and train_args.do_train and train_args.resume_from_checkpoint is None:
        model.to(train_args.device)
        examples: Any = trainer.train_dataset
        distill_new_rows(find_encoder(model), delta, examples, train_args.seed)
    trainer.add_callback(RowDistances(delta, model))
    if args.new_rows_first_steps:
        trainer.add_callback(NewRowsFirst(delta, args.new_rows_first_steps))


def evaluate_masked_lm(trainer: Trainer) -> None:
    """Evaluate, and save the metrics with the perplexity of masked tokens."""
    show_progress(trainer)
    metrics = trainer.evaluate()
    metrics["perplexity"] = math.exp(metrics["eval_loss"])
    save_metrics(trainer, "eval", metrics, trainer.eval_dataset)

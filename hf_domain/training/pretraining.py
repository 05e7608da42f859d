"""Continued masked-LM pre-training: arguments, the model of a method, and the examples of a corpus."""

import logging
import math
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

import torch
from datasets import DatasetDict, IterableDataset, concatenate_datasets, interleave_datasets
from torch.nn.functional import cross_entropy
from transformers import (
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
)
from transformers.trainer_utils import EvalLoopOutput

from hf_domain.checks import check_weights
from hf_domain.clusters import open_executor
from hf_domain.data.causal import DataCollatorForNextToken, check_causal
from hf_domain.data.columns import warn_of_shared_rows
from hf_domain.data.corpora import check_batch, check_known, load_corpus, tokenize_corpus
from hf_domain.data.files import check_held_out, find_files, is_saved, load_files
from hf_domain.data.masking import (
    DataCollatorForTokenMask,
    DataCollatorForWholeWordMask,
    PlacingCollator,
    check_mask_token,
)
from hf_domain.data.word_weights import load_counts, weigh_words
from hf_domain.methods import BASELINE, METHODS, PRETRAINING_METHODS, find_methods
from hf_domain.methods.adalm.distilled_embeddings import distill_new_rows
from hf_domain.methods.frozen_weights import hold_frozen_weights
from hf_domain.methods.new_embeddings import (
    NewRowsFirst,
    RowDistances,
    check_not_expanded,
    grow_tables,
    join_added_tokens,
)
from hf_domain.methods.rada.passages import PassageArguments, load_passage_reader
from hf_domain.methods.stock_models import autocast_as_trained, match_tokenizer
from hf_domain.tokenization import VocabularyDelta
from hf_domain.training.arguments import (
    PADDING_FREE,
    ModelArguments,
    PretrainerArguments,
    check_best_metric,
    check_work,
)
from hf_domain.training.callbacks import MaskRenewal, log_auxiliary_losses
from hf_domain.training.method_rate import choose_method_rate
from hf_domain.training.overrides import load_config
from hf_domain.training.padding_free import remove_padding
from hf_domain.training.run import finish_run, fit_to_memory, limit_length, load_tokenizer, run_training, save_metrics
from hf_domain.training.terminal import explain_pickles, hide_load_report, report_new_weights, show_progress

logger = logging.getLogger(__name__)

# Batches on which a start is measured: about as many as torch's running averages remember.
PREPARING_BATCHES = 10


@dataclass
class PretrainingArguments(ModelArguments):
    """The encoder, and how to change it."""

    method: str = field(
        default=BASELINE,
        metadata={
            "help": "Train the encoder (dapt), low-rank changes of it (lora), or a method of this package.",
            "choices": PRETRAINING_METHODS,
        },
    )
    expanded_vocabulary: str | None = field(default=None, metadata={"help": "Folder written by expand_vocab."})
    embedding_init: Literal["pieces", "distill"] = field(
        default="pieces",
        metadata={"help": "Start new rows as the mean of their pieces, or distill them on the training text."},
    )
    new_rows_first_steps: int = field(
        default=0, metadata={"help": "Train only the new rows for this many steps, then everything."}
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = field(
        default="float32", metadata={"help": "Data type of the weights; use --bf16 for mixed precision."}
    )
    padding_free: bool = field(default=False, metadata={"help": PADDING_FREE})

    def __post_init__(self) -> None:
        if self.expanded_vocabulary is not None:
            self.tokenizer_name = self.expanded_vocabulary


@dataclass
class CorpusArguments:
    """The text, and how to cut and mask it."""

    train_file: list[str] | None = field(default=None, metadata={"help": ".txt .jsonl .json .csv .tsv (.gz) .parquet."})
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
    word_counts: list[str] | None = field(
        default=None,
        metadata={
            "help": "Mask domain words more often: text (or its --counts_file) of the domain, then general text."
        },
    )
    word_rule: Literal["ratio", "keyword", "random"] = field(
        default="ratio", metadata={"help": "With --word_counts: how to choose the words to mask more often."}
    )
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


def check_options(
    model_args: PretrainingArguments, data_args: CorpusArguments, training_args: TrainingArguments
) -> None:
    """Check the flags that depend on each other.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: A flag needs or excludes another one, or the validation text is also training text.
    """
    check_work(training_args, "do_train", "do_eval")
    check_best_metric(training_args, [])
    if training_args.do_train:
        check_share(data_args, training_args)
        names = ("validation_file", "general_validation_file")
        check_held_out(data_args.train_file, {name: getattr(data_args, name) for name in names})
    if data_args.word_counts is not None and (len(data_args.word_counts) != 2 or not data_args.whole_word_mask):
        raise ValueError(
            "--word_counts must name two files (of the domain and of general text) and needs --whole_word_mask, but "
            f"names {', '.join(data_args.word_counts)} with whole_word_mask={data_args.whole_word_mask}. Add what is "
            "missing."
        )
    if data_args.objective == "clm" and (
        data_args.whole_word_mask or not METHODS[model_args.method].trains_stock_model
    ):
        raise ValueError(
            "--objective clm needs --method dapt or lora, without --whole_word_mask, but --method is "
            f"{model_args.method} and whole_word_mask is {data_args.whole_word_mask}. Change them, or use --objective "
            "mlm."
        )
    if data_args.objective == "clm":
        check_causal(load_config(model_args)[0].model_type)
    if data_args.objective == "clm" and model_args.padding_free:
        raise ValueError("--padding_free needs --objective mlm, but the objective is clm. Leave --padding_free out.")
    if data_args.mix is not None:
        path, _ = split_mix(data_args.mix)
        names = ("validation_file", "general_validation_file")
        check_held_out([path], {name: getattr(data_args, name) for name in names})
    check_stream(data_args, training_args)
    check_smoothing(model_args, training_args)
    if METHODS[model_args.method].finish and training_args.push_to_hub and not training_args.do_train:
        raise ValueError(
            f"--push_to_hub must come with --do_train for --method {model_args.method}, which pushes what it trained. "
            "Add --do_train."
        )
    check_new_rows(model_args, data_args)
    check_files(data_args, training_args.do_eval)


def check_files(data_args: CorpusArguments, do_eval: bool) -> None:
    """Raise a FileNotFoundError for a missing file that would be read only after the corpus is tokenized."""
    files = [*(data_args.word_counts or []), *(data_args.general_validation_file or [] if do_eval else [])]
    find_files([*files, split_mix(data_args.mix)[0]] if data_args.mix is not None else files)


def check_smoothing(model_args: PretrainingArguments, training_args: TrainingArguments) -> None:
    """Raise a ValueError if Trainer would replace the model's own loss in order to smooth the labels."""
    if not training_args.label_smoothing_factor:
        return
    own = {name for name, row in METHODS.items() if row.has_own_loss}
    if found := own & {model_args.method, load_config(model_args)[0].model_type}:
        raise ValueError(
            "--label_smoothing_factor needs a model whose loss is the cross-entropy of the labels, but "
            f"{found.pop()} has a loss of its own. Leave the flag out."
        )


def check_stream(data_args: CorpusArguments, training_args: TrainingArguments) -> None:
    """Check the flags of a stream, see `check_options`."""
    if data_args.streaming and training_args.do_train and training_args.max_steps <= 0:
        raise ValueError(
            "--streaming must come with --max_steps, because the length of a stream is unknown. Add --max_steps."
        )
    is_cut = data_args.streaming and training_args.do_train and training_args.do_eval and not data_args.validation_file
    if is_cut and training_args.world_size > 1:
        raise ValueError(
            "--streaming on several processes needs a --validation_file, because each process reads other files, and "
            "would train on documents that another one holds out. Add it, or leave out --do_eval."
        )
    if data_args.streaming and data_args.dask_scheduler is not None:
        raise ValueError(
            "--dask_scheduler tokenizes the text before training, but --streaming reads it during training. Leave one "
            "flag out."
        )


def check_share(data_args: CorpusArguments, training_args: TrainingArguments) -> None:
    """Raise a ValueError if a step is expected to have no token to predict."""
    examples = training_args.train_batch_size * training_args.gradient_accumulation_steps * training_args.world_size
    tokens, share = examples * data_args.max_seq_length, data_args.mlm_probability
    if share * tokens < 1:
        raise ValueError(
            f"--mlm_probability must mask at least one of the {tokens:,} tokens of a step, but {share:g} masks "
            f"{share * tokens:.1g} on average. Raise it, or use larger batches."
        )


def check_new_rows(model_args: PretrainingArguments, data_args: CorpusArguments) -> None:
    """Check the flags of new embedding rows, see `check_options`."""
    distills = model_args.embedding_init == "distill"
    if not distills and not model_args.new_rows_first_steps:
        return
    flag = "--embedding_init distill" if distills else "--new_rows_first_steps"
    if model_args.expanded_vocabulary is None:
        raise ValueError(f"{flag} must come with --expanded_vocabulary. Add it, or leave {flag} out.")
    if distills and data_args.streaming:
        raise ValueError(f"{flag} needs the whole corpus, but --streaming reads it piece by piece. Leave one flag out.")
    if METHODS[model_args.method].trains_rows_apart:
        raise ValueError(
            f"{flag} must be used with a method that trains the encoder, but {model_args.method} freezes it and "
            "trains the new rows separately. Leave the flag out."
        )


def pretrain(
    model_args: PretrainingArguments,
    data_args: CorpusArguments,
    passage_args: PassageArguments,
    training_args: TrainingArguments,
    *,
    corpus: Any = None,
    validation: Any = None,
    general: Any = None,
    call: str | None = None,
) -> "MaskedLMTrainer":
    """Train a method's model on a corpus, evaluate it, and save it with its card: `hf-domain mlm` and `adapt`.

    Args:
        corpus: Documents in memory instead of the files that `data_args` names; see `load_examples` for these three.
        call: The call of a Python function, for the card; default the command line.

    Returns:
        The trainer with the finished model.
    """
    check_options(model_args, data_args, training_args)
    if training_args.bf16 and training_args.device.type == "cuda":
        logger.info("Training in bfloat16. --bf16 False trains in float32.")
    texts = {"corpus": corpus, "validation": validation, "general": general}

    def train(args: TrainingArguments) -> "MaskedLMTrainer":
        return pretrain_once(model_args, data_args, passage_args, args, **texts, call=call)

    return fit_to_memory(train, training_args)


def pretrain_once(
    model_args: PretrainingArguments,
    data_args: CorpusArguments,
    passage_args: PassageArguments,
    training_args: TrainingArguments,
    *,
    corpus: Any,
    validation: Any,
    general: Any,
    call: str | None,
) -> "MaskedLMTrainer":
    """Train with batches of the given size, see `pretrain`."""
    delta = load_delta(model_args)
    tokenizer = load_tokenizer(model_args, data_args.max_seq_length)
    model = load_masked_lm(model_args, tokenizer, delta)
    passages = load_passage_reader(passage_args, model, tokenizer, model_args.method)
    texts = (corpus, validation, general)
    with training_args.main_process_first(desc="loading and tokenizing the corpus"):
        examples, documents = load_examples(data_args, model_args, training_args.do_eval, tokenizer, *texts)
        if passages is not None:
            examples = passages.look_up_blocks(examples, data_args.preprocessing_num_workers)
    if training_args.do_train:
        check_batch(examples["train"], training_args.train_batch_size * training_args.gradient_accumulation_steps)
        has_equal_shapes = not data_args.line_by_line and not model_args.padding_free and passages is None
        if isinstance(training_args, PretrainerArguments) and has_equal_shapes:
            training_args.choose_compilation(count_passes(training_args, examples["train"]))
    masking = collator = make_collator(tokenizer, data_args, training_args)
    if passages is not None:
        passages.fill_cache(examples, training_args, data_args.dask_scheduler)
        collator = passages.collate(masking)

    trainer = MaskedLMTrainer(
        model=model,
        args=training_args,
        train_dataset=examples["train"] if training_args.do_train else None,
        eval_dataset=examples["validation"] if training_args.do_eval else None,
        processing_class=tokenizer,
        data_collator=collator,
        masking=masking,
    )
    method = METHODS[model_args.method]
    # Push nothing before an adapter is finished: loading the folder would apply it to the weights beside it. The
    # trainer has created the repository by now: one that cannot be created must not cost a training.
    pushes, training_args.push_to_hub = training_args.push_to_hub, training_args.push_to_hub and not method.finish
    log_auxiliary_losses(trainer)
    prepare_new_rows(trainer, delta, model_args)
    with hold_frozen_weights(trainer):
        if training_args.do_train:
            prepare_start(trainer, model_args)
            evaluate_start(trainer, examples.get("general"))
            run_training(trainer)
        if training_args.do_eval:
            evaluate_masked_lm(trainer, examples.get("general"))
    if method.finish and training_args.do_train and training_args.should_save:
        trainer.model = method.finish(trainer.accelerator.unwrap_model(trainer.model), str(training_args.output_dir))
    training_args.push_to_hub = pushes
    train_texts = documents["train"] if isinstance(documents, DatasetDict) else None
    count = None if train_texts is None else len(train_texts)
    in_memory = None if corpus is None else train_texts
    finish_run(trainer, "fill-mask", model_args, data_args, passage_args, count, call, in_memory)
    return trainer


def count_passes(args: TrainingArguments, examples: Any) -> int:
    """Return the number of forward passes that a training plans."""
    if args.max_steps > 0:
        return args.max_steps * args.gradient_accumulation_steps
    return int(args.num_train_epochs * len(examples)) // (args.train_batch_size * args.world_size)


def load_delta(args: PretrainingArguments) -> VocabularyDelta | None:
    """Load the delta of the expanded vocabulary; None without one."""
    return None if args.expanded_vocabulary is None else VocabularyDelta.load(args.expanded_vocabulary)


def load_masked_lm(
    args: PretrainingArguments, tokenizer: PreTrainedTokenizerBase, delta: VocabularyDelta | None
) -> PreTrainedModel:
    """Load the model to train: the encoder itself, or the method's model around it.

    Raises:
        ValueError: The checkpoint is not a masked LM, cannot take new entries, or has weights that are not finite. Or
            the tokenizer has no mask token or does not fit. See also `load_config`.
    """
    check_mask_token(tokenizer)
    config, overrides = load_config(args)
    is_unknown = type(config) not in MODEL_FOR_MASKED_LM_MAPPING and not args.trust_remote_code
    if is_unknown or config.is_encoder_decoder:
        raise ValueError(
            f"the model must be an encoder with a masked-LM head, such as BERT or RoBERTa, but is a {config.model_type}"
        )
    extends = any(method.extends_vocabulary for method in find_methods(config.model_type))
    if delta is not None and (extends or hasattr(config, "memory_config")):
        raise ValueError(
            f"the vocabulary of a model of type {config.model_type} must be expanded before the model is built, "
            "because one of its parts cannot read new words. Leave out --expanded_vocabulary "
            f"{args.expanded_vocabulary}."
        )
    if getattr(config, "memory_tokenizer", "same") != "same":
        raise ValueError(
            "for masked-LM training both encoders must share a tokenizer, because the memory reads the masked text, "
            f"but the memory of {args.model_name_or_path} has its own. Train a G-MAP whose memory shares it."
        )
    with hide_load_report(), explain_pickles(args.model_name_or_path):
        model, info = AutoModelForMaskedLM.from_pretrained(
            args.model_name_or_path,
            config=config,
            dtype=args.dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below, by name
            **args.hub_options,
        )
    for key, found, expected in sorted(info["mismatched_keys"]):
        raise ValueError(
            f"the weights of {args.model_name_or_path} must have the shapes of its config"
            f"{f', {args.config_name}' if args.config_name else ''}, but {key} is {[*found]} instead of {[*expected]}. "
            "Use the config that was saved with the weights."
        )
    report_new_weights(model, set(info["missing_keys"]), is_head_new=False)
    method = METHODS[args.method]
    if delta is not None and not method.extends_vocabulary and (own := load_own_tokenizer(args)) is not None:
        check_not_expanded(own, delta)
    delta = join_added_tokens(delta, tokenizer, model)
    if delta is not None and (extends or not method.extends_vocabulary):
        grow_tables(model, delta)
    if method.extends_vocabulary and delta is None and not extends:
        logger.warning(
            f"{method.title} adds no words without --expanded_vocabulary, which `hf-domain expand_vocab` writes; it "
            "trains its modules alone."
        )
    if method.model_type != config.model_type:
        model = method.build(model, tokenizer, delta, args, overrides)  # type: ignore[misc]
    match_tokenizer(tokenizer, model)
    limit_length(tokenizer, model, None)  # `tokenize_corpus` checks the length
    check_weights(model, args.model_name_or_path)
    choose_method_rate(model, args)
    if args.padding_free:
        remove_padding(model)
    return model


def load_own_tokenizer(args: PretrainingArguments) -> PreTrainedTokenizerBase | None:
    """Load the checkpoint's own tokenizer; None if it has none."""
    try:
        return AutoTokenizer.from_pretrained(args.model_name_or_path, **args.hub_options)
    except (OSError, ValueError):
        return None


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
) -> tuple[Any, Any]:
    """Return the tokenized splits (or streams) of a corpus, and its documents.

    Args:
        corpus: Documents in memory, see `load_corpus`. Default: the files that the arguments name.
        validation: Held-out documents in memory.
        general: Held-out general text in memory.
    """
    splits = load_documents(args, model_args, do_eval, corpus, validation)
    tokenizing: dict[str, Any] = {
        "max_seq_length": args.max_seq_length,
        "line_by_line": args.line_by_line,
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
    collator = collator_class(tokenizer, mlm_probability=args.mlm_probability, seed=training_args.seed)
    if args.word_counts is not None:
        domain, general = (load_counts(path, tokenizer) for path in args.word_counts)
        collator.weights = weigh_words(tokenizer, domain, general, args.word_rule, training_args.seed)
        logger.info(f"{len(collator.weights):,} words are masked more often than others")
    return collator


class MaskedLMTrainer(Trainer):
    """transformers' Trainer with new masks in each epoch, and a held-out loss that depends on model and text alone.

    The stock Trainer averages the means of batches, so a batch with one masked token counts as much as one with a
    hundred, and it multiplies the loss of some models by the number of processes. Here the loss is the sum over the
    masked tokens divided by their number. An evaluation draws the masks of each example from it alone, and always the
    same ones. Label smoothing affects training only, because a perplexity is defined by the plain cross-entropy.

    Args:
        masking: The collator of data/masking.py or data/causal.py that draws the masks; others may wrap it.
    """

    def __init__(self, *args: Any, masking: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.masking = masking
        self.data_collator = PlacingCollator(self.data_collator, masking)
        if self.args.dataloader_persistent_workers:
            # They would repeat the masks of an epoch, and read the first evaluation's text in every later one.
            logger.warning(
                "--dataloader_persistent_workers has no effect here: its workers would repeat the first masks"
            )
            self.args.dataloader_persistent_workers = False
        self.add_callback(MaskRenewal(masking))

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """Return the mean loss over all masked tokens as the loss.

        Raises:
            ValueError: The text has no masked token.
        """
        epoch, self.masking.epoch, self.masking.by_example = self.masking.epoch, 0, True
        self.loss_and_count = torch.zeros(2, dtype=torch.float64)
        try:
            output = super().evaluation_loop(*args, **kwargs)
        finally:
            self.masking.epoch, self.masking.by_example = epoch, False
        loss, count = self.loss_and_count.tolist()
        if not count:
            raise ValueError(
                f"the held-out text must have a masked token, but its {output.num_samples} examples have none. Use "
                "more held-out text."
            )
        assert output.metrics is not None
        output.metrics[f"{kwargs.get('metric_key_prefix', 'eval')}_loss"] = loss / count
        return output

    def prediction_step(
        self, model: Any, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[torch.Tensor, None, None]:
        """Add the losses of a batch to those of the evaluation."""
        inputs = self._prepare_inputs(inputs)
        labels = inputs["labels"]
        # Compiling costs more than it saves here: these are other graphs than in training, and the last batch is short.
        model = getattr(model, "_orig_mod", model)
        config: Any = self.model.config  # type: ignore[union-attr]
        if not getattr(config, "keys_to_ignore_at_inference", ()):  # no auxiliary losses to log: skip the model's loss
            inputs = {name: value for name, value in inputs.items() if name != "labels"}
        with torch.no_grad(), self.compute_loss_context_manager():
            logits = model(**inputs).logits
        is_masked = labels != -100
        losses = torch.zeros(labels.shape, device=labels.device)
        losses[is_masked] = cross_entropy(logits[is_masked].float(), labels[is_masked], reduction="none")
        by_example = torch.stack([losses.sum(-1), is_masked.sum(-1)], dim=-1)
        # `gather_for_metrics` drops the examples that fill up the last batch of several processes.
        self.loss_and_count += self.accelerator.gather_for_metrics(by_example).cpu().double().sum(0)
        return losses.sum() / is_masked.sum().clamp(min=1), None, None


def prepare_start(trainer: Trainer, args: PretrainingArguments) -> None:
    """Prepare the recommended start of a new model on training text, before the first step.

    A checkpoint of the method and a resumed run are already prepared.
    """
    method, train_args = METHODS[args.method], trainer.args
    if method.prepare is None or args.start == "paper" or train_args.resume_from_checkpoint is not None:
        return
    if not method.is_built_around(load_config(args)[0].model_type):
        return
    model: Any = trainer.model
    size = train_args.per_device_train_batch_size
    dataset: Any = trainer.train_dataset
    # From the whole corpus, and the same in every process; each epoch draws other masks. Not by `take`: datasets 4
    # refuses to take more rows than there are.
    rows = list(islice(dataset.shuffle(seed=train_args.seed), PREPARING_BATCHES * size))
    batches = (trainer.data_collator(rows[first : first + size]) for first in range(0, len(rows), size))
    devices = [model.device] if model.device.type == "cuda" else []
    # A resumed run skips this step, so it must not change the random state of training.
    with torch.random.fork_rng(devices), autocast_as_trained(train_args):
        method.prepare(model, ({name: value.to(model.device) for name, value in batch.items()} for batch in batches))


def evaluate_start(trainer: Trainer, general: Any = None) -> None:
    """Measure the held-out losses before the first step, for the card, if the run evaluates.

    Args:
        general: Examples of general text, if the card should show what the encoder forgets.
    """
    args = trainer.args
    if not args.do_eval or args.resume_from_checkpoint is not None or args.deepspeed or args.fsdp:
        return
    show_progress(trainer)
    devices = [args.device] if args.device.type == "cuda" else []
    with torch.random.fork_rng(devices):  # training must draw the same numbers as without this
        loss = trainer.evaluate()["eval_loss"]
        others = {f"start_{name}": value for name, value in evaluate_general(trainer, general).items()}
    if trainer.accelerator.num_processes > 1:
        forget_preparation(trainer)
    if trainer.is_world_process_zero():
        logger.info(f"Validation before the first step: loss {loss:.4g}")
    if math.isfinite(loss):
        trainer.save_metrics("start", {"start_loss": loss, **others}, combined=False)


def forget_preparation(trainer: Trainer) -> None:
    """Let accelerate prepare the model again, for training.

    It prepares a model once. After an evaluation it would train it as prepared for that, and the processes would not
    average their gradients: each would train a model of its own.
    """
    model: Any = trainer.model
    if (forward := vars(model).pop("_original_forward", None)) is not None:  # mixed precision wraps it
        model.forward = forward
    model._is_accelerate_prepared = False
    trainer.model_wrapped = model


def evaluate_general(trainer: Trainer, general: Any) -> dict[str, float]:
    """Return the loss on general text as `general_loss`; nothing without such text."""
    if general is None:
        return {}
    return {"general_loss": trainer.evaluate(general, metric_key_prefix="general")["general_loss"]}


def prepare_new_rows(trainer: Trainer, delta: VocabularyDelta | None, args: PretrainingArguments) -> None:
    """Distill new rows and train them alone first, if the flags say so, and log how far they move."""
    if delta is None or METHODS[args.method].trains_rows_apart:
        return
    model: Any = trainer.model
    train_args = trainer.args
    is_resumed = train_args.resume_from_checkpoint is not None
    if args.embedding_init == "distill" and train_args.do_train and not is_resumed:
        model.to(train_args.device)
        examples: Any = trainer.train_dataset
        distill_new_rows(model, delta, examples, train_args.seed)
    if args.embedding_init != "distill" or not is_resumed:  # where distilled rows started is not known any more
        trainer.add_callback(RowDistances(delta, model))
    if args.new_rows_first_steps:
        trainer.add_callback(NewRowsFirst(delta, args.new_rows_first_steps))


def evaluate_masked_lm(trainer: Trainer, general: Any = None) -> None:
    """Evaluate, and save the metrics with the perplexity of masked tokens, and the loss on general text if given."""
    show_progress(trainer)
    metrics = trainer.evaluate()
    metrics["perplexity"] = math.exp(metrics["eval_loss"])
    metrics |= evaluate_general(trainer, general)
    save_metrics(trainer, "eval", metrics, trainer.eval_dataset)

"""Continued masked-LM pre-training: arguments, the model of a method, and the examples of a corpus."""

import logging
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from datasets import DatasetDict
from transformers import (
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainingArguments,
)

from hf_domain.checks import check_weights
from hf_domain.data.corpora import check_batch
from hf_domain.data.masking import check_mask_token
from hf_domain.methods import METHODS, find_methods
from hf_domain.methods.frozen_weights import hold_frozen_weights
from hf_domain.methods.new_embeddings import (
    check_not_expanded,
    grow_tables,
    join_added_tokens,
)
from hf_domain.methods.rada.passages import PassageArguments, load_passage_reader
from hf_domain.methods.stock_models import autocast_as_trained, match_tokenizer
from hf_domain.tokenization import VocabularyDelta
from hf_domain.training.arguments import PretrainerArguments
from hf_domain.training.callbacks import log_auxiliary_losses
from hf_domain.training.masked_lm_corpus import CorpusArguments, load_examples, make_collator
from hf_domain.training.masked_lm_trainer import (
    MaskedLMTrainer,
    evaluate_masked_lm,
    evaluate_start,
    start_new_head,
)
from hf_domain.training.method_rate import choose_method_rate, choose_pretraining_rate
from hf_domain.training.out_of_memory import fit_to_memory
from hf_domain.training.overrides import load_config
from hf_domain.training.padding_free import remove_padding, separate_documents
from hf_domain.training.pretraining_arguments import PretrainingArguments, check_options
from hf_domain.training.run import limit_length, load_tokenizer, run_training, write_card
from hf_domain.training.sentence_modules import keep_sentence_modules
from hf_domain.training.terminal import explain_pickles, hide_load_report, report_new_weights

logger = logging.getLogger(__name__)

# Batches on which a start is measured: about as many as torch's running averages remember.
PREPARING_BATCHES = 10
# A corpus has many blocks, and a cache encodes each of their passages once.
PASSAGES_OF_A_BLOCK = 3


def pretrain(
    model_args: PretrainingArguments,
    data_args: CorpusArguments,
    passage_args: PassageArguments,
    training_args: TrainingArguments,
    *,
    corpus: Any = None,
    validation: Any = None,
    general: Any = None,
    num_tokens: int | None = None,
    call: str | None = None,
) -> MaskedLMTrainer:
    """Train a method's model on a corpus, evaluate it, and save it with its card: `hf-domain mlm` and `adapt`.

    Args:
        corpus: Documents in memory instead of the files that `data_args` names; see `load_examples` for these three.
        num_tokens: Number of tokens to train on instead of `max_steps`.
        call: The call of a Python function, for the card; default the command line.

    Returns:
        The trainer with the finished model.
    """
    texts = {"corpus": corpus, "validation": validation, "general": general}

    def train(args: TrainingArguments) -> tuple[MaskedLMTrainer, Any]:
        return train_masked_lm(model_args, data_args, passage_args, args, **texts, num_tokens=num_tokens)

    trainer, documents = fit_to_memory(train, training_args)
    if training_args.do_train and training_args.should_save:
        keep_sentence_modules(model_args, Path(str(training_args.output_dir)))
    facts: dict[str, Any] = {}
    if isinstance(documents, DatasetDict):
        facts = {"documents": len(documents["train"]), "texts": None if corpus is None else documents["train"]}
    write_card(trainer, "fill-mask", model_args, data_args, passage_args, call, **facts)
    return trainer


def train_masked_lm(
    model_args: PretrainingArguments,
    data_args: CorpusArguments,
    passage_args: PassageArguments,
    training_args: TrainingArguments,
    *,
    num_tokens: int | None = None,
    **texts: Any,
) -> tuple[MaskedLMTrainer, Any]:
    """Train and evaluate as `pretrain` does, and save the model without a card.

    Args:
        texts: `corpus`, `validation` and `general`.

    Returns:
        The trainer, and the documents of the corpus.
    """
    check_options(model_args, data_args, training_args)
    vocabulary = model_args.expanded_vocabulary
    delta = None if vocabulary is None else VocabularyDelta.load(vocabulary)
    # A recipe's length is the most that it takes.
    tokenizer = load_tokenizer(model_args, None if model_args.recipe else data_args.max_seq_length)
    model = load_masked_lm(model_args, tokenizer, delta)
    fit_training(model, tokenizer, model_args, data_args, training_args)
    if num_tokens is not None:
        batch = training_args.train_batch_size * training_args.world_size
        tokens = batch * training_args.gradient_accumulation_steps * data_args.max_seq_length
        training_args.max_steps = max(1, num_tokens // tokens)
    if passage_args.num_passages is None:
        passage_args.num_passages = PASSAGES_OF_A_BLOCK
    passages = load_passage_reader(passage_args, model, tokenizer, model_args.method)
    with training_args.main_process_first(desc="loading and tokenizing the corpus"):
        examples, documents = load_examples(
            *(data_args, model_args, training_args.do_eval, tokenizer),
            **texts,
            document_boundaries=model_args.document_boundaries,
        )
        if passages is not None:
            examples = passages.look_up_blocks(examples, data_args.preprocessing_num_workers)
    if training_args.do_train:
        check_batch(examples["train"], training_args.train_batch_size * training_args.gradient_accumulation_steps)
        is_packed = not (data_args.line_by_line or model_args.padding_free or model_args.document_boundaries)
        has_equal_shapes = is_packed and passages is None
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
        dropout=model_args.dropout,
        decay_mlm_probability=model_args.decay_mlm_probability,
        trunk=model_args.resume_decay_from,
    )
    log_auxiliary_losses(trainer)
    start_new_head(trainer, model_args.head_first_steps)
    train_and_save(trainer, model_args, examples.get("general"))
    return trainer, documents


def train_and_save(trainer: MaskedLMTrainer, model_args: PretrainingArguments, general: Any) -> None:
    """Train and evaluate as the run says, and save the model, an adapter in its finished form.

    Args:
        general: Examples of general text, or None.
    """
    args, method = trainer.args, METHODS[model_args.method]
    # Push nothing before an adapter is finished: loading the folder would apply it to the weights beside it. The
    # trainer has created the repository by now: one that cannot be created must not cost a training.
    pushes, args.push_to_hub = args.push_to_hub, args.push_to_hub and not method.finish
    with hold_frozen_weights(trainer):
        if args.do_train:
            trainer.load_trunk()
            prepare_start(trainer, model_args)
            evaluate_start(trainer, general)
            run_training(trainer)
        if args.do_eval:
            evaluate_masked_lm(trainer, general)
    if method.finish and args.do_train and args.should_save:
        trainer.model = method.finish(trainer.accelerator.unwrap_model(trainer.model), str(args.output_dir))
    args.push_to_hub = pushes


def count_passes(args: TrainingArguments, examples: Any) -> int:
    """Return the number of forward passes that a training plans."""
    if args.max_steps > 0:
        return args.max_steps * args.gradient_accumulation_steps
    return int(args.num_train_epochs * len(examples)) // (args.train_batch_size * args.world_size)


def fit_training(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    model_args: PretrainingArguments,
    data_args: CorpusArguments,
    training_args: TrainingArguments,
) -> None:
    """Let the encoder read whole documents, and choose what depends on it: the rate, and the length of a recipe."""
    if model_args.document_boundaries:
        try:
            separate_documents(model)
        except ValueError as error:
            if model_args.recipe is None:
                raise
            model_args.document_boundaries = False
            logger.info(f"Blocks have no boundaries between documents: {error}")
        else:  # the attention mask numbers documents: its sum is no number of tokens
            training_args.include_num_input_tokens_seen = "all"
    if model_args.recipe is not None and tokenizer.model_max_length < data_args.max_seq_length:
        data_args.max_seq_length = tokenizer.model_max_length
        logger.info(f"Blocks have {data_args.max_seq_length:,} tokens, the encoder's limit")
    if training_args.learning_rate is None:
        training_args.learning_rate = choose_pretraining_rate(model, METHODS[model_args.method])


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
    check_family(config, args)
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
    model = load_weights(args, config)
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


def check_family(config: Any, args: PretrainingArguments) -> None:
    """Raise a ValueError unless a method can train an encoder of this family."""
    is_foreign = type(config) not in MODEL_FOR_MASKED_LM_MAPPING
    if config.is_encoder_decoder or (is_foreign and not args.trust_remote_code):
        raise ValueError(
            f"the model must be an encoder with a masked-LM head, such as BERT or RoBERTa, but is a {config.model_type}"
        )


def load_weights(args: PretrainingArguments, config: Any) -> PreTrainedModel:
    """Load the checkpoint, and warn about what it lacks.

    Raises:
        ValueError: Weights have other shapes than the configuration says.
    """
    options: dict[str, Any] = {**args.hub_options}
    if args.attn_implementation is not None and (args.recipe is None or supports(config, args.attn_implementation)):
        options["attn_implementation"] = args.attn_implementation
    with hide_load_report(), explain_pickles(args.model_name_or_path):
        model, info = AutoModelForMaskedLM.from_pretrained(
            args.model_name_or_path,
            config=config,
            dtype=args.dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below, by name
            **options,
        )
    for key, found, expected in sorted(info["mismatched_keys"]):
        raise ValueError(
            f"the weights of {args.model_name_or_path} must have the shapes of its config"
            f"{f', {args.config_name}' if args.config_name else ''}, but {key} is {[*found]} instead of {[*expected]}. "
            "Use the config that was saved with the weights."
        )
    missing, method = set(info["missing_keys"]), METHODS[args.method]
    if method.trains_stock_model and not method.finish:  # an adapter does not train all of the head
        missing -= mark_new_head(model, missing)
    report_new_weights(model, missing, is_head_new=False)
    return model


def mark_new_head(model: PreTrainedModel, missing: set[str]) -> set[str]:
    """Note the weights of a head that a checkpoint lacks, as those of sentence embeddings do; return their names."""
    head = {name for name in missing if not name.startswith(f"{model.base_model_prefix}.")}
    if any(weight.dim() > 1 for name, weight in model.named_parameters() if name in head):  # a lone bias is no head
        model.__dict__["new_head"] = head  # not the weights: new words make others of them
        return head
    return set()


def supports(config: Any, attention: str) -> bool:
    """Return whether a family has flash attention; all have the others."""
    model_class = MODEL_FOR_MASKED_LM_MAPPING.get(type(config), None)
    return not attention.startswith("flash") or getattr(model_class, "_supports_flash_attn", False)


def load_own_tokenizer(args: PretrainingArguments) -> PreTrainedTokenizerBase | None:
    """Load the checkpoint's own tokenizer; None if it has none."""
    try:
        return AutoTokenizer.from_pretrained(args.model_name_or_path, **args.hub_options)
    except (OSError, ValueError):
        return None


def prepare_start(trainer: MaskedLMTrainer, args: PretrainingArguments) -> None:
    """Prepare the recommended start of a new model on training text, before the first step.

    A checkpoint of the method and a resumed run are already prepared.
    """
    method, train_args = METHODS[args.method], trainer.args
    is_prepared = train_args.resume_from_checkpoint is not None or args.resume_decay_from is not None
    if method.prepare is None or args.start == "paper" or is_prepared:
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
    with torch.random.fork_rng(devices), autocast_as_trained(train_args), trainer.apply_dropout():
        method.prepare(model, ({name: value.to(model.device) for name, value in batch.items()} for batch in batches))

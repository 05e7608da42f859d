# /// script
# requires-python = ">=3.11"
# dependencies = ["hf-domain"]
# ///
"""Continue the pre-training of an encoder on domain text: plain masked LM (DAPT, TAPT) or a method of this package.

    python examples/run_mlm.py --model_name_or_path bert-base-uncased --method varmae \
        --train_file corpus.txt.gz --output_dir varmae-cs --do_train --do_eval --num_train_epochs 3

`--method dapt` trains the encoder as it is, `--method lora` low-rank changes of it, merged at the end. Every other
method builds its model around the encoder; the method's own options go into `--config_overrides
kl_weight=10,unmasked_ratio=0.15`. `--model_name_or_path` may also name a checkpoint of the method: training then goes
on from there. Give the command of a killed run again, and it continues from its last checkpoint: Trainer saves one
every 500 steps (`--save_steps`).

`--expanded_vocabulary` names a folder that run_expand_vocab.py wrote. With dapt that is AdaLM; under any method the
encoder gets the new rows first; exBERT keeps them in an extension of their own. exBERT trains the extension alone; a
second stage trains everything:

    python examples/run_mlm.py --model_name_or_path <first stage> --method exbert \
        --config_overrides freeze_backbone=false --output_dir <second stage> ...

`--method exbert_adapter` trains exBERT as an adapter of peft: the output holds `adapter/` beside the same as a model.

`--method gmap --memory_name_or_path bert-base-uncased` lets an encoder read a frozen general one while it is trained;
both need the same tokenizer.

RADA reads passages of a datastore beside the text, which should not be in it: `--held_out_file rest.jsonl` of
build_datastore.py leaves a tenth of the corpus out.

    python examples/run_mlm.py --method rada --datastore datastore --train_file rest.jsonl ...
"""

import math
from dataclasses import dataclass, field
from typing import Literal

from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoConfig,
    AutoModelForMaskedLM,
    AutoTokenizer,
    Trainer,
    TrainingArguments,
)

import hf_domain  # noqa: F401  the Auto classes then know its models
from hf_domain.data.corpora import check_batch, check_held_out, load_corpus, tokenize_corpus
from hf_domain.data.masking import DataCollatorForTokenMask, DataCollatorForWholeWordMask, check_mask_token
from hf_domain.methods import BASELINE, METHODS, PRETRAINING_METHODS
from hf_domain.new_rows import NewRowsFirst, RowDistances, apply_delta, check_not_expanded
from hf_domain.rada.passages import PassageArguments, load_datastore, retrieve_for_blocks, wrap_collator
from hf_domain.tokenization import VocabularyDelta
from hf_domain.training.arguments import ModelArguments, check_method, check_work, parse_arguments
from hf_domain.training.callbacks import log_auxiliary_losses
from hf_domain.training.finiteness import check_weights
from hf_domain.training.overrides import check_overrides, parse_overrides
from hf_domain.training.run_folders import run_in_folder
from hf_domain.training.runs import load_tokenizer, run_training, save_metrics, start_run, write_card
from hf_domain.training.stock_models import check_tokenizer_fits


@dataclass
class MethodArguments(ModelArguments):
    """Which encoder, and what is made of it."""

    method: str = field(default=BASELINE, metadata={"help": "What is trained.", "choices": PRETRAINING_METHODS})
    expanded_vocabulary: str | None = field(default=None, metadata={"help": "Folder written by run_expand_vocab.py."})
    new_rows_first_steps: int = field(default=0, metadata={"help": "Train the new rows alone for so many steps."})
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = field(
        default="float32", metadata={"help": "Type of the weights; use --bf16 for mixed precision."}
    )


@dataclass
class DataTrainingArguments:
    """Which text, and how it is cut and masked."""

    train_file: list[str] | None = field(default=None, metadata={"help": ".txt .jsonl .json .csv (.gz) .parquet."})
    validation_file: list[str] | None = field(default=None, metadata={"help": "Text to evaluate on."})
    dataset_name: str | None = field(default=None, metadata={"help": "A dataset of the Hub instead of files."})
    dataset_config_name: str | None = field(default=None, metadata={"help": "Its configuration."})
    text_column_name: str | None = field(default=None, metadata={"help": "Column with the text, if not `text`."})
    validation_split_percentage: int = field(default=5, metadata={"help": "Held out if no validation text is given."})
    streaming: bool = field(default=False, metadata={"help": "Read while training; needs --max_steps."})
    max_seq_length: int = field(default=128, metadata={"help": "Tokens of an example."})
    line_by_line: bool = field(default=False, metadata={"help": "One example a document instead of packed blocks."})
    mlm_probability: float = field(default=0.15, metadata={"help": "Share of tokens (or words) to predict."})
    whole_word_mask: bool = field(default=False, metadata={"help": "Mask all pieces of a word together."})
    max_train_samples: int | None = field(default=None, metadata={"help": "Train on so many examples only."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Evaluate on so many examples only."})
    preprocessing_num_workers: int | None = field(
        default=None, metadata={"help": "Processes that tokenize, and search."}
    )
    overwrite_cache: bool = field(default=False, metadata={"help": "Tokenize again."})


ARGUMENTS = (MethodArguments, DataTrainingArguments, PassageArguments, TrainingArguments)


def load_model(args: MethodArguments, tokenizer, delta: VocabularyDelta | None):
    """Load the model to train: the encoder itself, or the method's model around it."""
    method, overrides = METHODS[args.method], parse_overrides(args.config_overrides)
    config = AutoConfig.from_pretrained(args.config_name or args.model_name_or_path, **args.hub_options)
    if type(config) not in MODEL_FOR_MASKED_LM_MAPPING and not args.trust_remote_code:
        raise ValueError(
            f"masked language modeling needs an encoder such as BERT or RoBERTa, got a {config.model_type}"
        )
    extends = any(row.extends_vocabulary and row.model_type == config.model_type for row in METHODS.values())
    if delta is not None and (extends or hasattr(config, "memory_config")):
        raise ValueError(
            f"the vocabulary of an {config.model_type} is expanded when the model is made, since a part of it cannot "
            f"read new words; leave out --expanded_vocabulary, got {args.expanded_vocabulary}"
        )
    goes_on = method.keeps_encoder or method.model_type == config.model_type
    check_method(args, goes_on)
    if goes_on or method.model_type is not None:  # an adapter has no config of its own
        check_overrides(overrides, type(config) if goes_on else CONFIG_MAPPING[method.model_type])
    model = AutoModelForMaskedLM.from_pretrained(
        args.model_name_or_path, dtype=args.dtype, **args.hub_options, **(overrides if goes_on else {})
    )
    if getattr(model.config, "memory_tokenizer", "same") != "same":
        raise ValueError(
            "in masked-LM training the memory reads the masked text, so both encoders need one tokenizer; the memory "
            f"of {args.model_name_or_path} has its own"
        )
    if delta is not None and not method.extends_vocabulary:
        if (own := load_own_tokenizer(args)) is not None:
            check_not_expanded(own, delta)
        apply_delta(model, delta)
    return model if method.model_type == config.model_type else method.build(model, tokenizer, delta, args, overrides)


def load_own_tokenizer(args: MethodArguments):
    """Load the tokenizer that lies beside the checkpoint; None if there is none."""
    try:
        return AutoTokenizer.from_pretrained(args.model_name_or_path, **args.hub_options)
    except (OSError, ValueError):
        return None


def load_data(args: DataTrainingArguments, model_args: MethodArguments, do_eval: bool, tokenizer):
    """Load, tokenize and cut the corpus."""
    corpus = load_corpus(
        args.train_file,
        args.validation_file,
        dataset_name=args.dataset_name,
        dataset_config_name=args.dataset_config_name,
        text_column=args.text_column_name,
        validation_split_percentage=args.validation_split_percentage if do_eval else 0,
        streaming=args.streaming,
        cache_dir=model_args.cache_dir,
    )
    examples = tokenize_corpus(
        corpus,
        tokenizer,
        max_seq_length=args.max_seq_length,
        line_by_line=args.line_by_line,
        whole_words=args.whole_word_mask,
        num_proc=args.preprocessing_num_workers,
        overwrite_cache=args.overwrite_cache,
    )
    for split, limit in (("train", args.max_train_samples), ("validation", args.max_eval_samples)):
        if limit is not None and split in examples:
            count = limit if args.streaming else min(limit, len(examples[split]))
            examples[split] = examples[split].take(count) if args.streaming else examples[split].select(range(count))
    return examples


def main() -> None:
    arguments = parse_arguments(*ARGUMENTS, description=__doc__)
    start_run(arguments[-1])
    run_in_folder(run, *arguments)


def check_options(
    model_args: MethodArguments, data_args: DataTrainingArguments, training_args: TrainingArguments
) -> None:
    """Check what the flags ask for together.

    Raises:
        ValueError: One needs another, or the text of the evaluation is trained on.
    """
    check_work(training_args, "do_train", "do_eval")
    if training_args.do_train:
        check_held_out(data_args.train_file, {"validation_file": data_args.validation_file})
    if data_args.streaming and training_args.do_train and training_args.max_steps <= 0:
        raise ValueError("the length of a stream is not known: --streaming needs --max_steps, got none")
    if METHODS[model_args.method].finish and training_args.push_to_hub and not training_args.do_train:
        raise ValueError(f"--method {model_args.method} pushes the model that training ends with: add --do_train")


def run(
    model_args: MethodArguments,
    data_args: DataTrainingArguments,
    passage_args: PassageArguments,
    training_args: TrainingArguments,
) -> None:
    check_options(model_args, data_args, training_args)
    delta = None
    if model_args.expanded_vocabulary is not None:
        delta = VocabularyDelta.load(model_args.expanded_vocabulary)
        model_args.tokenizer_name = model_args.expanded_vocabulary
    elif model_args.new_rows_first_steps:
        raise ValueError("--new_rows_first_steps needs the new rows of an --expanded_vocabulary, got none")
    method = METHODS[model_args.method]
    if model_args.new_rows_first_steps and method.trains_rows_apart:
        raise ValueError(
            "--new_rows_first_steps trains the new rows of the encoder's own table alone; the encoder of "
            f"{model_args.method} is frozen, and its new rows are apart: leave the flag out"
        )
    tokenizer = load_tokenizer(model_args, data_args.max_seq_length)
    check_mask_token(tokenizer)
    model = load_model(model_args, tokenizer, delta)
    check_tokenizer_fits(tokenizer, model)
    check_weights(model, model_args.model_name_or_path)
    datastore = load_datastore(passage_args, model, tokenizer, model_args.method)
    with training_args.main_process_first(desc="loading and tokenizing the corpus"):
        examples = load_data(data_args, model_args, training_args.do_eval, tokenizer)
        examples = retrieve_for_blocks(
            examples, tokenizer, datastore, passage_args, data_args.preprocessing_num_workers
        )
    if training_args.do_train:
        check_batch(examples["train"], training_args.train_batch_size * training_args.gradient_accumulation_steps)

    # Until an adapter is finished, whoever loads the folder puts it on the weights beside it: nothing is pushed before.
    pushes, training_args.push_to_hub = training_args.push_to_hub, training_args.push_to_hub and not method.finish
    training_args.remove_unused_columns = not data_args.whole_word_mask  # the collator reads and drops word_ids
    collator_class = DataCollatorForWholeWordMask if data_args.whole_word_mask else DataCollatorForTokenMask
    collator = collator_class(tokenizer, mlm_probability=data_args.mlm_probability, seed=training_args.seed)
    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=examples["train"] if training_args.do_train else None,
        eval_dataset=examples["validation"] if training_args.do_eval else None,
        processing_class=tokenizer,
        data_collator=wrap_collator(collator, model, tokenizer, datastore, examples, passage_args, training_args),
    )
    log_auxiliary_losses(trainer)
    if delta is not None and not method.trains_rows_apart:
        trainer.add_callback(RowDistances(delta, model))
    if model_args.new_rows_first_steps:
        trainer.add_callback(NewRowsFirst(delta, model_args.new_rows_first_steps))

    if training_args.do_train:
        run_training(trainer)
    if training_args.do_eval:
        metrics = trainer.evaluate()
        metrics["perplexity"] = math.exp(metrics["eval_loss"])
        save_metrics(trainer, "eval", metrics, trainer.eval_dataset)
    if method.finish and training_args.do_train and training_args.should_save:
        trainer.model = method.finish(trainer.accelerator.unwrap_model(trainer.model), training_args.output_dir)
    training_args.push_to_hub = pushes
    write_card(
        trainer,
        model_args,
        "fill-mask",
        data_args.dataset_name,
        data_args.dataset_config_name,
        tags=["hf-domain", model_args.method],
    )


def _mp_fn(index: int) -> None:
    main()


if __name__ == "__main__":
    main()

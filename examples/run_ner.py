# /// script
# requires-python = ">=3.11"
# dependencies = ["hf-domain"]
# ///
"""Fine-tune any encoder to find named entities.

    python examples/run_ner.py \
        --model_name_or_path bert-base-cased \
        --train_file train.jsonl --validation_file validation.jsonl --test_file test.jsonl \
        --do_train --do_eval --do_predict --num_train_epochs 3 --output_dir output

The files have a column of words, `tokens`, and one of their tags, `tags`, such as B-Disease, I-Disease and O.
"""

from dataclasses import dataclass, field
from functools import partial
from itertools import chain

import numpy as np
from transformers import AutoModelForTokenClassification, DataCollatorForTokenClassification

import hf_domain  # noqa: F401  the Auto classes then know its models
from hf_domain.data.labels import check_variety, check_words, find_labels, prepare_for_words, read_tags, tokenize_words
from hf_domain.data.majority import add_baseline
from hf_domain.data.metrics import compute_entity_metrics
from hf_domain.gmap.memory import DataCollatorWithMemory, add_memory_inputs, load_memory_tokenizer
from hf_domain.rada.passages import PassageArguments, load_datastore, retrieve_passages, wrap_collator
from hf_domain.training.arguments import parse_arguments
from hf_domain.training.fine_tuning import (
    DataArguments,
    FineTuner,
    FineTunerArguments,
    FineTuningArguments,
    add_memory_states,
    check_columns,
    limit_splits,
    load_config,
    load_model,
    load_splits,
    locate_example,
    map_splits,
)
from hf_domain.training.run_folders import run_in_folder
from hf_domain.training.runs import (
    load_tokenizer,
    run_evaluation,
    run_prediction,
    run_training,
    save_output,
    start_run,
    write_card,
)


@dataclass
class DataTrainingArguments(DataArguments):
    """What to tag and how."""

    text_column_name: str = field(default="tokens", metadata={"help": "Column of words."})
    label_column_name: str = field(default="tags", metadata={"help": "Column of tags; often ner_tags on the Hub."})
    max_seq_length: int | None = field(
        default=None, metadata={"help": "Tokens of a sentence at most. Default: as many as the model takes."}
    )
    label_all_tokens: bool = field(
        default=False, metadata={"help": "Label all tokens of a word, not the first one alone."}
    )
    return_entity_level_metrics: bool = field(default=False, metadata={"help": "Metrics of every entity type as well."})


ARGUMENTS = (FineTuningArguments, DataTrainingArguments, PassageArguments, FineTunerArguments)


def main():
    arguments = parse_arguments(*ARGUMENTS, description=__doc__)
    start_run(arguments[-1])
    run_in_folder(run, *arguments)


def run(model_args, data_args, passage_args, training_args):
    splits = load_splits(model_args, data_args, training_args)
    check_columns(splits, [data_args.text_column_name, data_args.label_column_name])
    locate = partial(locate_example, data_args)
    check_words(splits, data_args.text_column_name, data_args.label_column_name, locate)
    label_names, label_ids = find_labels(splits, data_args.label_column_name, locate)
    if training_args.do_train:
        tags = splits["train"][data_args.label_column_name]
        check_variety(chain.from_iterable(tags), data_args.label_column_name)

    config = load_config(model_args, label_names)
    tokenizer = load_tokenizer(model_args, data_args.max_seq_length)
    prepare_for_words(tokenizer)
    model = load_model(AutoModelForTokenClassification, model_args, config, tokenizer)
    memory_tokenizer = load_memory_tokenizer(model.config, token=model_args.token, cache_dir=model_args.cache_dir)
    if memory_tokenizer is not None:
        prepare_for_words(memory_tokenizer)
    datastore = load_datastore(passage_args, model, tokenizer, model_args.method)

    def tokenize(batch):
        words = batch[data_args.text_column_name]
        labels = [[label_ids[tag] for tag in tags] for tags in batch[data_args.label_column_name]]
        options = {"max_seq_length": data_args.max_seq_length, "pad_to_max_length": data_args.pad_to_max_length}
        encodings = tokenize_words(words, labels, tokenizer, **options, label_all_tokens=data_args.label_all_tokens)
        return add_memory_inputs(
            encodings, memory_tokenizer, lambda memory: tokenize_words(words, labels, memory, **options)
        )

    def compute_metrics(output):
        predicted, gold = read_tags(output, label_names)
        return compute_entity_metrics(predicted, gold, per_type=data_args.return_entity_level_metrics)

    columns, workers = [data_args.text_column_name], data_args.preprocessing_num_workers
    splits = retrieve_passages(limit_splits(splits, data_args), datastore, columns, passage_args, workers)
    tokenized = map_splits(splits, tokenize, training_args, data_args)
    tokenized = add_memory_states(tokenized, model, training_args, data_args)
    outside = np.array([float(name == "O") for name in label_names])
    collator = DataCollatorForTokenClassification(tokenizer, pad_to_multiple_of=8 if training_args.fp16 else None)
    collator = DataCollatorWithMemory(collator, memory_tokenizer)
    trainer = FineTuner(
        model=model,
        args=training_args,
        train_dataset=tokenized["train"],
        eval_dataset=tokenized.get("validation"),
        processing_class=tokenizer,
        data_collator=wrap_collator(collator, model, tokenizer, datastore, tokenized, passage_args, training_args),
        compute_metrics=add_baseline(compute_metrics, [outside], None, "f1"),
    )
    if training_args.do_train:
        run_training(trainer)
    if training_args.do_eval:
        run_evaluation(trainer)
    if training_args.do_predict:
        output = run_prediction(trainer, tokenized["test"])
        predicted, _ = read_tags(output, label_names)
        save_output(trainer, "predictions.txt", "".join(f"{' '.join(tags)}\n" for tags in predicted))
    write_card(trainer, model_args, "token-classification", data_args.dataset_name, data_args.dataset_config_name)


def _mp_fn(index):
    main()


if __name__ == "__main__":
    main()

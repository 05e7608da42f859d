r"""Fine-tune any encoder to find named entities.

    python examples/run_ner.py \
        --model_name_or_path bert-base-cased \
        --train_file train.jsonl --validation_file validation.jsonl --test_file test.jsonl \
        --do_train --do_eval --do_predict --num_train_epochs 3 --output_dir output

The files have a column of words, `tokens`, and a column of their tags, `tags`, such as B-Disease, I-Disease and O.
"""

from functools import partial
from itertools import chain

import numpy as np
from datasets import DatasetDict
from transformers import AutoModelForTokenClassification, DataCollatorForTokenClassification

from hf_domain.methods.gmap.reader import load_memory_reader
from hf_domain.methods.rada.passages import PassageArguments, load_passage_reader
from hf_domain.tasks.baseline import add_baseline
from hf_domain.tasks.labels import check_variety, find_labels
from hf_domain.tasks.metrics import compute_entity_metrics, list_entity_metrics
from hf_domain.tasks.token_classification import (
    add_cut_tags,
    check_tags,
    check_words,
    continue_labels,
    count_words,
    pop_cut_tags,
    prepare_for_words,
    read_tags,
    tokenize_words,
)
from hf_domain.training.arguments import (
    FineTunerArguments,
    FineTuningArguments,
    NerArguments,
    check_best_metric,
    parse_arguments,
)
from hf_domain.training.learning_rate import fine_tune_in_folder
from hf_domain.training.run import finish_run, load_tokenizer, save_predictions, start_run, train_and_evaluate
from hf_domain.training.run_files import TAGS, format_tags
from hf_domain.training.task_trainer import (
    FineTuner,
    check_columns,
    follow_model_labels,
    limit_splits,
    load_splits,
    load_task_model,
    locate_example,
    map_splits,
    renew_config,
)

ARGUMENTS = (FineTuningArguments, NerArguments, PassageArguments, FineTunerArguments)


def main():
    arguments = parse_arguments(*ARGUMENTS, description=__doc__)
    start_run(arguments[-1], arguments[0].verbose)
    fine_tune_in_folder(run, *arguments)


def run(model_args, data_args, passage_args, training_args):
    word_column, label_column = data_args.text_column_name, data_args.label_column_name
    splits = load_splits(model_args, data_args, training_args)
    check_columns(splits, [word_column, label_column])
    locate = partial(locate_example, data_args)
    check_words(splits, word_column, label_column, locate)
    label_names, label_ids = find_labels(splits, label_column, locate)
    label_names, label_ids = follow_model_labels(model_args, training_args, label_names, label_ids)
    check_tags(label_names)
    splits = limit_splits(splits, data_args)
    if training_args.do_train:
        check_variety(chain.from_iterable(splits["train"][label_column]), label_column)

    check_best_metric(training_args, list_entity_metrics(label_names if data_args.return_entity_level_metrics else []))
    tokenizer = load_tokenizer(model_args, data_args.max_seq_length)
    prepare_for_words(tokenizer)
    model = load_task_model(AutoModelForTokenClassification, model_args, tokenizer, label_names)
    renew_config(model, tokenizer, data_args, training_args.do_train)
    memory = load_memory_reader(model, data_args.memory_cache, token=model_args.token, cache_dir=model_args.cache_dir)
    passages = load_passage_reader(passage_args, model, tokenizer, model_args.method)

    def tokenize(batch, tokenizer=tokenizer, continued=None):
        prepare_for_words(tokenizer)
        labels = [[label_ids[tag] for tag in tags] for tags in batch[label_column]]
        options = {"max_seq_length": data_args.max_seq_length, "pad_to_max_length": data_args.pad_to_max_length}
        encodings = tokenize_words(batch[word_column], labels, tokenizer, continued=continued, **options)
        encodings["num_words"] = count_words(encodings)
        return encodings

    def read_all_tags(output):
        return add_cut_tags(*read_tags(output, label_names), cut[trainer.evaluated_split])

    def compute_metrics(output):
        predicted, gold = read_all_tags(output)
        return compute_entity_metrics(predicted, gold, per_type=data_args.return_entity_level_metrics)

    if passages is not None:
        splits = passages.look_up(splits, [word_column], data_args.preprocessing_num_workers)
    examples = DatasetDict()
    for split, rows in splits.items():
        # Scores and predictions have one tag for each word, so only training labels its later tokens.
        continued = continue_labels(label_names) if data_args.label_all_tokens and split == "train" else None
        examples |= map_splits(DatasetDict({split: rows}), tokenize, training_args, data_args, continued=continued)
    names = {value: label_names[number] for value, number in label_ids.items()}
    examples, cut = pop_cut_tags(examples, splits, label_column, names)
    collator = DataCollatorForTokenClassification(tokenizer, pad_to_multiple_of=8 if training_args.fp16 else None)
    if memory is not None:
        examples = memory.add_inputs(examples, splits, tokenize, training_args, data_args)
        collator = memory.collate(collator)
    if passages is not None:
        passages.fill_cache(examples, training_args)
        collator = passages.collate(collator)

    outside = np.array([float(name == "O") for name in label_names])
    trainer = FineTuner(
        model=model,
        args=training_args,
        train_dataset=examples["train"],
        eval_dataset=examples.get("validation"),
        processing_class=tokenizer,
        data_collator=collator,
        compute_metrics=add_baseline(compute_metrics, [outside], None, "f1"),
    )
    train_and_evaluate(trainer, "f1", model_args.early_stopping_patience)
    save_predictions(trainer, examples.get("test"), lambda output: format_tags(read_all_tags(output)[0]), TAGS)
    finish_run(trainer, "token-classification", model_args, data_args, passage_args)
    return trainer


def _mp_fn(index):
    main()


if __name__ == "__main__":
    main()

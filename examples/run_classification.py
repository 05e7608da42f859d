r"""Fine-tune any encoder to classify texts or pairs of texts.

    python examples/run_classification.py \
        --model_name_or_path bert-base-uncased \
        --train_file train.jsonl --validation_file validation.jsonl --test_file test.jsonl \
        --do_train --do_eval --do_predict --max_seq_length 128 --num_train_epochs 3 --output_dir output

The files have a column of text, or two for pairs (text and text_pair, premise and hypothesis, ...), and one of labels:
names or numbers (single-label), lists (multi-label), or fractions (regression).

`--method gmap --memory_name_or_path <general encoder>` lets an adapted encoder read a frozen general encoder as memory.
`--memory_cache <folder>` caches the memory's states. `--nearest_vote true` mixes the model's probabilities with a vote
of the nearest training texts. `--pseudo_labeled_file <output of hf-domain predict>` adds texts that a model labeled.
"""

from functools import partial

from transformers import AutoModelForSequenceClassification, DataCollatorWithPadding

from hf_domain.methods.gmap.reader import load_memory_reader
from hf_domain.methods.rada.passages import PassageArguments, append_passages, check_single_text, load_passage_reader
from hf_domain.tasks.baseline import DECIDING, add_baseline, make_constants
from hf_domain.tasks.class_weights import make_weighted_loss
from hf_domain.tasks.classification import decode_logits, encode_labels, name_predictions, tokenize_texts
from hf_domain.tasks.labels import check_spread, check_variety, find_ids, read_labels
from hf_domain.tasks.metrics import choose_metrics, list_class_metrics
from hf_domain.tasks.validation_choices import choose_on_validation
from hf_domain.training.arguments import (
    ClassificationArguments,
    FineTunerArguments,
    FineTuningArguments,
    check_best_metric,
    parse_arguments,
)
from hf_domain.training.learning_rate import fine_tune_in_folder
from hf_domain.training.pseudo_labels import add_pseudo_labels
from hf_domain.training.run import finish_run, load_tokenizer, save_predictions, start_run, train_and_evaluate
from hf_domain.training.run_files import LABELS, format_labels
from hf_domain.training.task_trainer import (
    FineTuner,
    check_columns,
    choose_text_columns,
    follow_model_labels,
    limit_splits,
    load_splits,
    load_task_model,
    locate_example,
    map_splits,
    renew_config,
)
from hf_domain.training.vote import load_vote

ARGUMENTS = (FineTuningArguments, ClassificationArguments, PassageArguments, FineTunerArguments)


def main():
    arguments = parse_arguments(*ARGUMENTS, description=__doc__)
    start_run(arguments[-1], arguments[0].verbose)
    fine_tune_in_folder(run, *arguments)


def run(model_args, data_args, passage_args, training_args):
    label_column = data_args.label_column_name
    splits = load_splits(model_args, data_args, training_args)
    check_columns(splits, [label_column], optional_in_test=label_column)
    locate = partial(locate_example, data_args)
    text_columns = choose_text_columns(splits, label_column, data_args.text_column_names, locate)
    check_single_text(text_columns, data_args.append_passage)
    kinds = (data_args.do_regression, data_args.multi_label)
    problem_type, label_names, label_ids = read_labels(splits, label_column, *kinds, locate)
    label_names, label_ids = follow_model_labels(model_args, training_args, label_names, label_ids)
    splits = limit_splits(splits, data_args)
    if training_args.do_train:
        check_variety(splits["train"][label_column], label_column)
    check_spread(splits, label_column, problem_type)
    negative_labels, metric_name = find_ids(data_args.negative_labels, label_names), data_args.metric_name
    names = list_class_metrics(problem_type, negative_labels)
    if metric_name in (None, *names):  # what a metric of evaluate returns is not known
        check_best_metric(training_args, [metric_name] if metric_name else names)
    tokenizer = load_tokenizer(model_args, data_args.max_seq_length)
    labels = {"label_names": label_names, "problem_type": problem_type}
    model = load_task_model(AutoModelForSequenceClassification, model_args, tokenizer, **labels)
    renew_config(model, tokenizer, data_args, training_args.do_train, text_columns)
    score = choose_metrics(problem_type, negative_labels, metric_name, model_args.trust_remote_code, model.config)
    memory = load_memory_reader(model, data_args.memory_cache, token=model_args.token, cache_dir=model_args.cache_dir)
    passages = load_passage_reader(passage_args, model, tokenizer, model_args.method, data_args.append_passage)
    vote = load_vote(data_args, splits, text_columns, label_ids, model.config, training_args.do_train)
    splits, gold = add_pseudo_labels(splits, model_args, data_args, training_args, text_columns, label_names, label_ids)

    def tokenize(batch, tokenizer=tokenizer):
        options = {"max_seq_length": data_args.max_seq_length, "pad_to_max_length": data_args.pad_to_max_length}
        encodings = tokenize_texts([batch[column] for column in text_columns], tokenizer, **options)
        if label_column in batch:
            encodings["labels"] = encode_labels(batch[label_column], problem_type, label_ids)
        return encodings

    if passages is not None:
        splits = passages.look_up(splits, text_columns, data_args.preprocessing_num_workers)
    if data_args.append_passage:
        splits = append_passages(splits, passages.datastore, *text_columns, tokenizer, data_args.max_seq_length)
        text_columns, passages = [*text_columns, "passage"], None  # the passage is now part of the text
    examples = map_splits(splits, tokenize, training_args, data_args)
    train_labels = examples["train"]["labels"][:gold]
    collator = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8 if training_args.fp16 else None)
    if memory is not None:
        examples = memory.add_inputs(examples, splits, tokenize, training_args, data_args)
        collator = memory.collate(collator)
    if passages is not None:
        passages.fill_cache(examples, training_args)
        collator = passages.collate(collator)
    constants = make_constants(problem_type, train_labels, len(label_names))
    deciding = metric_name or DECIDING[problem_type]
    trainer = FineTuner(
        model,
        training_args,
        train_dataset=examples["train"],
        eval_dataset=examples.get("validation"),
        processing_class=tokenizer,
        data_collator=collator,
        compute_metrics=add_baseline(score, constants, train_labels, deciding),
        compute_loss_func=make_weighted_loss(data_args.class_weights, problem_type, train_labels, label_names),
        vote=vote,
    )

    def form(output):
        predictions = decode_logits(output.predictions, problem_type, getattr(model.config, "label_thresholds", None))
        return format_labels(name_predictions(predictions, problem_type, label_names))

    train_and_evaluate(trainer, deciding, model_args.early_stopping_patience, choose_on_validation)
    save_predictions(trainer, examples.get("test"), form, LABELS)
    finish_run(trainer, "text-classification", model_args, data_args, passage_args)
    return trainer


def _mp_fn(index):
    main()


if __name__ == "__main__":
    main()

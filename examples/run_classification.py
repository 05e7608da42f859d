# /// script
# requires-python = ">=3.11"
# dependencies = ["hf-domain"]
# ///
"""Fine-tune any encoder to classify texts or pairs of texts.

    python examples/run_classification.py \
        --model_name_or_path bert-base-uncased \
        --train_file train.jsonl --validation_file validation.jsonl --test_file test.jsonl \
        --do_train --do_eval --do_predict --max_seq_length 128 --num_train_epochs 3 --output_dir output

The files have a column of text, or the two of a pair (text and text_pair, sentence1 and sentence2, premise and
hypothesis, ...), and a column of labels: names or numbers (one label each), lists (multi-label), or fractions
(regression).

`--method gmap --memory_name_or_path <general encoder>` gives an encoder that was adapted to a domain a frozen general
one as memory; `--memory_cache <folder>` keeps the memory's states, so that it reads each text once.
"""

from dataclasses import dataclass, field
from functools import partial

from transformers import AutoModelForSequenceClassification, DataCollatorWithPadding

import hf_domain  # noqa: F401  the Auto classes then know its models
from hf_domain.data.classification import (
    decode_logits,
    encode_labels,
    find_problem_type,
    name_predictions,
    tokenize_texts,
)
from hf_domain.data.labels import check_values, check_variety, find_ids, find_labels
from hf_domain.data.majority import DECIDING, add_baseline, make_constants
from hf_domain.data.metrics import choose_metrics
from hf_domain.data.text_columns import check_texts
from hf_domain.gmap.memory import DataCollatorWithMemory, add_memory_inputs, load_memory_tokenizer
from hf_domain.rada.passages import PassageArguments, append_passages, load_datastore, retrieve_passages, wrap_collator
from hf_domain.training.arguments import parse_arguments
from hf_domain.training.fine_tuning import (
    DataArguments,
    FineTuner,
    FineTunerArguments,
    FineTuningArguments,
    add_memory_states,
    check_columns,
    choose_text_columns,
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
    """What to classify and how."""

    text_column_names: str | None = field(
        default=None,
        metadata={"help": "Column of text, or two as first,second. Default: a known pair, `text`, or the only one."},
    )
    label_column_name: str = field(default="label", metadata={"help": "Column of labels."})
    max_seq_length: int = field(default=128, metadata={"help": "Tokens of an example at most."})
    do_regression: bool | None = field(
        default=None, metadata={"help": "Labels are values. Default: if they are fractions."}
    )
    multi_label: bool | None = field(
        default=None, metadata={"help": "An example has any number of labels. Default: if it has a list of them."}
    )
    negative_labels: str | None = field(
        default=None, metadata={"help": "Labels that mean none of these, as a,b; adds positive_micro_f1 without them."}
    )
    metric_name: str | None = field(
        default=None,
        metadata={"help": "One metric instead of all; one of evaluate needs --trust_remote_code."},
    )


ARGUMENTS = (FineTuningArguments, DataTrainingArguments, PassageArguments, FineTunerArguments)


def main():
    arguments = parse_arguments(*ARGUMENTS, description=__doc__)
    start_run(arguments[-1])
    run_in_folder(run, *arguments)


def run(model_args, data_args, passage_args, training_args):
    label_column = data_args.label_column_name
    splits = load_splits(model_args, data_args, training_args)
    check_columns(splits, [label_column], optional_in_test=label_column)
    text_columns = choose_text_columns(splits, label_column, data_args.text_column_names)
    if passage_args.append_passage and len(text_columns) > 1:
        raise ValueError(
            f"--append_passage makes a pair of one text and its passage; got {', '.join(text_columns)}. "
            "Name one column by --text_column_names, or read passages by --method rada."
        )

    locate = partial(locate_example, data_args)
    check_texts(splits, text_columns, locate)
    problem_type = find_problem_type(
        splits["train"], label_column, data_args.do_regression, data_args.multi_label, locate
    )
    if problem_type != "regression":
        label_names, label_ids = find_labels(splits, label_column, locate)
    else:
        label_names, label_ids = ["value"], {}
        check_values(splits, label_column, locate)
    if training_args.do_train:
        check_variety(splits["train"][label_column], label_column)
    negative_labels = find_ids(data_args.negative_labels, label_names)
    compute_metrics = choose_metrics(problem_type, negative_labels, data_args.metric_name, model_args.trust_remote_code)

    config = load_config(model_args, label_names, problem_type=problem_type)
    tokenizer = load_tokenizer(model_args, data_args.max_seq_length)
    model = load_model(AutoModelForSequenceClassification, model_args, config, tokenizer)
    memory_tokenizer = load_memory_tokenizer(model.config, token=model_args.token, cache_dir=model_args.cache_dir)
    datastore = load_datastore(passage_args, model, tokenizer, model_args.method)

    def tokenize(batch):
        texts = [batch[column] for column in text_columns]
        options = {"max_seq_length": data_args.max_seq_length, "pad_to_max_length": data_args.pad_to_max_length}
        encodings = tokenize_texts(texts, tokenizer, **options)
        add_memory_inputs(encodings, memory_tokenizer, lambda memory: tokenize_texts(texts, memory, **options))
        if label_column in batch:
            encodings["labels"] = encode_labels(batch[label_column], problem_type, label_ids)
        return encodings

    workers = data_args.preprocessing_num_workers
    splits = retrieve_passages(limit_splits(splits, data_args), datastore, text_columns, passage_args, workers)
    if passage_args.append_passage:
        splits = append_passages(splits, datastore, *text_columns, tokenizer, data_args.max_seq_length)
        text_columns = [*text_columns, "passage"]
    tokenized = map_splits(splits, tokenize, training_args, data_args)
    train_labels = tokenized["train"]["labels"][:]
    tokenized = add_memory_states(tokenized, model, training_args, data_args)
    constants = make_constants(problem_type, train_labels, len(label_names))
    deciding = data_args.metric_name or DECIDING[problem_type]
    collator = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8 if training_args.fp16 else None)
    collator = DataCollatorWithMemory(collator, memory_tokenizer)
    trainer = FineTuner(
        model=model,
        args=training_args,
        train_dataset=tokenized["train"],
        eval_dataset=tokenized.get("validation"),
        processing_class=tokenizer,
        data_collator=wrap_collator(collator, model, tokenizer, datastore, tokenized, passage_args, training_args),
        compute_metrics=add_baseline(compute_metrics, constants, train_labels, deciding),
    )
    if training_args.do_train:
        run_training(trainer)
    if training_args.do_eval:
        run_evaluation(trainer)
    if training_args.do_predict:
        predictions = decode_logits(run_prediction(trainer, tokenized["test"]).predictions, problem_type)
        lines = [
            f"{row}\t{name}\n" for row, name in enumerate(name_predictions(predictions, problem_type, label_names))
        ]
        save_output(trainer, "predict_results.txt", "index\tprediction\n" + "".join(lines))
    write_card(trainer, model_args, "text-classification", data_args.dataset_name, data_args.dataset_config_name)


def _mp_fn(index):
    main()


if __name__ == "__main__":
    main()

"""Fine-tune a model on a task of any kind, with any method."""

import logging
from collections.abc import Iterator
from functools import partial
from typing import Any

from datasets import DatasetDict
from transformers import AutoConfig

from hf_domain.checks import check_predictions
from hf_domain.methods.rada.passages import (
    PassageArguments,
    append_passages,
    check_single_text,
    count_positions,
    load_passage_reader,
)
from hf_domain.tasks.kind import TaskKind
from hf_domain.tasks.vote import load_vote, set_vote
from hf_domain.training.arguments import (
    FineTunerArguments,
    FineTuningArguments,
    check_best_metric,
    parse_arguments,
)
from hf_domain.training.memory_reader import load_memory_reader
from hf_domain.training.run import (
    load_tokenizer,
    run_prediction,
    save_output,
    start_run,
    train_and_evaluate,
    write_card,
)
from hf_domain.training.run_folder import run_in_folder
from hf_domain.training.task_trainer import (
    FineTuningTrainer,
    limit_splits,
    load_splits,
    load_task_model,
    locate_example,
    map_splits,
    renew_config,
)

logger = logging.getLogger(__name__)


def list_arguments(kind: type[TaskKind]) -> tuple[Any, ...]:
    """Return the dataclasses of the flags of a fine-tuning."""
    return FineTuningArguments, kind.arguments, PassageArguments, FineTunerArguments


def fine_tune_from_flags(kind: type[TaskKind], description: str | None) -> None:
    """Fine-tune as the command line says, in its output folder.

    Args:
        description: First lines of `--help`.
    """
    arguments = parse_arguments(*list_arguments(kind), description=description)
    start_run(arguments[-1], arguments[0].verbose)
    run_in_folder(partial(run_fine_tuning, kind), *arguments)


def run_fine_tuning(
    kind_class: type[TaskKind],
    model_args: FineTuningArguments,
    data_args: Any,
    passage_args: PassageArguments,
    training_args: FineTunerArguments,
) -> FineTuningTrainer:
    """Load the data and the model of a task, train, score and predict; return the trainer.

    Raises:
        ValueError: The data, the model or an option cannot be used.
    """
    kind, appends = kind_class(data_args), getattr(data_args, "append_passage", False)
    splits = read_task(kind, model_args, training_args)
    tokenizer = load_tokenizer(model_args, data_args.max_seq_length)
    model = load_task_model(kind.auto_class, model_args, tokenizer, kind.label_names, **kind.list_options())
    if data_args.max_seq_length is None and kind.default_length is not None:
        limits = (kind.default_length, tokenizer.model_max_length, count_positions(model) or kind.default_length)
        data_args.max_seq_length = min(limits)
    kind.use(tokenizer)
    renew_config(model, tokenizer, data_args, training_args.do_train, kind.text_columns)
    memory = load_memory_reader(model, data_args.memory_cache, token=model_args.token, cache_dir=model_args.cache_dir)
    passages = load_passage_reader(passage_args, model, tokenizer, model_args.method, appends)
    vote = load_vote(kind, splits, model.config, training_args.do_train)

    if passages is not None:
        splits = passages.look_up(splits, kind.text_columns, data_args.preprocessing_num_workers)
    if passages is not None and appends:
        (column,) = kind.text_columns
        splits = append_passages(splits, passages.datastore, column, tokenizer, data_args.max_seq_length)
        kind.text_columns, passages = [*kind.text_columns, "passage"], None  # the passage is now part of the text
    examples, inputs = DatasetDict(), dict[str, Any]()
    collator: Any = kind.collator_class(tokenizer, pad_to_multiple_of=8 if training_args.fp16 else None)
    for split, rows in splits.items():
        own, tokenize = DatasetDict({split: rows}), partial(kind.tokenize, does_train=split == "train")
        one = map_splits(own, tokenize, training_args, data_args)
        kind.check_examples(split, rows, one[split])
        examples |= one
        inputs |= memory.add_inputs(one, own, tokenize, training_args, data_args) if memory is not None else one
    if memory is not None:
        collator = memory.collate(collator)
    if passages is not None:
        passages.fill_cache(examples, training_args)
        collator = passages.collate(collator)
    kind.learn(examples, model.config)

    def compute_metrics(output: Any) -> dict[str, Any]:
        check_predictions(output.predictions)
        split = trainer.evaluated_split
        return kind.score(output, splits[split], examples[split], model.config)

    trainer = FineTuningTrainer(
        model,
        training_args,
        train_dataset=inputs.get("train"),
        eval_dataset=inputs.get("validation"),
        processing_class=tokenizer,
        data_collator=collator,
        compute_metrics=compute_metrics,
        compute_loss_func=kind.loss,
        measure_loss=lambda predictions, labels: kind.measure_loss(
            model.config, predictions, labels, examples[trainer.evaluated_split]
        ),
        vote=vote,
    )
    train_and_evaluate(trainer, kind.deciding, model_args.early_stopping_patience, partial(choose_on_validation, kind))
    for split, prefix, output in predict_splits(trainer, inputs.get("test")):
        decoded = kind.decode(output, splits[split], examples[split], model.config)
        for name, text in kind.list_files(decoded, prefix).items():
            save_output(trainer, name, text)
    write_card(trainer, kind.pipeline_tag, model_args, data_args, passage_args)
    return trainer


def read_task(kind: TaskKind, model_args: FineTuningArguments, training_args: FineTunerArguments) -> DatasetDict:
    """Return the splits of a task, checked and cut to their limits, with the labels in the order of the model's."""
    args = kind.args
    # A training that names no length is stopped by its validation score.
    training_args.do_eval |= training_args.is_open_ended and args.validation_file is not None
    is_given = args.validation_file is not None or args.dataset_name is not None
    must_hold_out = training_args.do_train and training_args.do_eval and not is_given
    training_args.do_eval &= not must_hold_out  # until there is something to evaluate on
    splits = load_splits(model_args, args, training_args, kind.needs_train)
    name = model_args.config_name or model_args.model_name_or_path
    config = AutoConfig.from_pretrained(name, **model_args.hub_options)
    has_train = "train" in splits
    if kind.needs_train and not has_train:
        if not (config.architectures or [""])[0].endswith(kind.head):
            raise ValueError(
                f"without training data, the model must be fine-tuned for the task (a model {kind.head}), but "
                f"{name} is {config.architectures}. Add --train_file, or name a fine-tuned model."
            )
        kind.follow(config)
    splits = kind.read(splits, partial(locate_example, args))
    follow_model_labels(kind, config, has_train, training_args.do_train)
    splits = limit_splits(splits, args)
    if must_hold_out or (training_args.is_open_ended and "validation" not in splits):
        splits, training_args.do_eval = hold_out(kind, splits, must_hold_out)
    check_single_text(kind.text_columns, getattr(args, "append_passage", False))
    kind.check(splits, training_args.do_train)
    if (metrics := kind.list_metrics()) is not None:
        check_best_metric(training_args, metrics)
    return splits


def choose_on_validation(kind: TaskKind, trainer: FineTuningTrainer) -> None:
    """Choose the weight of a vote, then what the kind chooses with it."""
    set_vote(trainer)
    kind.finish(trainer)


def predict_splits(trainer: FineTuningTrainer, test: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield split, prefix and output of the validation set, which was just evaluated, and of the test set."""
    if trainer.args.do_eval:
        yield "validation", "eval", trainer.evaluated
    if trainer.args.do_predict:
        yield "test", "predict", run_prediction(trainer, test)


TENTH = 0.1


def hold_out(kind: TaskKind, splits: DatasetDict, must: bool = False) -> tuple[DatasetDict, bool]:
    """Return splits whose validation set is a tenth of train, and whether there is one: labels may be too rare.

    Args:
        must: Raise where there is none.
    """
    train = splits["train"]
    try:
        drawn = kind.hold_out(train, getattr(kind.args, "label_column_name", None), TENTH)
    except ValueError as error:
        if must:
            raise ValueError(f"{error} Or give --validation_file.") from error
        logger.warning(f"No validation set can be drawn from train, so that nothing stops the training early: {error}")
        return splits, False
    logger.info(
        f"There is no validation set: {len(drawn):,} of {len(train):,} examples of train are held out. Add "
        "--validation_file for others."
    )
    kept = train.select(sorted({*range(len(train))} - {*drawn}))
    return DatasetDict({**splits, "train": kept, "validation": train.select(drawn)}), True


def follow_model_labels(kind: TaskKind, config: Any, has_train: bool, does_train: bool) -> None:
    """Give labels the ids that they have in a fine-tuned model: its head would name them wrongly in another order.

    A checkpoint without a classifier leaves them unchanged, and so does one whose labels have no names, if the training
    data have them.

    Args:
        kind: With the labels of the data; its `label_names` and `label_ids` change.
        config: The model's configuration.
        has_train: Whether there are training data.

    Raises:
        ValueError: The run does not train, and the data have labels that the model does not predict.
    """
    names, ids = kind.label_names, kind.label_ids
    if not names or not ids:
        return
    own = [config.id2label[number] for number in sorted(config.id2label)]
    is_named = own != [f"LABEL_{number}" for number in range(len(own))]
    if (has_train and not is_named) or not any("Classification" in each for each in config.architectures or []):
        return
    unknown = sorted({*names} - {*own})
    if does_train and (unknown or len(names) < len(own)):
        return  # the head learns other labels
    if unknown and all(name.isdigit() and int(name) < len(own) for name in names):
        kind.label_ids = {value: int(names[number]) for value, number in ids.items()}  # the data have ids
    elif unknown:
        raise ValueError(
            f"without --do_train, the labels must be those of the model ({', '.join(own)}), but {', '.join(unknown)} "
            f"{'is none' if len(unknown) == 1 else 'are none'} of them. Rename the labels, or train the model on them."
        )
    else:
        kind.label_ids = {value: own.index(names[number]) for value, number in ids.items()}
    kind.label_names = own

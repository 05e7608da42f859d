r"""Fine-tune any encoder to find answers to questions in texts.

    python examples/run_qa.py \
        --model_name_or_path bert-base-uncased \
        --train_file train.jsonl --validation_file validation.jsonl --test_file test.jsonl \
        --do_train --do_eval --do_predict --num_train_epochs 2 --output_dir output

The files have the columns of SQuAD: `id`, `question`, `context`, `answers` with `text` and `answer_start`.
"""

import json
from functools import partial

from transformers import AutoModelForQuestionAnswering, DataCollatorWithPadding

from hf_domain.data.columns import warn_of_shared_rows
from hf_domain.methods.gmap.reader import load_memory_reader
from hf_domain.methods.rada.passages import PassageArguments, load_passage_reader
from hf_domain.tasks.baseline import compare_with_baseline
from hf_domain.tasks.classification import tokenize_texts
from hf_domain.tasks.metrics import ANSWER_METRICS, compute_squad_metrics
from hf_domain.tasks.question_answering import (
    check_questions,
    cut_windows,
    find_answers,
    list_answer_files,
    tokenize_questions,
)
from hf_domain.training.arguments import (
    FineTunerArguments,
    FineTuningArguments,
    QuestionAnsweringArguments,
    check_best_metric,
    parse_arguments,
)
from hf_domain.training.learning_rate import fine_tune_in_folder
from hf_domain.training.run import (
    finish_run,
    load_tokenizer,
    run_prediction,
    save_output,
    start_run,
    train_and_evaluate,
)
from hf_domain.training.task_trainer import (
    FineTuner,
    check_columns,
    limit_splits,
    load_splits,
    load_task_model,
    locate_example,
    map_splits,
    renew_config,
)

ARGUMENTS = (FineTuningArguments, QuestionAnsweringArguments, PassageArguments, FineTunerArguments)


def main():
    arguments = parse_arguments(*ARGUMENTS, description=__doc__)
    start_run(arguments[-1], arguments[0].verbose)
    fine_tune_in_folder(run, *arguments)


def run(model_args, data_args, passage_args, training_args):
    check_best_metric(training_args, ANSWER_METRICS)
    splits = load_splits(model_args, data_args, training_args, needs_train=False)
    check_columns(splits, ["id", "question", "context", "answers"], optional_in_test="answers")
    splits = limit_splits(splits, data_args)
    check_questions(splits, partial(locate_example, data_args), needs_answer=training_args.do_train)
    warn_of_shared_rows(splits, ["question", "context"])

    tokenizer = load_tokenizer(model_args, data_args.max_seq_length)
    model = load_task_model(AutoModelForQuestionAnswering, model_args, tokenizer)
    renew_config(model, tokenizer, data_args, training_args.do_train)
    memory = load_memory_reader(model, data_args.memory_cache, token=model_args.token, cache_dir=model_args.cache_dir)
    passages = load_passage_reader(passage_args, model, tokenizer, model_args.method)

    options = {"max_seq_length": data_args.max_seq_length, "pad_to_max_length": data_args.pad_to_max_length}
    tokenize = partial(tokenize_questions, tokenizer=tokenizer, doc_stride=data_args.doc_stride, **options)

    def tokenize_for_memory(batch, tokenizer):
        texts = cut_windows(batch, tokenize(batch))  # the memory reads the encoder's windows
        return tokenize_texts(texts, tokenizer, **options)

    if passages is not None:
        splits = passages.look_up(splits, ["question", "context"], data_args.preprocessing_num_workers)
    inputs = windows = map_splits(splits, tokenize, training_args, data_args)
    collator = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8 if training_args.fp16 else None)
    if memory is not None:
        inputs = memory.add_inputs(windows, splits, tokenize_for_memory, training_args, data_args)
        collator = memory.collate(collator)
    if passages is not None:
        passages.fill_cache(windows, training_args)
        collator = passages.collate(collator)

    def answer(predictions, split, prefix):
        answers = find_answers(
            splits[split],
            windows[split],
            *predictions[:2],
            n_best_size=data_args.n_best_size,
            max_answer_length=data_args.max_answer_length,
            with_no_answer=data_args.version_2_with_negative,
            null_score_diff_threshold=data_args.null_score_diff_threshold,
        )
        for name, content in list_answer_files(answers, data_args.version_2_with_negative).items():
            save_output(trainer, f"{prefix}_{name}", json.dumps(content, indent=4, ensure_ascii=False))
        return {answer["id"]: answer["text"] for answer in answers}

    def compute_metrics(output, split, prefix):
        references = {example["id"]: example["answers"]["text"] for example in splits[split]}
        metrics = compute_squad_metrics(answer(output.predictions, split, prefix), references)
        return compare_with_baseline(metrics, compute_squad_metrics(dict.fromkeys(references, ""), references), "f1")

    trainer = FineTuner(
        model=model,
        args=training_args,
        train_dataset=inputs.get("train"),
        eval_dataset=inputs.get("validation"),
        processing_class=tokenizer,
        data_collator=collator,
        compute_metrics=partial(compute_metrics, split="validation", prefix="eval"),
    )
    train_and_evaluate(trainer, "f1", model_args.early_stopping_patience)
    if training_args.do_predict:
        trainer.compute_metrics = partial(compute_metrics, split="test", prefix="predict")
        output = run_prediction(trainer, inputs["test"])
        if "answers" not in splits["test"].column_names:
            answer(output.predictions, "test", "predict")
    finish_run(trainer, "question-answering", model_args, data_args, passage_args)
    return trainer


def _mp_fn(index):
    main()


if __name__ == "__main__":
    main()

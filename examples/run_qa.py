# /// script
# requires-python = ">=3.11"
# dependencies = ["hf-domain"]
# ///
"""Fine-tune any encoder to find answers in texts.

    python examples/run_qa.py \
        --model_name_or_path bert-base-uncased \
        --train_file train.jsonl --validation_file validation.jsonl --test_file test.jsonl \
        --do_train --do_eval --do_predict --num_train_epochs 2 --output_dir output

The files have the columns of SQuAD: `id`, `question`, `context`, `answers` with `text` and `answer_start`.
"""

import json
from dataclasses import dataclass, field
from functools import partial

from transformers import AutoModelForQuestionAnswering, DataCollatorWithPadding

import hf_domain  # noqa: F401  the Auto classes then know its models
from hf_domain.data.classification import tokenize_texts
from hf_domain.data.majority import compare_with_baseline
from hf_domain.data.metrics import compute_squad_metrics
from hf_domain.data.question_answering import check_questions, cut_windows, find_answers, tokenize_questions
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
    """What to answer and how."""

    max_seq_length: int = field(default=384, metadata={"help": "Tokens of question and window at most."})
    doc_stride: int = field(default=128, metadata={"help": "Tokens that two windows of a context share."})
    n_best_size: int = field(default=20, metadata={"help": "Answers that are kept for a question."})
    max_answer_length: int = field(default=30, metadata={"help": "Tokens of an answer at most."})
    version_2_with_negative: bool = field(default=False, metadata={"help": "Some questions have no answer."})
    null_score_diff_threshold: float = field(
        default=0.0, metadata={"help": "Choose no answer when it leads the best answer by more than this."}
    )


ARGUMENTS = (FineTuningArguments, DataTrainingArguments, PassageArguments, FineTunerArguments)


def main():
    arguments = parse_arguments(*ARGUMENTS, description=__doc__)
    start_run(arguments[-1])
    run_in_folder(run, *arguments)


def run(model_args, data_args, passage_args, training_args):
    splits = load_splits(model_args, data_args, training_args, needs_train=False)
    check_columns(splits, ["id", "question", "context", "answers"], optional_in_test="answers")
    splits = limit_splits(splits, data_args)
    for split, examples in splits.items():
        needs_answer = split == "train" and training_args.do_train
        check_questions(examples, split, partial(locate_example, data_args), needs_answer)

    config = load_config(model_args)
    tokenizer = load_tokenizer(model_args, data_args.max_seq_length)
    model = load_model(AutoModelForQuestionAnswering, model_args, config, tokenizer)
    memory_tokenizer = load_memory_tokenizer(model.config, token=model_args.token, cache_dir=model_args.cache_dir)
    datastore = load_datastore(passage_args, model, tokenizer, model_args.method)

    def tokenize(batch):
        options = {"max_seq_length": data_args.max_seq_length, "pad_to_max_length": data_args.pad_to_max_length}
        windows = tokenize_questions(batch, tokenizer, doc_stride=data_args.doc_stride, **options)
        return add_memory_inputs(
            windows, memory_tokenizer, lambda memory: tokenize_texts(cut_windows(batch, windows), memory, **options)
        )

    splits = retrieve_passages(
        splits, datastore, ["question", "context"], passage_args, data_args.preprocessing_num_workers
    )
    features = map_splits(splits, tokenize, training_args, data_args)
    inputs = add_memory_states(features, model, training_args, data_args)
    collator = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8 if training_args.fp16 else None)
    collator = DataCollatorWithMemory(collator, memory_tokenizer)

    def answer(predictions, split, prefix):
        answers = find_answers(
            splits[split],
            features[split],
            *predictions[:2],
            n_best_size=data_args.n_best_size,
            max_answer_length=data_args.max_answer_length,
            with_no_answer=data_args.version_2_with_negative,
            null_score_diff_threshold=data_args.null_score_diff_threshold,
        )
        chosen = {answer["id"]: answer["text"] for answer in answers}
        n_best = {answer["id"]: answer["n_best"] for answer in answers}
        save_output(trainer, f"{prefix}_predictions.json", json.dumps(chosen, indent=4, ensure_ascii=False))
        save_output(trainer, f"{prefix}_nbest_predictions.json", json.dumps(n_best, indent=4, ensure_ascii=False))
        if data_args.version_2_with_negative:
            null_odds = {answer["id"]: answer["null_score_diff"] for answer in answers}
            save_output(trainer, f"{prefix}_null_odds.json", json.dumps(null_odds, indent=4))
        return chosen

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
        data_collator=wrap_collator(collator, model, tokenizer, datastore, features, passage_args, training_args),
        compute_metrics=partial(compute_metrics, split="validation", prefix="eval"),
    )
    if training_args.do_train:
        run_training(trainer)
    if training_args.do_eval:
        run_evaluation(trainer)
    if training_args.do_predict:
        trainer.compute_metrics = partial(compute_metrics, split="test", prefix="predict")
        output = run_prediction(trainer, inputs["test"])
        if "answers" not in splits["test"].column_names:
            answer(output.predictions, "test", "predict")
    write_card(trainer, model_args, "question-answering", data_args.dataset_name, data_args.dataset_config_name)


def _mp_fn(index):
    main()


if __name__ == "__main__":
    main()

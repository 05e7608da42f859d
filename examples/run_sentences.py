r"""Score the sentence embeddings of an encoder, as it is or fine-tuned, on pairs of texts or on a search.

    python examples/run_sentences.py --model_name_or_path bert-base-uncased \
        --train_file train.jsonl --validation_file validation.jsonl --test_file test.jsonl \
        --do_train --do_eval --do_predict --output_dir sentences

An embedding is the mean of the states of a text; sentence-transformers computes, scores and trains it. Without
`--do_train` the encoder is scored as it is.

The files are pairs of texts with a `score` of similarity; or tables of BEIR, such as scifact/qrels/test.tsv, with
corpus.jsonl and queries.jsonl in the folder above. The output folder loads with `SentenceTransformer(folder)`.
"""

import json
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from datasets import Dataset, DatasetDict

import hf_domain  # noqa: F401  the Auto classes then know its models
from hf_domain.data.columns import check_columns, find_split_columns
from hf_domain.data.files import check_held_out, load_files
from hf_domain.safe_io import read_json, write_json, write_text
from hf_domain.tasks.outputs import LABELS, format_labels, list_predicted
from hf_domain.tasks.retrieval import JUDGED, load_texts, read_queries
from hf_domain.tasks.sentences import RetrievalTask, SimilarityTask, check_scores, explain_missing
from hf_domain.training.arguments import FineTunerArguments, check_work, parse_arguments
from hf_domain.training.run import run_training, start_run, stop_early
from hf_domain.training.run_files import METRICS
from hf_domain.training.run_folder import run_in_folder
from hf_domain.training.sentences import load_encoder, make_trainer, name_texts, set_best_metric, write_card
from hf_domain.training.task_trainer import limit_splits, locate_example
from hf_domain.training.terminal import log_end, log_place, log_scores, suggest_export, suggest_task


@dataclass
class Arguments:
    """The encoder and the data."""

    model_name_or_path: str = field(metadata={"help": "Encoder: a folder or a name on the Hub."})
    train_file: str | None = field(default=None, metadata={"help": "Training data: pairs, or a table of BEIR (.tsv)."})
    validation_file: str | None = field(default=None, metadata={"help": "Validation data."})
    test_file: str | None = field(default=None, metadata={"help": "Test data."})
    corpus_file: str | None = field(default=None, metadata={"help": "Passages. Default: corpus.jsonl of the table."})
    queries_file: str | None = field(default=None, metadata={"help": "Queries. Default: queries.jsonl of the table."})
    text_column_names: str | None = field(
        default=None, metadata={"help": "Columns of a pair, as first,second. Default: as in run_classification.py."}
    )
    label_column_name: str = field(default="score", metadata={"help": "Column of scores of pairs."})
    max_seq_length: int = field(default=128, metadata={"help": "Maximum number of tokens of a text."})
    max_train_samples: int | None = field(default=None, metadata={"help": "Use the first N training examples."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "The same for validation."})
    max_predict_samples: int | None = field(default=None, metadata={"help": "The same for test."})
    early_stopping_patience: int | None = field(
        default=None, metadata={"help": "Stop after this many evaluations without a better score; keep the best."}
    )
    overwrite_output_dir: bool = field(default=False, metadata={"help": "Replace the content of output_dir."})
    verbose: bool = field(default=False, metadata={"help": "Show all arguments and messages of libraries."})
    trust_remote_code: bool = field(default=False, metadata={"help": "Run code that comes with the model."})


ARGUMENTS = (Arguments, FineTunerArguments)


def main():
    arguments = name_texts(*parse_arguments(*ARGUMENTS, description=__doc__))
    start_run(arguments[-1], arguments[0].verbose)
    run_in_folder(run, *arguments)


def run(args, training_args):
    check_work(training_args, "do_train", "do_eval", "do_predict")
    if training_args.push_to_hub:
        raise ValueError(
            "--push_to_hub must be left out here: sentence-transformers publishes its folders. Run "
            f"SentenceTransformer({training_args.output_dir!r}).push_to_hub(...) after training."
        )
    if (missing := explain_missing()) is not None:
        raise ModuleNotFoundError(missing)
    task, splits = load_task(args, training_args)
    set_best_metric(training_args, task.deciding)
    options = {"device": training_args.device, "trust_remote_code": args.trust_remote_code}
    model = load_encoder(args.model_name_or_path, args.max_seq_length, **options)
    batch_size, metrics, folder = training_args.per_device_eval_batch_size, {}, Path(training_args.output_dir)
    if training_args.do_train:
        pairs = task.make_pairs(splits["train"])
        evaluator = task.make_evaluator(splits["validation"], batch_size) if training_args.do_eval else None
        trainer = make_trainer(model, training_args, pairs, evaluator)
        if args.early_stopping_patience is not None:
            stop_early(trainer, task.deciding, args.early_stopping_patience)
        run_training(trainer)
        metrics = read_json(folder / METRICS)
    for split, prefix, file in list_predicted(splits, LABELS):
        started = time.perf_counter()
        scores, predictions = task.score(model, splits[split], batch_size)
        metrics |= {f"{prefix}_{name}": value for name, value in scores.items()}
        metrics |= {f"{prefix}_runtime": time.perf_counter() - started, f"{prefix}_samples": len(predictions)}
        write_text(folder / file, format_labels(map(json.dumps, predictions)))
    write_json(folder / METRICS, metrics)
    if training_args.do_train:
        write_card(trainer, args, task, metrics)
    log_scores(metrics)
    if training_args.do_train:
        log_end(training_args, None, suggest_export(str(folder), "encoder"))
    else:
        log_place("Scores and predictions", str(folder), suggest_task("sentences", [args], f"{folder}-trained"))


def load_task(args, training_args):
    wanted = {"train": training_args.do_train, "validation": training_args.do_eval, "test": training_args.do_predict}
    files = {split: getattr(args, f"{split}_file") for split, is_wanted in wanted.items() if is_wanted}
    if lacking := [split for split, file in files.items() if not file]:
        raise ValueError(f"the split {lacking[0]} must have a file. Give --{lacking[0]}_file.")
    check_held_out(files.get("train"), {f"{split}_file": file for split, file in files.items() if split != "train"})
    if next(iter(files.values())).endswith(JUDGED):
        corpus, queries = Path(args.corpus_file), Path(args.queries_file)
        rows = {split: [row for _, row in read_queries(Path(file), corpus, queries)] for split, file in files.items()}
        splits = DatasetDict({split: Dataset.from_list(each) for split, each in rows.items()})
        return RetrievalTask(load_texts(corpus)), limit_splits(splits, args)
    splits = DatasetDict({split: load_files(file) for split, file in files.items()})
    check_columns(splits, [args.label_column_name], "--label_column_name")
    locate = partial(locate_example, args)
    check_scores(splits, args.label_column_name, locate)
    columns = find_split_columns(splits, args.label_column_name, args.text_column_names, locate)
    if len(columns) != 2:
        raise ValueError(f"a similarity needs two columns of text, but the data have {', '.join(columns)}.")
    return SimilarityTask(columns, args.label_column_name), limit_splits(splits, args)


if __name__ == "__main__":
    main()

"""Train sentence embeddings with the trainer of sentence-transformers, which is imported when a function is called."""

import json
import logging
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from datasets import Dataset, DatasetDict
from transformers import TrainingArguments

from hf_domain.checks import check_weights
from hf_domain.data.columns import check_columns, find_split_columns
from hf_domain.data.corpora import check_length
from hf_domain.data.files import check_held_out, load_files
from hf_domain.extras import require
from hf_domain.safe_io import read_json, write_json, write_text
from hf_domain.tasks.labels import check_spread, check_values
from hf_domain.tasks.outputs import LABELS, format_labels, list_predicted
from hf_domain.tasks.retrieval import CORPUS, JUDGED, QUERIES, load_texts, read_queries
from hf_domain.tasks.sentences import (
    RetrievalTask,
    SentenceTask,
    SimilarityTask,
    rename_metrics,
)
from hf_domain.training.arguments import FineTunerArguments, check_work
from hf_domain.training.cards import (
    SPLIT_NAMES,
    describe_files,
    list_settings,
    make_score,
    tabulate_scores,
    write_command_card,
)
from hf_domain.training.early_stopping import stop_early
from hf_domain.training.run import run_training
from hf_domain.training.run_files import METRICS
from hf_domain.training.task_trainer import choose_learning_rate, limit_splits, locate_example
from hf_domain.training.terminal import (
    format_command,
    hide_load_report,
    log_end,
    log_place,
    log_scores,
    name_metric,
    suggest_task,
)

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer


@dataclass
class SentenceArguments:
    """The encoder and the data of sentence embeddings."""

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
    reference_name_or_path: str | None = field(
        default=None, metadata={"help": "Score this encoder too, such as that before an adaptation; which is better?"}
    )
    early_stopping_patience: int | None = field(
        default=None, metadata={"help": "Stop after this many evaluations without a better score; keep the best."}
    )
    overwrite_output_dir: bool = field(default=False, metadata={"help": "Replace the content of output_dir."})
    verbose: bool = field(default=False, metadata={"help": "Show all arguments and messages of libraries."})
    trust_remote_code: bool = field(default=False, metadata={"help": "Run code that comes with the model."})


def list_files(args: Any, training_args: TrainingArguments) -> dict[str, Any]:
    """Return the file of each split that is trained on or scored; None where no flag names one."""
    wanted = {"train": training_args.do_train, "validation": training_args.do_eval, "test": training_args.do_predict}
    return {split: getattr(args, f"{split}_file") for split, is_wanted in wanted.items() if is_wanted}


def name_texts(args: Any, training_args: TrainingArguments) -> tuple[Any, TrainingArguments]:
    """Return the arguments with the names of passages and queries of a table of BEIR where no flag gives them.

    A run is recorded with digests of the files that its options name. Without these two, a run on another corpus would
    pass for finished.

    Args:
        args: Changed in place.
    """
    files = [file for file in list_files(args, training_args).values() if file]
    if files and files[0].endswith(JUDGED):
        folder = Path(files[0]).absolute().parents[1]
        args.corpus_file = args.corpus_file or str(folder / CORPUS)
        args.queries_file = args.queries_file or str(folder / QUERIES)
    return args, training_args


def load_encoder(name: str, max_seq_length: int, **options: Any) -> "SentenceTransformer":
    """Load an encoder with mean pooling, or a folder of sentence-transformers with its own pooling; in float32.

    Args:
        name: Encoder: a folder or a name on the Hub.
        max_seq_length: Longer texts are truncated to this many tokens.
        options: Options of `SentenceTransformer`.

    Raises:
        ValueError: The length is beyond the encoder's limit, or a weight is not finite.
    """
    from sentence_transformers import SentenceTransformer

    # The cosines of a bare encoder are all close to 1: in bfloat16 most pairs would tie.
    with hide_load_report(is_encoder=True):
        model = SentenceTransformer(name, model_kwargs={"dtype": torch.float32}, **options)
    check_length(model.tokenizer, max_seq_length)  # first, because setting the length replaces the limit
    model.max_seq_length = max_seq_length
    check_weights(model, name)
    return model


def set_best_metric(args: TrainingArguments, deciding: str) -> None:
    """Let the best checkpoint be that of the deciding metric instead of the loss, which the evaluation does not have.

    Raises:
        ValueError: The arguments name another metric.
    """
    name = (args.metric_for_best_model or deciding).removeprefix("eval_")
    if name not in ("loss", deciding):  # Trainer has the loss by default
        raise ValueError(
            f"--metric_for_best_model must be {deciding}, but is {name}. Leave the flag out, which takes it."
        )
    if args.metric_for_best_model:
        args.metric_for_best_model, args.greater_is_better = deciding, True


def make_trainer(
    model: "SentenceTransformer", args: TrainingArguments, pairs: Dataset, evaluator: Any = None
) -> "SentenceTransformerTrainer":
    """Return sentence-transformers' trainer for pairs of texts.

    With a `score`, the loss is the squared error of the cosine. Otherwise a text must find its partner among those of
    the batch.

    Args:
        model: See `load_encoder`.
        args: Without a learning rate they get `FineTuner`'s.
        pairs: See `make_pairs` of the task.
        evaluator: Evaluator on the validation data.
    """
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss, MultipleNegativesRankingLoss

    if args.learning_rate is None:
        args.learning_rate = choose_learning_rate(int(model.get_embedding_dimension() or 0))
    args.num_train_epochs = args.num_train_epochs or 3.0
    has_scores = "score" in pairs.column_names
    # A passage that occurs twice in a batch would count as wrong for one of its own queries.
    sampler = "batch_sampler" if has_scores else "no_duplicates"
    # Trainer finds no tokens to count in a batch of pairs.
    changed = {"hub_token": None, "batch_sampler": sampler, "include_num_input_tokens_seen": "no"}
    model.model_card_data.widget = [
        {"text": next(iter(pairs[0].values()))}
    ]  # otherwise a bar shows the search for some
    own = SentenceTransformerTrainingArguments(**args.to_dict() | changed)
    loss = CosineSimilarityLoss(model) if has_scores else MultipleNegativesRankingLoss(model)
    return SentenceTransformerTrainer(model=model, args=own, train_dataset=pairs, loss=loss, evaluator=evaluator)


def write_card(trainer: "SentenceTransformerTrainer", args: Any, task: SentenceTask, metrics: dict[str, Any]) -> None:
    """Write the card of trained sentence embeddings over sentence-transformers' template.

    Args:
        trainer: Must have saved the model.
        args: Arguments of `hf-domain sentences`.
        metrics: Metrics of all splits, as in all_results.json.
    """
    folder, files = Path(str(trainer.args.output_dir)), [args.train_file]
    if args.train_file.endswith(JUDGED):
        files += [args.corpus_file, args.queries_file]
    split = next((name for name in SPLIT_NAMES if f"{name}_samples" in metrics), None)
    name = next(iter(rename_metrics({task.deciding: 0})))
    scores, results = [], ""
    if split is not None:
        results = f"{tabulate_scores(metrics, split)}\n\nMeasured on the {SPLIT_NAMES[split]} set "
        results += f"({metrics[f'{split}_samples']:,} examples)."
        value = metrics[f"{split}_{name}"]
        scores = [make_score("sentence-similarity", Path(files[0]).name, SPLIT_NAMES[split], name, value)]
    write_command_card(
        folder,
        args.model_name_or_path,
        model_name=folder.resolve().name,
        task="sentence-similarity",
        corpus=describe_files(files, [f"{len(cast(Dataset, trainer.train_dataset)):,} pairs"]),
        settings={"loss": type(trainer.loss).__name__} | list_settings(trainer, metrics, args),
        results=results,
        scores=scores,
        limits="The results come from one run with one seed." if split else "The model was not evaluated.",
        example="This is a text.",
    )


# ----------------------------------------------------------------------------------------------------------- command


def run_sentences(args: SentenceArguments, training_args: FineTunerArguments) -> None:
    """Train an encoder and score it, as the flags say; write its scores, predictions and card.

    Raises:
        ValueError: The data or an option cannot be used.
    """
    check_work(training_args, "do_train", "do_eval", "do_predict")
    if training_args.push_to_hub:
        raise ValueError(
            "--push_to_hub must be left out here: sentence-transformers publishes its folders. Run "
            f"SentenceTransformer({training_args.output_dir!r}).push_to_hub(...) after training."
        )
    require("a task of sentence embeddings", "sentence_transformers")
    task, splits = load_task(args, training_args)
    set_best_metric(training_args, task.deciding)
    options = {"device": training_args.device, "trust_remote_code": args.trust_remote_code}
    model = load_encoder(args.model_name_or_path, args.max_seq_length, **options)
    title = args.reference_name_or_path
    reference = None if title is None else load_encoder(title, args.max_seq_length, **options)
    batch_size, folder = training_args.per_device_eval_batch_size, Path(str(training_args.output_dir))
    metrics: dict[str, Any] = {}
    if training_args.do_train:
        pairs = task.make_pairs(splits["train"])
        evaluator = task.make_evaluator(splits["validation"], batch_size) if training_args.do_eval else None
        trainer = make_trainer(model, training_args, pairs, evaluator)
        if args.early_stopping_patience is not None:
            stop_early(trainer, task.deciding, args.early_stopping_patience)
        run_training(trainer)
        metrics = read_json(folder / METRICS)
    gains = []
    for split, prefix, file in list_predicted(splits, LABELS):
        started = time.perf_counter()
        scores, predictions = task.score(model, splits[split], batch_size)
        metrics |= {f"{prefix}_{name}": value for name, value in scores.items()}
        metrics |= {f"{prefix}_runtime": time.perf_counter() - started, f"{prefix}_samples": len(predictions)}
        write_text(folder / file, format_labels(map(json.dumps, predictions)))
        if title is not None and reference is not None:
            (name,), rows = rename_metrics({task.deciding: 0}), splits[split]
            other, found = task.score(reference, rows, batch_size)
            metrics[f"{prefix}_reference_{name}"] = other[name]
            interval = task.find_gain(rows, predictions, found)
            gains.append(describe_gain(split, name, scores[name], other[name], interval, title))
    write_json(folder / METRICS, metrics)
    if training_args.do_train:
        write_card(trainer, args, task, metrics)
    log_scores(metrics)
    for line in gains:
        logger.info(line)
    if training_args.do_train:
        options = {"model_name_or_path": str(folder), "head": "encoder", "output_dir": f"{folder}-onnx"}
        log_end(training_args, None, format_command("export", **options))
    else:
        log_place("Scores and predictions", str(folder), suggest_task("sentences", [args], f"{folder}-trained"))


def describe_gain(split: str, name: str, own: float, other: float, interval: tuple[float, float], title: str) -> str:
    """Say whether a score is better than that of the reference: if its interval leaves out 0."""
    low, high = interval
    verdict = "better than" if low > 0 else "worse than" if high < 0 else "not clearly different from"
    return (
        f"{split.capitalize()}: the {name_metric(name)} {own:.4f} is {verdict} that of {title}, {other:.4f}: "
        f"{own - other:+.4f}, 95 % interval {low:+.4f} to {high:+.4f}."
    )


def load_task(args: Any, training_args: FineTunerArguments) -> tuple[Any, DatasetDict]:
    """Return the task that the files hold, and its splits."""
    files = list_files(args, training_args)
    if lacking := [split for split, file in files.items() if not file]:
        raise ValueError(f"the split {lacking[0]} must have a file. Give --{lacking[0]}_file.")
    check_held_out(files.get("train"), {f"{split}_file": file for split, file in files.items() if split != "train"})
    if next(iter(files.values())).endswith(JUDGED):
        passages, queries = load_texts(Path(args.corpus_file)), load_texts(Path(args.queries_file))
        rows = {split: read_queries(Path(file), passages, queries) for split, file in files.items()}
        splits = DatasetDict({split: Dataset.from_list(each) for split, each in rows.items()})
        return RetrievalTask(passages), limit_splits(splits, args)
    splits = DatasetDict({split: load_files(file) for split, file in files.items()})
    check_columns(splits, [args.label_column_name], "--label_column_name")
    locate = partial(locate_example, args)
    check_values(splits, args.label_column_name, locate)
    check_spread(splits, args.label_column_name)
    columns = find_split_columns(splits, args.label_column_name, args.text_column_names, locate)
    if len(columns) != 2:
        raise ValueError(f"a similarity needs two columns of text, but the data have {', '.join(columns)}.")
    return SimilarityTask(columns, args.label_column_name), limit_splits(splits, args)

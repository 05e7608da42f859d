"""Train and score sentence embeddings with sentence-transformers, which is imported when a function is called."""

import logging
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from datasets import Dataset, DatasetDict
from transformers import TrainingArguments

from hf_domain.checks import check_metrics, check_weights
from hf_domain.data.columns import check_columns, find_split_columns
from hf_domain.data.corpora import check_length
from hf_domain.data.files import check_held_out, load_files
from hf_domain.extras import require
from hf_domain.safe_io import read_json, write_json
from hf_domain.tasks.labels import check_spread, check_values
from hf_domain.tasks.sentences import Search, Similarity, load_texts
from hf_domain.training.arguments import FineTunerArguments, check_work
from hf_domain.training.run import run_training
from hf_domain.training.run_folder import METRICS
from hf_domain.training.task_trainer import choose_learning_rate, locate_example
from hf_domain.training.terminal import PLACES, describe_metrics, hide_load_report

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer


@dataclass
class SentenceArguments:
    """The encoder and the data of sentence embeddings."""

    model_name_or_path: str = field(metadata={"help": "Encoder: a folder or a name on the Hub."})
    reference_name_or_path: str | None = field(
        default=None, metadata={"help": "Another encoder, such as that before an adaptation: which one is better?"}
    )
    train_file: str | None = field(default=None, metadata={"help": "Training data: pairs, or a table of BEIR (.tsv)."})
    validation_file: str | None = field(default=None, metadata={"help": "Validation data."})
    test_file: str | None = field(default=None, metadata={"help": "Test data."})
    corpus_file: str | None = field(default=None, metadata={"help": "Passages of a table of BEIR: its corpus.jsonl."})
    queries_file: str | None = field(default=None, metadata={"help": "Queries of the table: its queries.jsonl."})
    text_column_names: str | None = field(
        default=None, metadata={"help": "Columns of a pair, as first,second. Default: as in run_classification.py."}
    )
    label_column_name: str = field(default="score", metadata={"help": "Column of scores of pairs."})
    max_seq_length: int = field(default=128, metadata={"help": "Maximum number of tokens of a text."})
    overwrite_output_dir: bool = field(default=False, metadata={"help": "Replace the content of output_dir."})
    verbose: bool = field(default=False, metadata={"help": "Show all arguments and messages of libraries."})
    trust_remote_code: bool = field(default=False, metadata={"help": "Run code that comes with the model."})


def run_sentences(args: SentenceArguments, training_args: FineTunerArguments) -> None:
    """Train an encoder and score it, as the flags say.

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
    best = (training_args.metric_for_best_model or "loss").removeprefix("eval_")
    if best not in ("loss", task.deciding):  # Trainer has the loss by default
        raise ValueError(
            f"--metric_for_best_model must be {task.deciding}, but is {best}. Leave the flag out, which takes it."
        )
    model = load_encoder(args, training_args.device)
    evaluators = {
        prefix: task.make_evaluator(splits[split], prefix, training_args.per_device_eval_batch_size)
        for split, prefix in (("validation", "eval"), ("test", "predict"))
        if split in splits
    }
    metrics: dict[str, Any] = {}

    def score(*_: Any) -> None:
        for evaluator in evaluators.values():
            metrics.update(evaluator(model))
        check_metrics(metrics)

    folder = Path(str(training_args.output_dir))
    if training_args.do_train:
        pairs = task.make_pairs(splits["train"])
        trainer = make_trainer(model, training_args, pairs, evaluators.get("eval"), task.deciding)
        run_training(trainer, finish=score)  # before the model is saved: its card shows the scores
        metrics |= read_json(folder / METRICS)
    else:
        score()
    if args.reference_name_or_path is not None:
        metrics |= compare_with_reference(args, training_args.device, evaluators, task.deciding, metrics)
    write_json(folder / METRICS, metrics)
    for split in PLACES:
        if found := {name: value for name, value in metrics.items() if name.startswith(f"{split}_")}:
            logger.info(describe_metrics(split, found))
    logger.info(f"{'Model and card' if training_args.do_train else 'Results'}: {folder}")


def compare_with_reference(
    args: SentenceArguments, device: Any, evaluators: dict[str, Any], deciding: str, metrics: dict[str, Any]
) -> dict[str, float]:
    """Score the reference on the same data, and say by how much the encoder is better or worse."""
    reference = load_encoder(replace(args, model_name_or_path=str(args.reference_name_or_path)), device)
    scores = {}
    for prefix, evaluator in evaluators.items():
        own, other = metrics[f"{prefix}_{deciding}"], evaluator(reference)[f"{prefix}_{deciding}"]
        said = "better" if own > other else "worse"
        logger.info(
            f"{PLACES[prefix]}: {deciding} {own:.4f}, {abs(own - other):.4f} {said} than {args.reference_name_or_path}"
        )
        scores[f"{prefix}_reference_{deciding}"] = other
    return scores


def load_task(args: SentenceArguments, training_args: TrainingArguments) -> tuple[Similarity | Search, DatasetDict]:
    """Return the task that the files hold, and its splits."""
    wanted = {"train": training_args.do_train, "validation": training_args.do_eval, "test": training_args.do_predict}
    files = {split: getattr(args, f"{split}_file") for split, is_wanted in wanted.items() if is_wanted}
    if lacking := [split for split, file in files.items() if not file]:
        raise ValueError(f"the split {lacking[0]} must have a file. Give --{lacking[0]}_file.")
    check_held_out(files.get("train"), {f"{split}_file": file for split, file in files.items() if split != "train"})
    splits = DatasetDict({split: load_files(file) for split, file in files.items()})
    locate = partial(locate_example, cast(Any, args))
    if "query-id" in next(iter(splits.values())).column_names:
        if not (args.corpus_file and args.queries_file):
            raise ValueError("a table of judgments needs its texts. Give --corpus_file and --queries_file.")
        check_columns({files[split]: rows for split, rows in splits.items()}, ["query-id", "corpus-id", "score"])
        check_values(splits, "score", locate)
        search = Search(load_texts(args.corpus_file), load_texts(args.queries_file))
        for split, rows in splits.items():
            search.check(files[split], rows)
        return search, splits
    check_columns(splits, [args.label_column_name], "--label_column_name")
    check_values(splits, args.label_column_name, locate)
    check_spread(splits, args.label_column_name)
    columns = find_split_columns(splits, args.label_column_name, args.text_column_names, locate)
    if len(columns) != 2:
        raise ValueError(f"a similarity needs two columns of text, but the data have {', '.join(columns)}.")
    return Similarity(columns, args.label_column_name), splits


def load_encoder(args: SentenceArguments, device: Any) -> "SentenceTransformer":
    """Load an encoder with mean pooling, or a folder of sentence-transformers with its own pooling; in float32.

    Raises:
        ValueError: The length is beyond the encoder's limit, or a weight is not finite.
    """
    from sentence_transformers import SentenceTransformer

    # The cosines of a bare encoder are all close to 1: in bfloat16 most pairs would tie.
    options: dict[str, Any] = {"model_kwargs": {"dtype": torch.float32}, "trust_remote_code": args.trust_remote_code}
    with hide_load_report(is_encoder=True):
        model = SentenceTransformer(args.model_name_or_path, device=str(device), **options)
    check_length(model.tokenizer, args.max_seq_length)  # first, because setting the length replaces the limit
    model.max_seq_length = args.max_seq_length
    check_weights(model, args.model_name_or_path)
    return model


def make_trainer(
    model: "SentenceTransformer", args: TrainingArguments, pairs: Dataset, evaluator: Any, deciding: str
) -> "SentenceTransformerTrainer":
    """Return sentence-transformers' trainer for pairs of texts.

    With a `score`, the loss puts the cosines in the order of the scores. Otherwise a text must find its partner among
    those of the batch.

    Args:
        args: Without a learning rate they get `FineTuningTrainer`'s.
        evaluator: That of the validation data, or None.
        deciding: Its metric that chooses the best checkpoint.
    """
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.sentence_transformer.losses import CoSENTLoss, MultipleNegativesRankingLoss

    if args.learning_rate is None:
        args.learning_rate = choose_learning_rate(int(model.get_embedding_dimension() or 0))
    args.num_train_epochs = args.num_train_epochs or 3.0
    has_scores = "score" in pairs.column_names
    # A passage that occurs twice in a batch would count as wrong for one of its own queries.
    sampler = "batch_sampler" if has_scores else "no_duplicates"
    # Trainer finds no tokens to count in a batch of pairs.
    changed: dict[str, Any] = {"hub_token": None, "batch_sampler": sampler, "include_num_input_tokens_seen": "no"}
    if args.metric_for_best_model:  # by default the loss, which an evaluator does not measure
        changed |= {"metric_for_best_model": deciding, "greater_is_better": True}
    # Otherwise a bar shows the search for examples.
    model.model_card_data.widget = [{"text": next(iter(pairs[0].values()))}]
    own = SentenceTransformerTrainingArguments(**args.to_dict() | changed)
    loss = CoSENTLoss(model) if has_scores else MultipleNegativesRankingLoss(model)
    return SentenceTransformerTrainer(model=model, args=own, train_dataset=pairs, loss=loss, evaluator=evaluator)

"""Train sentence embeddings with the trainer of sentence-transformers, which is imported when a function is called."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from datasets import Dataset
from transformers import TrainingArguments

from hf_domain.checks import check_weights
from hf_domain.data.corpora import check_length
from hf_domain.tasks.retrieval import JUDGED, find_texts
from hf_domain.tasks.sentences import SentenceTask, rename_metrics
from hf_domain.training.cards import (
    SPLIT_NAMES,
    describe_data_license,
    describe_files,
    list_settings,
    make_score,
    tabulate_scores,
    write_command_card,
)
from hf_domain.training.task_trainer import choose_learning_rate
from hf_domain.training.terminal import hide_load_report

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer


def name_texts(args: Any, training_args: TrainingArguments) -> tuple[Any, TrainingArguments]:
    """Return the arguments with the names of passages and queries of a table of BEIR where no flag gives them.

    A run is recorded with digests of the files that its options name. Without these two, a run on another corpus would
    pass for finished.

    Args:
        args: Changed in place.
    """
    wanted = {"train": training_args.do_train, "validation": training_args.do_eval, "test": training_args.do_predict}
    files = [file for split, is_wanted in wanted.items() if is_wanted and (file := getattr(args, f"{split}_file"))]
    if files and files[0].endswith(JUDGED):
        corpus, queries = find_texts(Path(files[0]))
        args.corpus_file, args.queries_file = args.corpus_file or str(corpus), args.queries_file or str(queries)
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
        pairs: See `SentenceTask.make_pairs`.
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
    scores = []
    if split is not None:
        value = metrics[f"{split}_{name}"]
        scores = [make_score("sentence-similarity", Path(files[0]).name, SPLIT_NAMES[split], name, value)]
    write_command_card(
        folder,
        [args.model_name_or_path],
        model_name=folder.resolve().name,
        task="sentence-similarity",
        corpus=describe_files(files, [f"{len(cast(Dataset, trainer.train_dataset)):,} pairs"]),
        settings={"loss": type(trainer.loss).__name__} | list_settings(trainer, metrics, args),
        results_table=tabulate_scores(metrics, split) if split else None,
        results_note=f"Measured on the {SPLIT_NAMES[split]} set ({metrics[f'{split}_samples']:,} examples)."
        if split
        else "",
        scores=scores,
        limits="The results come from one run with one seed." if split else "The model was not evaluated.",
        example="This is a text.",
        trains_on=describe_data_license(),
    )

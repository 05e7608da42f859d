"""Extractive question answering: questions and contexts to features, logits to answers.

A context that exceeds the model's limit is cut into overlapping windows; each window is a feature.
"""

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset, DatasetDict, List, Value
from transformers import AutoModelForQuestionAnswering, BatchEncoding, PreTrainedTokenizerBase
from transformers.loss.loss_utils import ForQuestionAnsweringLoss

from hf_domain.data.columns import Locate, check_columns, name_example, warn_of_shared_rows
from hf_domain.data.squad import list_answers, list_questions
from hf_domain.tasks.baseline import compare_with_baseline
from hf_domain.tasks.classification import tokenize_texts
from hf_domain.tasks.kind import DataArguments, Rows, TaskKind, register_kind
from hf_domain.tasks.labels import HELD_OUT, draw_validation
from hf_domain.tasks.metrics import ANSWER_METRICS, compute_squad_metrics
from hf_domain.tasks.outputs import ANSWERS, read_answers
from hf_domain.tasks.scores import Predictions

logger = logging.getLogger(__name__)
QUESTION_COLUMNS = ["question", "context"]


@dataclass
class QuestionAnsweringArguments(DataArguments):
    """The data of extractive question answering, and how to choose an answer."""

    max_seq_length: int | None = field(
        default=None,
        metadata={"help": "Maximum tokens of question and window. Default: 384, or the model's limit if it is less."},
    )
    doc_stride: int | None = field(
        default=None,
        metadata={"help": "Number of tokens that neighboring windows of a context share. Default: a third."},
    )
    n_best_size: int = field(default=20, metadata={"help": "Number of candidate answers to keep for each question."})
    max_answer_length: int = field(default=30, metadata={"help": "Maximum number of tokens of an answer."})
    version_2_with_negative: bool | None = field(
        default=None,
        metadata={"help": "Some questions have no answer. Default: on if some of the training data have none."},
    )
    null_score_diff_threshold: float = field(
        default=0.0, metadata={"help": "Predict no answer when its score exceeds the best answer's by this."}
    )


@register_kind
class QuestionAnswering(TaskKind):
    """Questions and contexts; an answer is a part of the context."""

    name, head, pipeline_tag = "qa", "ForQuestionAnswering", "question-answering"
    auto_class, arguments = AutoModelForQuestionAnswering, QuestionAnsweringArguments
    needs_train, default_length = False, 384
    args: QuestionAnsweringArguments
    command, plan_metrics = "qa", ("f1", "exact_match")
    columns, texts = ("id", "context", "question", "answers"), ("context", "question")
    keeps_length = True

    @classmethod
    def fits(cls, columns: set[str]) -> bool:
        """Return whether there are questions with contexts and answers, or articles with paragraphs."""
        return columns >= {*QUESTION_COLUMNS, "answers"} or "paragraphs" in columns

    @classmethod
    def hold_out(cls, rows: Dataset, label_column: str | None = None, share: float = HELD_OUT) -> list[int]:
        """Draw the questions on a fifth of the contexts, or a fifth of the articles."""
        if "paragraphs" in rows.column_names:
            return draw_validation([set()] * len(rows), share)
        return draw_contexts(rows["context"][:], share)

    def read(self, splits: DatasetDict, locate: Locate = name_example) -> DatasetDict:
        """Number questions without an id, unify answers, and check that the contexts contain them."""
        splits = DatasetDict({split: unify_rows(rows) for split, rows in splits.items()})
        check_columns(splits, ["id", *QUESTION_COLUMNS, "answers"], optional_in_test="answers")
        self.text_columns = QUESTION_COLUMNS
        check_questions(splits, locate)
        warn_of_shared_rows(splits, QUESTION_COLUMNS)
        if self.args.version_2_with_negative is None:
            known = splits.get("train", next(iter(splits.values())))
            answers = known["answers"] if "answers" in known.column_names else []
            self.args.version_2_with_negative = any(not each["text"] for each in answers)
        return splits

    def check(self, splits: DatasetDict, does_train: bool) -> None:
        """Check that training has questions with answers."""
        if does_train and not any(answers["text"] for answers in splits["train"]["answers"]):
            raise ValueError("training needs questions with answers, but train has none. Add such questions.")

    def measure_loss(self, config: Any, predictions: Any, labels: Any, examples: Dataset) -> float:
        """See `TaskKind`; the padding of a batch has no part in it."""
        lengths = torch.tensor([len(ids) for ids in examples["input_ids"]])
        start, end = (torch.from_numpy(logits).float() for logits in predictions[:2])
        padding = torch.arange(start.shape[1]) >= lengths[:, None]
        logits = (each.masked_fill(padding, torch.finfo(torch.float32).min) for each in (start, end))
        return float(ForQuestionAnsweringLoss(*logits, *map(torch.from_numpy, labels)))

    def list_metrics(self) -> list[str]:
        """Return SQuAD's metrics."""
        return ANSWER_METRICS

    def prepare(self, rows: Dataset, text_columns: str | None, config: Any) -> Dataset:
        """Number questions without an id, and take the options of the training."""
        self.text_columns, args = QUESTION_COLUMNS, self.args
        if missing := [name for name in QUESTION_COLUMNS if name not in rows.column_names]:
            raise ValueError(
                f"the data must have the columns question and context, but lack {', '.join(missing)}. Rename columns."
            )
        rows = unify_rows(rows)
        check_questions({"test": rows.select_columns(["id", *QUESTION_COLUMNS])})
        args.version_2_with_negative = getattr(config, "version_2_with_negative", False)
        args.null_score_diff_threshold = getattr(config, "null_score_diff_threshold", 0.0)
        # Windows of another length than the training's share a quarter.
        stride = getattr(config, "trained_stride", None)
        is_trained = stride is not None and args.max_seq_length == config.trained_length
        args.doc_stride = stride if is_trained else min(128, (args.max_seq_length or 0) // 4)
        return rows

    def use(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Keep the tokenizer, and choose what windows share."""
        self.tokenizer = tokenizer
        if self.args.doc_stride is None:
            self.args.doc_stride = (self.args.max_seq_length or 0) // 3  # as BERT's for SQuAD, 128 of 384

    def tokenize(
        self, batch: Any, tokenizer: PreTrainedTokenizerBase | None = None, does_train: bool = False
    ) -> BatchEncoding:
        """Cut contexts into windows; a memory with its own tokenizer reads the same ones."""
        args = self.args
        options: Any = {"max_seq_length": args.max_seq_length, "pad_to_max_length": args.pad_to_max_length}
        assert args.doc_stride is not None and args.max_seq_length is not None
        windows = tokenize_questions(
            batch, self.tokenizer, doc_stride=args.doc_stride, drops_lost=does_train, **options
        )
        if tokenizer is None:
            return windows
        questions, contexts = cut_windows(batch, windows)
        texts: Any = [questions or [""], contexts or [""]]
        encodings = tokenize_texts(texts, tokenizer, **options)
        return encodings if questions else select(encodings, [])

    def check_examples(self, split: str, rows: Dataset, examples: Dataset) -> None:
        """Name the questions that are left out, and raise unless some remain."""
        args, found = self.args, {*(examples["example_id"] if len(examples) else [])}
        if not (lost := [str(name) for name in rows["id"] if name not in found]):
            return
        what = (
            f"a question must leave room for more than doc_stride={args.doc_stride} of max_seq_length="
            f"{args.max_seq_length} tokens, and a window must show the whole first answer of a question to train on"
        )
        named = f"{', '.join(lost[:5])}{', ...' if len(lost) > 5 else ''}"
        if not found:
            raise ValueError(
                f"{what}, but none of {split} does: {named}. Raise --max_seq_length, or shorten questions."
            )
        fate = "are left out" if split == "train" else "get no answer"
        logger.warning(f"{len(lost):,} of {len(rows):,} questions of {split} {fate}, because {what}: {named}")

    def decode(self, output: Any, rows: Dataset, examples: Dataset, config: Any) -> list[dict[str, Any]]:
        """Return the answer to each question, "" for none, with its probability among the best twenty.

        With `id`, `n_best` and perhaps `null_score_diff`, see `find_answers`.
        """
        args = self.args
        options: Any = {name: getattr(args, name) for name in ("n_best_size", "max_answer_length")}
        options["null_score_diff_threshold"] = args.null_score_diff_threshold
        options["with_no_answer"] = bool(args.version_2_with_negative)
        decoded = []
        for answer in find_answers(rows, examples, *output.predictions[:2], **options):
            # With a threshold other than 0, the answer is not always the most probable candidate.
            probabilities = [each["probability"] for each in answer["n_best"] if each["text"] == answer["text"]]
            text = answer.pop("text")
            decoded.append({**answer, "prediction": text, "probabilities": next(iter(probabilities), None)})
        return decoded

    def score(self, output: Any, rows: Dataset, examples: Dataset, config: Any) -> dict[str, Any]:
        """Return SQuAD's metrics, and those of no answer at all; none without known answers."""
        if "answers" not in rows.column_names:
            return {}
        references = {row["id"]: row["answers"]["text"] for row in rows}
        found = {row["id"]: row["prediction"] for row in self.decode(output, rows, examples, config)}
        baseline = compute_squad_metrics(dict.fromkeys(references, ""), references)
        return compare_with_baseline(compute_squad_metrics(found, references), baseline, self.deciding)

    def list_files(self, decoded: list[dict[str, Any]], split: str) -> dict[str, str]:
        """Return the files of answers, named as in the scripts of transformers."""
        parts = {ANSWERS: "prediction", "nbest_predictions.json": "n_best"}
        if self.args.version_2_with_negative:
            parts["null_odds.json"] = "null_score_diff"
        return {
            f"{split}_{name}": json.dumps({row["id"]: row[part] for row in decoded}, indent=4, ensure_ascii=False)
            for name, part in parts.items()
        }

    @classmethod
    def list_constants(cls, train: Rows) -> list[Any]:
        """Return no answer."""
        return [""]

    @classmethod
    def read_predictions(cls, folder: Path, rows: Rows) -> list[Any]:
        """Return the answer to each question."""
        answers = read_answers(folder)
        return [answers[str(row["id"])] for row in rows]

    @classmethod
    def pair(cls, predicted: Sequence[Any], rows: Rows, metric: str, ignored: Sequence[str] = ()) -> Predictions:
        """Score the answer to each question as SQuAD does."""
        pairs = [({"": answer}, {"": row["answers"]["text"]}) for answer, row in zip(predicted, rows, strict=True)]
        return Predictions(metric, scores=[compute_squad_metrics(*pair)[metric] / 100 for pair in pairs])


def draw_contexts(contexts: Sequence[str], share: float = HELD_OUT) -> list[int]:
    """Draw the questions on a share of the contexts: a context that was trained on would flatter the validation.

    Raises:
        ValueError: There are fewer than three contexts.
    """
    distinct = [*dict.fromkeys(contexts)]
    if len(distinct) < 3:
        raise ValueError(
            f"a table of questions must have three contexts, so that one can be held out for validation, but has "
            f"{len(distinct)}. Add rows, or pass the splits train and validation."
        )
    drawn = {distinct[number] for number in draw_validation([set()] * len(distinct), share)}
    return [row for row, context in enumerate(contexts) if context in drawn]


def unify_rows(rows: Dataset) -> Dataset:
    """Return rows with an id each, and with answers in SQuAD's form; articles with paragraphs become questions.

    Answers in an unknown form are unchanged; `check_questions` refuses them.
    """
    if "paragraphs" in rows.column_names:
        rows = Dataset.from_list(list_questions(rows))
    if "id" not in rows.column_names:
        rows = rows.add_column("id", [str(row) for row in range(len(rows))])
    if not {"answers", "context"} <= {*rows.column_names}:
        return rows
    unified = [list_answers(*each) for each in zip(rows["answers"], rows["context"], strict=True)]
    if None in unified or unified == rows["answers"][:]:
        return rows
    feature = {"text": List(Value("string")), "answer_start": List(Value("int64"))}
    return rows.remove_columns("answers").add_column("answers", unified, feature=feature)


def tokenize_questions(
    examples: dict[str, list],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_seq_length: int = 384,
    doc_stride: int = 128,
    pad_to_max_length: bool = False,
    drops_lost: bool = False,
) -> BatchEncoding:
    """Make the features of a batch of questions.

    A question that leaves too little room for the context has none.

    Args:
        examples: Columns `id`, `question`, `context` and, if known, `answers`: {"text": [...], "answer_start": [...]},
            both empty for a question without an answer. The first answer is the target. If there are `passage_ids`
            and `passage_scores`, every window of the question gets them.
        tokenizer: A fast tokenizer that pads on the right.
        max_seq_length: Maximum number of tokens of a feature. Default: BERT's for SQuAD.
        doc_stride: Number of tokens that two neighboring windows share. Default: BERT's for SQuAD.
        pad_to_max_length: Pad here instead of per batch.
        drops_lost: Leave out a question whose first answer no window shows: it would be learned as one without.

    Returns:
        The model's inputs; `example_id`; `offset_mapping`, the characters of the context (None for other tokens); and
        with answers `start_positions` and `end_positions`, the first and last token of the answer. If a window does not
        contain the whole answer, both point to the start token at 0, which means "no answer".

    Raises:
        ValueError: The tokenizer is slow or pads on the left, which moves the start token.
    """
    if not tokenizer.is_fast or tokenizer.padding_side != "right":
        raise ValueError(
            "question answering needs a fast tokenizer that pads on the right, but the encoder's is "
            f"{type(tokenizer).__name__} with padding_side={tokenizer.padding_side}. Use another encoder."
        )
    # Some questions begin with spaces, which would become tokens.
    questions = [question.strip() for question in examples["question"]]
    lengths = map(len, tokenizer(questions, add_special_tokens=False)["input_ids"])
    room = max_seq_length - tokenizer.num_special_tokens_to_add(pair=True)
    fitting = [row for row, length in enumerate(lengths) if room - length > doc_stride]
    features = tokenizer(
        [questions[row] for row in fitting] or [""],
        [examples["context"][row] for row in fitting] or [""],
        truncation="only_second",
        max_length=max_seq_length,
        stride=doc_stride if fitting else 0,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        padding="max_length" if pad_to_max_length else False,
    )
    rows = [fitting[row] for row in features.pop("overflow_to_sample_mapping") if fitting]
    features["example_id"] = [examples["id"][row] for row in rows]
    for name in {"passage_ids", "passage_scores"} & {*examples}:
        features[name] = [examples[name][row] for row in rows]
    features["offset_mapping"] = [
        [
            offsets if sequence == 1 else None
            for offsets, sequence in zip(window, features.sequence_ids(index), strict=True)
        ]
        for index, window in enumerate(features["offset_mapping"])
    ]
    if "answers" in examples:
        before, after = [None, *rows[:-1]], [*rows[1:], None]
        spans = [
            _find_answer(offsets, examples["answers"][row], row != earlier, row != later)
            for offsets, row, earlier, later in zip(features["offset_mapping"], rows, before, after, strict=False)
        ]
        features["start_positions"], features["end_positions"] = ([span[end] for span in spans] for end in (0, 1))
    lost = set()
    if drops_lost and "answers" in examples:
        shown = {row for row, first in zip(rows, features["start_positions"], strict=True) if first}
        lost = {row for row in rows if examples["answers"][row]["text"]} - shown
    kept = [index for index, row in enumerate(rows) if row not in lost]
    return features if len(kept) == len(features["input_ids"]) else select(features, kept)


def cut_windows(examples: dict[str, list], features: BatchEncoding) -> list[list[str]]:
    """Return the question and the part of the context of every feature of `tokenize_questions`, as two columns."""
    rows = {name: row for row, name in enumerate(examples["id"])}
    questions, contexts = [], []
    for name, offsets in zip(features["example_id"], features["offset_mapping"], strict=True):
        covered = [offset for offset in offsets if offset is not None]
        start, end = (covered[0][0], covered[-1][1]) if covered else (0, 0)
        questions.append(examples["question"][rows[name]].strip())
        contexts.append(examples["context"][rows[name]][start:end])
    return [questions, contexts]


def check_questions(splits: Mapping[str, Iterable[dict[str, Any]]], locate: Locate = name_example) -> None:
    """Raise a ValueError unless every question has a unique id and every answer is at its place in the context.

    Args:
        splits: Rows with `id`, `question`, `context` and, if known, `answers`.
    """
    for split, examples in splits.items():
        ids = set()
        for row, example in enumerate(examples):
            for column in ("id", "question", "context"):
                if column in example and (example[column] is None or (column != "context" and example[column] == "")):
                    raise ValueError(
                        f"every question must have an id, a text and a context, but {column} is empty in "
                        f"{locate(split, row)}. Fill it in or drop the question."
                    )
            if example["id"] in ids:
                raise ValueError(
                    f"every question must have a unique id, but {example['id']} occurs twice in {split}, the second "
                    f"time in {locate(split, row)}. Give the questions different ids."
                )
            ids.add(example["id"])
            if "answers" in example:
                _check_answers(example["answers"], example["context"], partial(locate, split, row))


def _check_answers(answers: Any, context: str, locate: Callable[[], str]) -> None:
    columns: list[Any] = [answers.get(name) for name in ("text", "answer_start")] if isinstance(answers, dict) else []
    if len(columns) < 2 or not all(isinstance(column, list) for column in columns) or len({*map(len, columns)}) > 1:
        raise ValueError(
            "answers must be two lists of equal length, text and answer_start, as in SQuAD (both empty without an "
            f"answer), but are {answers} in {locate()}. Correct the answers or drop the question."
        )
    for text, start in zip(*columns, strict=True):
        if not isinstance(text, str) or not text.strip() or not isinstance(start, int):
            raise ValueError(
                f"an answer must be a text and the position of its first character, but is {text!r} at {start!r} in "
                f"{locate()}. Correct the answer; leave both lists empty for a question without an answer."
            )
        if start < 0 or context[start : start + len(text)] != text:
            found = f"has {context[start : start + len(text)]!r} there" if start >= 0 else "does not"
            raise ValueError(
                f"the context must contain the answer {text!r} at answer_start, counted in characters, but {found}, in "
                f"{locate()}. Correct the answer or drop the question."
            )


def find_answers(
    examples: Iterable[dict[str, Any]],
    features: Iterable[dict[str, Any]],
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    *,
    n_best_size: int = 20,
    max_answer_length: int = 30,
    with_no_answer: bool = False,
    null_score_diff_threshold: float = 0.0,
) -> list[dict[str, Any]]:
    """Choose the answers with the highest score, the sum of the logits of the first and the last token.

    Args:
        examples: Rows with `id` and `context`.
        features: Their windows, in the order of the logits, with `example_id` and `offset_mapping`.
        start_logits: [features, length]; at least as long as the longest feature.
        end_logits: [features, length].
        n_best_size: Number of answers to keep for each question.
        max_answer_length: Maximum number of tokens of an answer.
        with_no_answer: A question may have no answer (SQuAD 2). The score of "no answer" is the lowest score that any
            window gives to its start token.
        null_score_diff_threshold: "No answer" is chosen if its score exceeds the best answer's by more than this.

    Returns:
        For each example a dict: `id`; `text`, the chosen answer, "" for none; and `n_best`, up to `n_best_size` dicts
        with `text`, `score` and `probability`, best first. With `with_no_answer`, "no answer" is always in `n_best`,
        and `null_score_diff` is its score minus that of the best answer.
    """
    windows = defaultdict(list)
    for row, feature in enumerate(features):
        windows[feature["example_id"]].append((row, feature["offset_mapping"]))
    answers = []
    for example in examples:
        scores: dict[tuple[int, int], float] = {}  # overlapping windows have the same spans
        null_scores = []
        for row, offsets in windows[example["id"]]:
            start, end = start_logits[row, : len(offsets)], end_logits[row, : len(offsets)]
            null_scores.append(float(start[0] + end[0]))
            for first, last, score in _find_spans(start, end, offsets, n_best_size, max_answer_length):
                span = offsets[first][0], offsets[last][1]
                scores[span] = max(score, scores.get(span, score))
        candidates: list[dict[str, Any]] = [
            {"text": example["context"][slice(*span)], "score": score}
            for span, score in sorted(scores.items(), key=lambda item: -item[1])[:n_best_size]
        ]
        answer: dict[str, Any] = {"id": example["id"], "text": candidates[0]["text"] if candidates else ""}
        if with_no_answer:
            null_score = min(null_scores, default=0.0)  # a question that fits no window has none
            answer["null_score_diff"] = null_score - candidates[0]["score"] if candidates else float("inf")
            if answer["null_score_diff"] > null_score_diff_threshold:
                answer["text"] = ""
            candidates = [*candidates[: n_best_size - 1], {"text": "", "score": null_score}]
            candidates.sort(key=lambda candidate: -candidate["score"])
        weights = np.exp([candidate["score"] - candidates[0]["score"] for candidate in candidates])
        for candidate, probability in zip(candidates, weights / weights.sum(), strict=True):
            candidate["probability"] = float(probability)
        answers.append({**answer, "n_best": candidates})
    return answers


def select(features: BatchEncoding, windows: Sequence[int]) -> BatchEncoding:
    """Return some of the windows."""
    return BatchEncoding({name: [values[index] for index in windows] for name, values in features.items()})


def _find_answer(
    offsets: list[tuple[int, int] | None], answers: dict[str, list], is_first: bool, is_last: bool
) -> tuple[int, int]:
    """Return the first and the last token that overlap the first answer, or the start token twice.

    Characters without a token, such as U+200B, may begin or end the answer.

    Args:
        offsets: Characters of each token of the window, None outside of the context.
        answers: See `tokenize_questions`.
        is_first: Whether no other window shows earlier tokens of the context.
        is_last: Whether no other window shows later ones.
    """
    if not answers["text"]:
        return 0, 0
    text, start = answers["text"][0], answers["answer_start"][0]
    start, end = start + len(text) - len(text.lstrip()), start + len(text.rstrip())
    shown = [(token, *offset) for token, offset in enumerate(offsets) if offset is not None]
    inside = [each for each in shown if each[1] < end and start < each[2]]
    if not inside:
        return 0, 0
    first, last = inside[0], inside[-1]
    begins = first[1] <= start or first != shown[0] or is_first
    ends = last[2] >= end or last != shown[-1] or is_last
    return (first[0], last[0]) if begins and ends else (0, 0)


def _find_spans(
    start: np.ndarray, end: np.ndarray, offsets: list, n_best_size: int, max_answer_length: int
) -> list[tuple[int, int, float]]:
    """Return the best spans of one window: first token, last token, score."""
    in_context = np.array([offset is not None for offset in offsets])
    start, end = np.where(in_context, start, -np.inf), np.where(in_context, end, -np.inf)
    # Row i has the scores of the spans that begin at token i; column j, of spans of j + 1 tokens.
    ends = np.pad(end, (0, max_answer_length - 1), constant_values=-np.inf)
    scores = start[:, None] + np.lib.stride_tricks.sliding_window_view(ends, max_answer_length)
    best = np.argsort(-scores, axis=None)[:n_best_size]
    firsts, lengths = np.unravel_index(best, scores.shape)
    return [
        (int(first), int(first + length), float(scores[first, length]))
        for first, length in zip(firsts, lengths, strict=True)
        if np.isfinite(scores[first, length])
    ]

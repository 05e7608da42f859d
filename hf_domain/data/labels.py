"""Labels of a task: collecting them, checking the splits, and moving them from words to tokens."""

import math
from collections.abc import Callable, Iterable
from typing import Any

from datasets import ClassLabel, Dataset, DatasetDict, List
from tokenizers.pre_tokenizers import ByteLevel
from transformers import BatchEncoding, EvalPrediction, PreTrainedTokenizerBase
from transformers.trainer_utils import PredictionOutput

Locate = Callable[[str, int], str]
"""Says where a row of a split stands, for a message."""


def name_example(split: str, row: int) -> str:
    """Name a row of a split when its file and line are unknown."""
    return f"example {row} of {split}"


def find_labels(splits: DatasetDict, column: str, locate: Locate = name_example) -> tuple[list[str], dict[Any, int]]:
    """Collect the labels of a task and check that every split keeps to them.

    Args:
        splits: The splits of the task; the first one, train, says which labels exist. Another one may have none.
        column: The column of labels, or of lists of labels.
        locate: Says where an example stands, for messages.

    Returns:
        The names of the labels in the order of their ids: as the dataset declares them, otherwise sorted. And the id of
        every value of the column.

    Raises:
        ValueError: An example has no label, labels are of several kinds, or a split has labels that the first one
            lacks.
    """
    (first, train), *others = splits.items()
    feature = train.features[column]
    feature = feature.feature if isinstance(feature, List) else feature
    found = {
        split: _find_values(data, column, split, locate) for split, data in splits.items() if column in data.features
    }
    if isinstance(feature, ClassLabel):
        names, ids = feature.names, {number: number for number in range(feature.num_classes)}
    else:
        values = sorted(found[first])
        names, ids = [str(value) for value in values], {value: number for number, value in enumerate(values)}
    for split, _ in others:
        unknown = {str(value): row for value, row in found.get(split, {}).items() if value not in ids}
        if unknown:
            raise ValueError(
                f"every label of {split} must occur in {first}, which has {', '.join(names)}, but "
                f"{', '.join(sorted(unknown))} does not, first in {locate(split, min(unknown.values()))}. Relabel "
                f"or drop these examples of {split}, or add such examples to {first}."
            )
    return names, ids


def _find_values(dataset: Dataset, column: str, split: str, locate: Locate) -> dict[Any, int]:
    """Return each value of a column of labels with the first row that has it."""
    rows: dict[Any, int] = {}
    for row, labels in enumerate(dataset[column]):
        for value in labels if isinstance(labels, list) else [labels]:
            if _is_missing(value):
                told = "NaN" if isinstance(value, float) else "empty"
                raise ValueError(
                    f"Every example must have a label, but {column} is {told} in {locate(split, row)}. "
                    "Label the example or drop it."
                )
            rows.setdefault(value, row)
    kinds = {isinstance(value, str): (row, value) for value, row in reversed(rows.items())}
    if len(kinds) > 1:
        row, value = max(kinds.values(), key=lambda found: found[0])
        raise ValueError(
            f"Labels must be all names or all numbers, but {column} holds both; {locate(split, row)} has {value!r}. "
            "Put numbers in quotes, or give every label a name."
        )
    return rows


def _is_missing(value: Any) -> bool:
    """Return whether a label is empty or no number."""
    return value is None or (not value.strip() if isinstance(value, str) else value != value)


def check_values(splits: DatasetDict, column: str, locate: Locate = name_example) -> None:
    """Raise unless the labels of a regression are finite numbers.

    Args:
        splits: The splits of the task; another one than the first may have no labels.
        locate: Says where an example stands, for messages.

    Raises:
        ValueError: A value is missing, no number, or infinite.
    """
    for split, dataset in splits.items():
        for row, value in enumerate(dataset[column] if column in dataset.column_names else []):
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                told = "empty" if value is None else repr(value)
                raise ValueError(
                    f"Every example of a regression must have a finite number, but {column} is {told} in "
                    f"{locate(split, row)}. Correct the value or drop the example."
                )


def check_words(splits: DatasetDict, word_column: str, tag_column: str, locate: Locate = name_example) -> None:
    """Raise unless every word of every sentence is a text and has a tag.

    Args:
        locate: Says where an example stands, for messages.

    Raises:
        ValueError: A column holds no lists, or a sentence has an empty word or more or fewer tags than words.
    """
    for split, dataset in splits.items():
        for column in (word_column, tag_column):
            if not isinstance(feature := dataset.features[column], List):
                raise ValueError(
                    f"Words and tags must be lists, one tag for each word, but {column} of {split} holds {feature}. "
                    "Split the texts into words, or name another column."
                )
        sentences = dataset.select_columns([word_column, tag_column])
        for row, sentence in enumerate(sentences):
            words, tags = sentence[word_column], sentence[tag_column]
            if words is None or not all(isinstance(word, str) for word in words):
                raise ValueError(
                    f"Words must be a list of texts, but {word_column} is {words} in {locate(split, row)}. "
                    "Correct the sentence or drop it."
                )
            if tags is not None and len(tags) != len(words):
                raise ValueError(
                    f"Every word must have a tag, but there are {len(tags)} tags for {len(words)} words in "
                    f"{locate(split, row)}. Correct the sentence or drop it."
                )


def check_variety(labels: Iterable[Any], column: str) -> None:
    """Raise if there is nothing to learn: all labels are the same.

    Args:
        labels: What the examples of train have; a list stands for a set of labels.

    Raises:
        ValueError: All labels are the same.
    """
    values = iter(labels)
    first = next(values, None)
    first = sorted(first) if isinstance(first, list) else first
    if all((sorted(value) if isinstance(value, list) else value) == first for value in values):
        raise ValueError(
            f"Training needs at least two different labels, but {column} is {first!r} everywhere in train. "
            "Check the column, or add examples with other labels."
        )


def find_ids(names: str | None, label_names: list[str]) -> list[int]:
    """Look up labels by name.

    Args:
        names: As a,b; or nothing.
        label_names: All labels, in the order of their ids.

    Returns:
        The ids.

    Raises:
        ValueError: There is no such label.
    """
    named = names.split(",") if names else []
    for name in named:
        if name not in label_names:
            raise ValueError(
                f"--negative_labels must name labels of the data, {', '.join(label_names)}, but there is no "
                f"label {name}"
            )
    return [label_names.index(name) for name in named]


def prepare_for_words(tokenizer: PreTrainedTokenizerBase) -> None:
    """Let a byte-level tokenizer put a space before every word of a list, as in running text.

    Without it RoBERTa's refuses lists of words, and ModernBERT's takes every word for the beginning of a text.

    Args:
        tokenizer: Changed in place, and saved so; others than byte-level ones stay as they are.
    """
    pre_tokenizer = tokenizer.backend_tokenizer.pre_tokenizer
    if isinstance(pre_tokenizer, ByteLevel):
        pre_tokenizer.add_prefix_space = True
        # RobertaTokenizer rebuilds its pre-tokenizer from this setting when it is loaded.
        tokenizer.add_prefix_space = tokenizer.init_kwargs["add_prefix_space"] = True


def tokenize_words(
    words: list[list[str]],
    labels: list[list[int]],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_seq_length: int | None = None,
    pad_to_max_length: bool = False,
    label_all_tokens: bool = False,
) -> BatchEncoding:
    """Tokenize sentences given as words, and carry the labels of words over to tokens.

    Args:
        tokenizer: See `prepare_for_words`.
        max_seq_length: Tokens of a sentence at most, special tokens included; words beyond are neither learned nor
            scored. Default: as many as the model takes.
        pad_to_max_length: Pad here rather than batch by batch.
        label_all_tokens: Label every token of a word. Default: the first one alone (Devlin et al. 2019, section 5.3).

    Returns:
        The model's inputs and `labels`, -100 for tokens that are not scored.

    Raises:
        ValueError: A sentence has more or fewer labels than words.
    """
    for sentence, word_labels in zip(words, labels, strict=True):
        if len(sentence) != len(word_labels):
            raise ValueError(
                f"every word must have a label, but there are {len(word_labels)} labels for {len(sentence)} "
                f"words: {' '.join(sentence[:10])} ... Correct this sentence."
            )
    options: dict[str, Any] = {
        "is_split_into_words": True,
        "truncation": True,
        "max_length": max_seq_length,
        "padding": "max_length" if pad_to_max_length else False,
    }
    encodings = tokenizer(words, **options)
    seen = [{word for word in encodings.word_ids(row) if word is not None} for row in range(len(words))]
    if any(found and len(found) <= max(found) for found in seen):
        # A word that the tokenizer drops (a zero-width space) would shift the tags of all later words.
        words = [
            [tokenizer.unk_token if word < max(found, default=0) and word not in found else text for word, text in row]
            for row, found in ((enumerate(sentence), found) for sentence, found in zip(words, seen, strict=True))
        ]
        encodings = tokenizer(words, **options)
    encodings["labels"] = []
    for row, word_labels in enumerate(labels):
        token_labels, previous = [], None
        for word in encodings.word_ids(row):
            scored = word is not None and (label_all_tokens or word != previous)
            token_labels.append(word_labels[word] if scored else -100)
            previous = word
        encodings["labels"].append(token_labels)
    return encodings


def read_tags(
    output: EvalPrediction | PredictionOutput, label_names: list[str]
) -> tuple[list[list[str]], list[list[str]]]:
    """Turn the output of a token classifier into tags of words.

    Args:
        output: Logits [sentences, length, labels] and label ids [sentences, length], -100 for tokens that are not
            scored.
        label_names: In the order of their ids.

    Returns:
        Predicted and gold tags of the scored tokens of every sentence.
    """
    logits: Any = output.predictions[0] if isinstance(output.predictions, tuple) else output.predictions
    labels: Any = output.label_ids
    predicted, gold = (
        [[label_names[label] for label in row[mask]] for row, mask in zip(ids, labels != -100, strict=True)]
        for ids in (logits.argmax(-1), labels)
    )
    return predicted, gold

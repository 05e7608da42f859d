"""Labels of a task: which there are, whether all splits agree, and where they go when words become tokens."""

from collections.abc import Iterator
from typing import Any

from datasets import ClassLabel, Dataset, DatasetDict, List
from tokenizers.pre_tokenizers import ByteLevel
from transformers import BatchEncoding, EvalPrediction, PreTrainedTokenizerBase
from transformers.trainer_utils import PredictionOutput


def find_labels(splits: DatasetDict, column: str) -> tuple[list[str], dict[Any, int]]:
    """Collect the labels of a task and check that every split keeps to them.

    Args:
        splits: The splits of the task; the first one, train, says which labels exist. Another one may have none.
        column: The column of labels, or of lists of labels.

    Returns:
        The names of the labels in the order of their ids: as the dataset declares them, otherwise sorted. And the id of
        every value of the column.

    Raises:
        ValueError: An example has no label, or a split has labels that the first one lacks.
    """
    (first, train), *others = splits.items()
    feature = train.features[column]
    feature = feature.feature if isinstance(feature, List) else feature
    if isinstance(feature, ClassLabel):
        names, ids = feature.names, {number: number for number in range(feature.num_classes)}
    else:
        values = sorted(set(_iterate_labels(train, column, first)))
        names, ids = [str(value) for value in values], {value: number for number, value in enumerate(values)}
    for split, dataset in others:
        if column not in dataset.column_names:
            continue
        unknown = set(_iterate_labels(dataset, column, split)) - ids.keys()
        if unknown:
            raise ValueError(
                f"every label of {split} occurs in {first}; got {', '.join(sorted(map(str, unknown)))} beside "
                f"{', '.join(names)}. Relabel or drop these examples of {split}, or add such examples to {first}."
            )
    return names, ids


def _iterate_labels(dataset: Dataset, column: str, split: str) -> Iterator[Any]:
    for row, value in enumerate(dataset[column]):
        if value is None:
            raise ValueError(
                f"every example has a label; {column} of example {row} of {split} is empty. Label or drop it."
            )
        yield from value if isinstance(value, list) else [value]


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
            raise ValueError(f"a label that is named exists; got {name}. Labels: {', '.join(label_names)}.")
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
        # RobertaTokenizer builds its pre-tokenizer anew from this setting when it is loaded.
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
        words: The words of every sentence.
        labels: A label id per word.
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
                f"every word has a label; got {len(word_labels)} labels for {len(sentence)} words: "
                f"{' '.join(sentence[:10])} ... Repair this sentence."
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
        # A word of which the tokenizer leaves nothing (a zero-width space) would shift the tags of all words after it.
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

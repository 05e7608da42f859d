"""Named entities: words and tags to model inputs, logits to tags."""

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from datasets import DatasetDict, List
from tokenizers.pre_tokenizers import ByteLevel
from transformers import BatchEncoding, EvalPrediction, PreTrainedTokenizerBase
from transformers.trainer_utils import PredictionOutput

from hf_domain.data.columns import warn_of_shared_rows
from hf_domain.tasks.labels import Locate, name_example
from hf_domain.tasks.metrics import PLACED, find_entities

logger = logging.getLogger(__name__)
Tags = list[list[str]]


def check_words(splits: DatasetDict, word_column: str, tag_column: str, locate: Locate = name_example) -> None:
    """Raise a ValueError unless the words and tags of every sentence are lists of equal length; warn of shared rows."""
    for split, dataset in splits.items():
        for column in (word_column, tag_column):
            if not isinstance(feature := dataset.features[column], List):
                raise ValueError(
                    f"words and tags must be lists, one tag for each word, but {column} of {split} has {feature}. "
                    "Split the texts into words, or name another column."
                )
        sentences = dataset.select_columns([word_column, tag_column])
        for row, sentence in enumerate(sentences):
            words, tags = sentence[word_column], sentence[tag_column]
            if words is None or not all(isinstance(word, str) for word in words):
                raise ValueError(
                    f"words must be a list of texts, but {word_column} is {words} in {locate(split, row)}. "
                    "Correct the sentence or drop it."
                )
            if tags is not None and len(tags) != len(words):
                raise ValueError(
                    f"every word must have a tag, but there are {len(tags)} tags for {len(words)} words in "
                    f"{locate(split, row)}. Correct the sentence or drop it."
                )
    warn_of_shared_rows(splits, [word_column])


def check_tags(names: Sequence[str]) -> None:
    """Raise a ValueError if bare tags have no O among them: every word would be part of an entity.

    Args:
        names: The tags of a task.
    """
    bare = [name for name in names if not PLACED.match(name)]
    if bare and "O" not in names:
        raise ValueError(
            "tags must be B-X and I-X, or X alone, for a word of an entity X, and O for any other word, but none is O: "
            f"{', '.join(names[:10])}. Write O for words outside of entities, and names instead of numbers."
        )


def prepare_for_words(tokenizer: PreTrainedTokenizerBase) -> None:
    """Let a byte-level tokenizer put a space before every word of a list, as in running text.

    Without the space RoBERTa's tokenizer refuses lists of words, and ModernBERT's treats each word as the beginning of
    a text. Other tokenizers stay unchanged.

    Args:
        tokenizer: Changed in place, and saved with the change.
    """
    pre_tokenizer = tokenizer.backend_tokenizer.pre_tokenizer
    if isinstance(pre_tokenizer, ByteLevel):
        pre_tokenizer.add_prefix_space = True
        # RobertaTokenizer rebuilds its pre-tokenizer from this setting on loading.
        tokenizer.add_prefix_space = tokenizer.init_kwargs["add_prefix_space"] = True


def tokenize_words(
    words: list[list[str]],
    labels: list[list[int]],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_seq_length: int | None = None,
    pad_to_max_length: bool = False,
    continued: Sequence[int] | None = None,
) -> BatchEncoding:
    """Tokenize sentences of words, and copy the labels of words to tokens.

    Args:
        tokenizer: See `prepare_for_words`.
        max_seq_length: Maximum number of tokens of a sentence, special tokens included. Words beyond it are not
            learned; see `pop_cut_tags`. Default: the model's limit.
        pad_to_max_length: Pad here instead of per batch.
        continued: For each label, the label of a word's later tokens, see `continue_labels`. Default: only the first
            token has a label, as in Devlin et al. 2019, section 5.3.

    Returns:
        The model's inputs and `labels`, -100 for tokens that are not scored.

    Raises:
        ValueError: The numbers of labels and words of a sentence differ.
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
        # A word without tokens (a zero-width space) would shift the tags of all later words.
        words = [
            [tokenizer.unk_token if word < max(found, default=0) and word not in found else text for word, text in row]
            for row, found in ((enumerate(sentence), found) for sentence, found in zip(words, seen, strict=True))
        ]
        encodings = tokenizer(words, **options)
    encodings["labels"] = []
    for row, word_labels in enumerate(labels):
        token_labels, previous = [], None
        for word in encodings.word_ids(row):
            label = -100 if word is None else word_labels[word]
            if word is not None and word == previous:
                label = -100 if continued is None else continued[label]
            token_labels.append(label)
            previous = word
        encodings["labels"].append(token_labels)
    return encodings


def continue_labels(names: list[str]) -> list[int]:
    """Return for each label the label of a word's later tokens: I-X for B-X if the task has it, else the same.

    A second B-X would begin another entity inside the word.

    Args:
        names: Names in the order of their ids.
    """
    ids = {name: number for number, name in enumerate(names)}
    return [ids.get(re.sub("^B-", "I-", name), number) for number, name in enumerate(names)]


def count_words(encodings: BatchEncoding) -> list[int]:
    """Return the number of words of each sentence up to the maximum length."""
    rows = range(len(encodings["input_ids"]))
    return [max((word + 1 for word in encodings.word_ids(row) if word is not None), default=0) for row in rows]


def pop_cut_tags(
    examples: DatasetDict, splits: DatasetDict, tag_column: str, names: Mapping[Any, str]
) -> tuple[DatasetDict, dict[str, Tags]]:
    """Return examples without the column `num_words`, and by split the tags of the words beyond the maximum length.

    Logs how many words and entities these are.

    Args:
        examples: With `num_words`, see `count_words`.
        splits: The same rows with their tags.
        names: The name of each value of the column.
    """
    cut: dict[str, Tags] = {}
    for split, rows in examples.items():
        cut[split], entities = [], 0
        for count, values in zip(rows["num_words"], splits[split][tag_column], strict=True):
            tags = [names[value] for value in values]
            cut[split].append(tags[count:])
            entities += count < len(tags) and sum(end >= count for _, _, end in find_entities(tags))
        if number := sum(map(len, cut[split])):
            fate = "They are not learned." if split == "train" else "They count as missed."
            logger.warning(
                f"{number:,} words of {split}, of {entities:,} entities, lie beyond the maximum length. {fate} Use a "
                "longer --max_seq_length or shorter sentences."
            )
    return examples.remove_columns("num_words"), cut


def add_cut_tags(predicted: Tags, gold: Tags, cut: Tags) -> tuple[Tags, Tags]:
    """Return predicted and gold tags with those of the words beyond the maximum length, which are predicted as O."""
    return (
        [tags + ["O"] * len(rest) for tags, rest in zip(predicted, cut, strict=True)],
        [tags + rest for tags, rest in zip(gold, cut, strict=True)],
    )


def read_tags(output: EvalPrediction | PredictionOutput, label_names: list[str]) -> tuple[Tags, Tags]:
    """Return the predicted and the gold tags of the scored tokens of every sentence.

    Args:
        output: Logits [sentences, length, labels] and label ids [sentences, length], -100 for tokens that are not
            scored.
        label_names: Names in the order of their ids.
    """
    logits: Any = output.predictions[0] if isinstance(output.predictions, tuple) else output.predictions
    labels: Any = output.label_ids
    predicted, gold = (
        [[label_names[label] for label in row[mask]] for row, mask in zip(ids, labels != -100, strict=True)]
        for ids in (logits.argmax(-1), labels)
    )
    return predicted, gold

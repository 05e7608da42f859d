"""Named entities: words and their tags as the model takes and gives them."""

from typing import Any

from datasets import DatasetDict, List
from tokenizers.pre_tokenizers import ByteLevel
from transformers import BatchEncoding, EvalPrediction, PreTrainedTokenizerBase
from transformers.trainer_utils import PredictionOutput

from hf_domain.data.labels import Locate, name_example


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

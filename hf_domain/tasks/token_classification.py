"""Named entities: words and tags to model inputs, logits to tags.

A sentence that exceeds the model's limit is cut into overlapping windows at word borders; each window is an example.
Every word is learned, scored and predicted once, in the window that shows most of its surroundings.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset, DatasetDict, List
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer, ByteLevel
from transformers import (
    AutoModelForTokenClassification,
    BatchEncoding,
    DataCollatorForTokenClassification,
    PreTrainedTokenizerBase,
)
from transformers.loss.loss_utils import ForTokenClassification

from hf_domain.data.columns import (
    Locate,
    check_columns,
    choose_column,
    find_text_columns,
    name_example,
    warn_of_shared_rows,
)
from hf_domain.tasks.baseline import compare_with_baseline
from hf_domain.tasks.kind import DataArguments, Rows, TaskKind, register_kind
from hf_domain.tasks.labels import HELD_OUT, check_variety, draw_validation, find_labels, list_labels
from hf_domain.tasks.metrics import compute_entity_metrics, list_entity_metrics
from hf_domain.tasks.outputs import TAGS, VALIDATED, format_tags, get_logits, read_tags
from hf_domain.tasks.tags import PLACED

logger = logging.getLogger(__name__)
WORD_COLUMNS, TAG_COLUMNS = ("tokens", "words"), ("tags", "ner_tags", "labels")
OUTSIDE = "O"  # the tag of a word that the tokenizer turns into nothing


@dataclass
class NerArguments(DataArguments):
    """The data of named-entity recognition."""

    text_column_name: str | None = field(default=None, metadata={"help": "Column of words. Default: tokens, or words."})
    label_column_name: str | None = field(
        default=None, metadata={"help": "Column of tags. Default: tags, ner_tags, or labels."}
    )
    return_entity_level_metrics: bool = field(
        default=False, metadata={"help": "Also compute metrics for each entity type."}
    )


@register_kind
class TokenClassification(TaskKind):
    """Words with a tag each."""

    name, head, pipeline_tag = "ner", "ForTokenClassification", "token-classification"
    auto_class, arguments = AutoModelForTokenClassification, NerArguments
    collator_class = DataCollatorForTokenClassification
    args: NerArguments
    command, plan_metrics = "ner", ("entity_f1", "token_f1")
    columns, texts, labels_words = ("tokens", "tags"), ("tokens",), True

    @classmethod
    def fits(cls, columns: set[str]) -> bool:
        """Return whether there are words, and perhaps tags under a known name."""
        has_words = "words" in columns and "text" not in columns and bool(columns & {*TAG_COLUMNS})
        return "tokens" in columns or has_words

    @classmethod
    def hold_out(cls, rows: Dataset, label_column: str | None = None, share: float = HELD_OUT) -> list[int]:
        """Draw a fifth of the sentences in proportion to the tags."""
        return draw_validation(list_labels(rows, label_column or choose_column(rows, TAG_COLUMNS)), share)

    def follow(self, config: Any) -> None:
        """Take the tags of a fine-tuned model."""
        self.label_names = [config.id2label[number] for number in range(config.num_labels)]

    def read(self, splits: DatasetDict, locate: Locate = name_example) -> DatasetDict:
        """Check words and tags, and find the names of the tags."""
        args, first = self.args, next(iter(splits.values()))
        words = args.text_column_name = args.text_column_name or choose_column(first, WORD_COLUMNS)
        tags = args.label_column_name = args.label_column_name or choose_column(first, TAG_COLUMNS)
        check_columns(splits, [words], "--text_column_name")
        check_columns(splits, [tags], "--label_column_name")
        check_words(splits, words, tags, locate)
        self.text_columns = [words]
        self.label_names, self.label_ids = find_labels(splits, tags, locate)
        return splits

    def check(self, splits: DatasetDict, does_train: bool) -> None:
        """Check that the tags are names of entities, and differ."""
        column = str(self.args.label_column_name)
        check_tags(self.label_names or [])
        if does_train:
            check_variety(chain.from_iterable(splits["train"][column]), column)

    def measure_loss(self, config: Any, predictions: Any, labels: Any, examples: Dataset) -> float:
        """See `TaskKind`; the mean over the words."""
        logits = torch.from_numpy(get_logits(predictions))
        return float(ForTokenClassification(logits, torch.from_numpy(labels), config))

    def list_metrics(self) -> list[str]:
        """Return the metrics of all entities, and perhaps of each type."""
        return list_entity_metrics((self.label_names or []) if self.args.return_entity_level_metrics else [])

    def prepare(self, rows: Dataset, text_columns: str | None, config: Any) -> Dataset:
        """Return the rows with their words, in `tokens` or another known column; texts are split into words."""
        known = [*(getattr(config, "trained_columns", None) or []), *WORD_COLUMNS]
        column = next((name for name in known if name in rows.column_names), None)
        if column is None:
            (text,) = find_text_columns(rows, text_columns or "text")
            rows = rows.map(lambda row: {"tokens": split_words(row[text] or "")}, desc="Splitting into words")
        self.text_columns = [column or "tokens"]
        for number, words in enumerate(rows[self.text_columns[0]]):
            if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
                raise ValueError(
                    f"{self.text_columns[0]} must be a list of words, but row {number} has {words!r}. Rename the "
                    "column to have its texts split into words, or read the lists before."
                )
        return rows

    def use(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Let the tokenizer read lists of words."""
        prepare_for_words(tokenizer)
        self.tokenizer = tokenizer

    def tokenize(
        self, batch: Any, tokenizer: PreTrainedTokenizerBase | None = None, does_train: bool = False
    ) -> BatchEncoding:
        """Tokenize the windows of sentences; without tags, every word has the label 0, which marks its token."""
        args, sentences = self.args, batch[self.text_columns[0]]
        if self.label_ids is None:
            labels = [[0] * len(words) for words in sentences]
        else:
            labels = [[self.label_ids[tag] for tag in tags] for tags in batch[args.label_column_name]]
        options: Any = {"max_seq_length": args.max_seq_length, "pad_to_max_length": args.pad_to_max_length}
        windows = tokenize_words(sentences, labels, self.tokenizer, **options)
        for name in {"passage_ids", "passage_scores"} & {*batch}:
            windows[name] = [batch[name][row] for row in number_sentences(windows["begins"])]
        if tokenizer is None:
            return windows
        prepare_for_words(tokenizer)
        texts = cut_windows(sentences, windows)
        return encode_words(texts, tokenizer, args.max_seq_length, args.pad_to_max_length)[0]

    def decode(self, output: Any, rows: Dataset, examples: Dataset, config: Any) -> list[dict[str, Any]]:
        """Return the tag of every word with its probability; a word without tokens is outside, without one."""
        names = [config.id2label[number] for number in range(config.num_labels)]
        decoded: list[dict[str, Any]] = [
            {"prediction": [OUTSIDE] * len(words), "probabilities": [None] * len(words)}
            for words in rows[self.text_columns[0]]
        ]
        for row, words, logits in list_scored(output, examples):
            values, best = torch.from_numpy(logits).float().softmax(-1).max(-1)
            for word, value, number in zip(words, values.tolist(), best.tolist(), strict=True):
                decoded[row]["prediction"][word], decoded[row]["probabilities"][word] = names[number], value
        if number := sum(value is None for row in decoded for value in row["probabilities"]):
            logger.warning(f"The tokenizer turns {number:,} words into nothing. Their tag is {OUTSIDE}.")
        return decoded

    def score(self, output: Any, rows: Dataset, examples: Dataset, config: Any) -> dict[str, Any]:
        """Return the metrics of entities, and those of no entity at all."""
        names, ids = self.label_names or [], self.label_ids or {}
        gold = [[names[ids[tag]] for tag in tags] for tags in rows[self.args.label_column_name]]
        predicted = [[OUTSIDE] * len(tags) for tags in gold]
        baseline = compute_entity_metrics(predicted, gold)
        for row, words, logits in list_scored(output, examples):
            for word, best in zip(words, logits.argmax(-1).tolist(), strict=True):
                predicted[row][word] = names[best]
        metrics = compute_entity_metrics(predicted, gold, per_type=self.args.return_entity_level_metrics)
        return compare_with_baseline(metrics, baseline, self.deciding)

    def list_files(self, decoded: list[dict[str, Any]], split: str) -> dict[str, str]:
        """Return the file of tags."""
        return {VALIDATED if split == "eval" else TAGS: format_tags(row["prediction"] for row in decoded)}

    @classmethod
    def list_constants(cls, train: Rows) -> list[Any]:
        """Return no tag: every word is outside."""
        return [[]]

    @classmethod
    def read_predictions(cls, folder: Path, rows: Rows) -> list[Any]:
        """Return the tags of each sentence."""
        return read_tags(folder)


def split_words(text: str) -> list[str]:
    """Split a text into words, punctuation marks and Chinese characters, as BERT's tokenizer does before WordPiece."""
    text = BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=False, lowercase=False
    ).normalize_str(text)
    return [word for word, _ in BertPreTokenizer().pre_tokenize_str(text)]


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
    pre_tokenizer = tokenizer.backend_tokenizer.pre_tokenizer if tokenizer.is_fast else None
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
) -> BatchEncoding:
    """Tokenize sentences of words, cut them into windows, and copy the labels of words to tokens.

    Args:
        tokenizer: See `prepare_for_words`.
        max_seq_length: Maximum number of tokens of a window, special tokens included. Neighboring windows share up to
            a quarter of the tokens. Default: the model's limit.
        pad_to_max_length: Pad here instead of per batch.

    Returns:
        The model's inputs of each window; `labels`, -100 for all tokens but the first of a word that is scored (Devlin
        et al. 2019, section 5.3); `words`, the numbers of the words that are scored in the window; `start` and `end`,
        its first word and the one behind its last; `begins`, whether it is the first window of its sentence.
    """
    limit = min(max_seq_length or tokenizer.model_max_length, tokenizer.model_max_length)
    encodings, word_ids = encode_words(words, tokenizer)
    cuts = [[(0, len(sentence))] for sentence in words]
    if max(map(len, encodings["input_ids"]), default=0) > limit:
        room = limit - tokenizer.num_special_tokens_to_add()
        for row, ids in enumerate(word_ids):
            sizes = np.bincount([word for word in ids if word is not None], minlength=len(words[row]))
            cuts[row] = cut_sentence(sizes.tolist(), room)
    parts = [(row, start, end) for row, windows in enumerate(cuts) for start, end in windows]
    if any(len(ids) > limit for ids in encodings["input_ids"]) or pad_to_max_length:
        texts = [words[row][start:end] for row, start, end in parts]
        encodings, word_ids = encode_words(texts, tokenizer, limit, pad_to_max_length)
    shown = [choose_words(windows, len(sentence)) for windows, sentence in zip(cuts, words, strict=True)]
    encodings["labels"], encodings["words"] = [], []
    for (row, start, _), own, ids in zip(parts, chain.from_iterable(shown), word_ids, strict=True):
        token_labels, scored, previous = [], [], None
        for word in ids:
            label = -100
            if word is not None and word != previous and start + word in own:
                label = labels[row][start + word]
                scored.append(start + word)
            token_labels.append(label)
            previous = word
        encodings["labels"].append(token_labels)
        encodings["words"].append(scored)
    encodings["start"], encodings["end"] = [start for _, start, _ in parts], [end for *_, end in parts]
    encodings["begins"] = [start == 0 for _, start, _ in parts]
    return encodings


def encode_words(
    words: list[list[str]],
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int | None = None,
    pad_to_max_length: bool = False,
) -> tuple[BatchEncoding, list[list[int | None]]]:
    """Return the inputs of sentences, and for each token the number of its word, None for a special token.

    Args:
        max_seq_length: Longer sentences are cut. Default: none is, unless they are padded.
    """
    options: dict[str, Any] = {"is_split_into_words": True, "verbose": False}
    if max_seq_length is not None or pad_to_max_length:
        options |= {"truncation": True, "max_length": max_seq_length}
        options["padding"] = "max_length" if pad_to_max_length else False
    encodings = tokenizer(words, **options)
    if tokenizer.is_fast:
        return encodings, [encodings.word_ids(row) for row in range(len(words))]
    return encodings, [
        align_words(sentence, sum(mask), len(mask), tokenizer)
        for sentence, mask in zip(words, encodings["attention_mask"], strict=True)
    ]


def align_words(words: list[str], length: int, padded: int, tokenizer: PreTrainedTokenizerBase) -> list[int | None]:
    """Return for each token the number of its word, as `word_ids` of fast tokenizers: others tokenize word by word.

    Args:
        length: Number of tokens of the sentence, special ones included, after truncation.
        padded: The same with padding at its end.
    """
    around = tokenizer.build_inputs_with_special_tokens([-1])
    before, special = around.index(-1), len(around) - 1
    owners: list[int | None] = [word for word, text in enumerate(words) for _ in tokenizer.tokenize(text)]
    shown = [*[None] * before, *owners[: length - special]]
    return shown + [None] * (padded - len(shown))


def cut_sentence(sizes: Sequence[int], room: int) -> list[tuple[int, int]]:
    """Cut words into windows that share up to a quarter of their tokens; return first word and end of each.

    Args:
        sizes: Number of tokens of each word.
        room: Maximum number of tokens of a window; a longer word is a window of its own.
    """
    windows, start = [], 0
    while True:
        end, tokens = start, 0
        while end < len(sizes) and (end == start or tokens + sizes[end] <= room):
            tokens += sizes[end]
            end += 1
        windows.append((start, end))
        if end == len(sizes):
            return windows
        start, shared = end, 0
        while start - 1 > windows[-1][0] and shared + sizes[start - 1] <= room // 4:
            start -= 1
            shared += sizes[start]


def choose_words(windows: Sequence[tuple[int, int]], count: int) -> list[range]:
    """Return for each window the words that are scored there: those that are farther from its cut than in the next."""
    middles = [(after + before) // 2 for (_, before), (after, _) in pairwise(windows)]
    return [range(*ends) for ends in zip([0, *middles], [*middles, count], strict=True)]


def cut_windows(words: list[list[str]], windows: BatchEncoding) -> list[list[str]]:
    """Return the words of every window of `tokenize_words`, for a second tokenizer."""
    rows = number_sentences(windows["begins"])
    return [words[row][start:end] for row, start, end in zip(rows, windows["start"], windows["end"], strict=True)]


def number_sentences(begins: Sequence[bool]) -> list[int]:
    """Return for each window the number of its sentence."""
    return (np.cumsum(begins) - 1).tolist()


def list_scored(output: Any, windows: Dataset) -> Iterator[tuple[int, list[int], np.ndarray]]:
    """Yield for each window the number of its sentence, those of its scored words, and their logits [words, labels].

    Args:
        output: `predictions` [windows, length, labels] and `label_ids` [windows, length], -100 for tokens that are not
            scored.
        windows: With `words` and `begins`, see `tokenize_words`.
    """
    rows, logits = number_sentences(windows["begins"][:]), get_logits(output.predictions)
    for row, words, scores, labels in zip(rows, windows["words"], logits, output.label_ids, strict=True):
        if words:
            yield row, words, scores[labels != -100]

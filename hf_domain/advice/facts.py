"""Measure facts about an encoder, a corpus and its tasks on samples."""

import random
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from hf_domain.comparison.costs import time_training
from hf_domain.comparison.plan import Plan
from hf_domain.comparison.statistics import find_visible_difference
from hf_domain.data.corpora import load_corpus, tokenize_corpus
from hf_domain.data.masking import DataCollatorForTokenMask
from hf_domain.datastore.languages import ANALYZER_OF_LANGUAGE, CJK, recognize_language
from hf_domain.tasks.files import find_texts, get_label, get_text
from hf_domain.tasks.metrics import find_entities
from hf_domain.tasks.scores import MAJORITY, read_examples
from hf_domain.tasks.trivial_baselines import NEAREST, score_floors
from hf_domain.training.forgetting import measure_masked_lm_loss

# Sample sizes: documents whose words are counted, and blocks whose loss is measured. Enough for two digits.
DOCUMENTS, BLOCKS = 2000, 64
# A word of this many pieces counts as broken: its pieces hardly carry its meaning.
BROKEN = 3
BATCH = 8
SEEDS = 5


@dataclass(frozen=True)
class Words:
    """How a tokenizer splits the words of a text."""

    pieces: float
    """Mean number of pieces per word."""
    new: float
    """Share of words that the vocabulary lacks: they have two pieces or more, or are unknown."""
    broken: float
    """Share of words of `BROKEN` pieces or more."""
    unknown: float
    """Share of unknown pieces."""

    def describe(self, unit: str = "words") -> str:
        """Return the shares as a phrase."""
        phrase = f"the vocabulary lacks {self.new:.0%} of the {unit} ({self.pieces:.2f} pieces each, {self.broken:.0%} "
        phrase += f"have {BROKEN} or more)"
        return phrase + (f"; {self.unknown:.0%} of the pieces are unknown" if self.unknown >= 0.005 else "")


@dataclass(frozen=True)
class CorpusFacts:
    """The facts about a corpus."""

    documents: int
    tokens: int
    """Number of tokens for the encoder's tokenizer, estimated from a sample."""
    language: str
    """See `recognize_language`."""
    words: Words
    loss: float
    """Masked-LM loss of the encoder, in nats."""
    general_words: Words | None = None
    """How the words of general text are split."""
    general_loss: float | None = None
    """The masked-LM loss on general text."""

    @property
    def analyzer(self) -> str:
        """Analyzer for a search index."""
        return ANALYZER_OF_LANGUAGE[self.language]

    @property
    def unit(self) -> str:
        """What tokenizers take for a word of this language."""
        return "characters" if self.language == CJK else "words"

    @property
    def distance(self) -> float | None:
        """How much worse the encoder predicts this text than general text, in nats."""
        return None if self.general_loss is None else self.loss - self.general_loss


@dataclass(frozen=True)
class TaskFacts:
    """The facts about a task."""

    name: str
    kind: str
    train: int
    test: int
    leaked: int
    """Number of test items whose text is also in the training data."""
    tokens: float
    """Mean number of tokens per example."""
    words: Words
    entity_words: Words | None
    """How the words inside entities are split."""
    loss: float
    """Masked-LM loss of the encoder on the training texts, in nats."""
    largest_label: float | None
    """Share of the training examples that have the most frequent label; for `ner`, share of the most frequent type."""
    metric: str
    majority: float
    """Score of the majority baseline, in percent."""
    nearest: float | None
    """Score of a vote of the nearest training texts by BM25, in percent."""
    unlabeled: float | None = None
    """Share of the training examples without a label or an entity, where a task allows them."""

    def describe(self, unit: str) -> str:
        """Return the facts as a sentence."""
        parts = [
            f"Task {self.name}: {self.kind.replace('_', ' ')}, {self.train:,} training and {self.test:,} test examples "
            f"of {self.tokens:.0f} tokens",
            self.words.describe(unit),
            f"masked-LM loss {self.loss:.2f}",
            f"{self.metric.replace('_', ' ').replace(' f1', ' F1')} of the majority baseline {self.majority:.1f}",
        ]
        if balance := self.describe_balance():
            parts.insert(1, balance)
        if self.entity_words is not None:
            parts.insert(-2, f"inside entities {self.entity_words.describe(unit)}")
        nearest = "" if self.nearest is None else f", of a vote of the nearest texts {self.nearest:.1f}"
        return f"{'; '.join(parts)}{nearest}."

    def describe_balance(self) -> str:
        """Return how the labels are balanced, as a phrase; nothing if the task has no labels."""
        if self.largest_label is None:
            return ""
        if self.kind == "ner":
            phrase = f"{self.largest_label:.0%} of the entities have the most frequent type"
            return phrase + (f", and {self.unlabeled:.0%} of the texts no entity" if self.unlabeled else "")
        phrase = f"{self.largest_label:.0%} have the most frequent label"
        return phrase + (f", and {self.unlabeled:.0%} none" if self.unlabeled else "")


@dataclass(frozen=True)
class Facts:
    """The facts that the rules read."""

    encoder: str
    parameters: int
    seconds_per_token: float
    """Duration of a masked-LM training step on this machine, divided by its tokens."""
    corpus: CorpusFacts
    tasks: tuple[TaskFacts, ...]
    visible: float
    """Smallest difference of two rows, in points, that the mean over the tasks detects with `SEEDS` seeds."""

    def describe(self) -> str:
        """Return the facts as a short list."""
        corpus, speed = self.corpus, 1 / self.seconds_per_token
        lines = [
            f"Encoder: {Path(self.encoder).name}, {self.parameters / 1e6:.1f} million parameters, trains on "
            f"{speed:,.0f} tokens per second on this machine.",
            f"Corpus: {corpus.documents:,} documents, about {write_number(corpus.tokens)} tokens; {corpus.language}, "
            f"so passages are searched with the analyzer {corpus.analyzer}; {corpus.words.describe(corpus.unit)}; "
            f"masked-LM loss {corpus.loss:.2f}.",
        ]
        if corpus.general_words is not None:
            lines.append(f"General text: {corpus.general_words.describe()}; masked-LM loss {corpus.general_loss:.2f}.")
        lines += [task.describe(corpus.unit) for task in self.tasks]
        lines.append(f"Smallest difference that the tests detect with {SEEDS} seeds: {self.visible:.1f} points.")
        return "\n".join(f"- {line}" for line in lines)


def write_number(value: float) -> str:
    """Return an estimate with its first three digits."""
    return f"{float(f'{value:.3g}'):,.0f}"


def measure_facts(plan: Plan, max_seq_length: int = 128) -> Facts:
    """Measure the facts about the encoder, the corpora and the tasks of a plan."""
    encoder = str(plan.folder / plan.encoder) if (plan.folder / plan.encoder).is_dir() else plan.encoder
    tokenizer = AutoTokenizer.from_pretrained(encoder, trust_remote_code=False)
    model = AutoModelForMaskedLM.from_pretrained(encoder, dtype=torch.float32, trust_remote_code=False)
    domain = next(name for name in plan.corpora if name != plan.general)
    documents = read_documents(plan, domain)
    sample = random.Random(0).sample(documents, min(DOCUMENTS, len(documents)))
    blocks = make_blocks(sample, tokenizer, max_seq_length)
    general_words = general_loss = None
    if plan.general is not None:
        general = read_documents(plan, plan.general)
        general = random.Random(0).sample(general, min(DOCUMENTS, len(general)))
        general_words = count_pieces(general, tokenizer)
        general_loss = measure_loss(model, make_blocks(general, tokenizer, max_seq_length), tokenizer)
    tokens = statistics.mean(count_tokens(sample, tokenizer))
    corpus = CorpusFacts(
        documents=len(documents),
        tokens=round(tokens * len(documents)),
        language=recognize_language(sample),
        words=count_pieces(sample, tokenizer),
        loss=measure_loss(model, blocks, tokenizer),
        general_words=general_words,
        general_loss=general_loss,
    )
    tasks = tuple(measure_task(name, plan, model, tokenizer, max_seq_length) for name in plan.tasks)
    visible = find_visible_difference([task.test for task in tasks], SEEDS)
    assert visible is not None
    return Facts(
        encoder=plan.encoder,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        seconds_per_token=time_training(model, BATCH, max_seq_length),
        corpus=corpus,
        tasks=tasks,
        visible=visible,
    )


def read_documents(plan: Plan, corpus: str) -> list[str]:
    """Read the training documents of a corpus."""
    file = str(plan.folder / plan.corpora[corpus].train_file)
    return list(load_corpus(file, validation_split_percentage=0)["train"]["text"])


def make_blocks(documents: Sequence[str], tokenizer: PreTrainedTokenizerBase, max_seq_length: int) -> Dataset:
    """Return up to `BLOCKS` masked-LM examples from a sample of documents."""
    sample = random.Random(1).sample(documents, min(DOCUMENTS, len(documents)))
    examples = tokenize_corpus(sample, tokenizer, max_seq_length=max_seq_length)["train"]
    if not len(examples):  # too little text for a block
        examples = tokenize_corpus(sample, tokenizer, max_seq_length=max_seq_length, line_by_line=True)["train"]
    # The first blocks are those of a few long documents.
    return examples.shuffle(seed=1).take(min(BLOCKS, len(examples)))


def measure_loss(model: PreTrainedModel, blocks: Dataset, tokenizer: PreTrainedTokenizerBase) -> float:
    """Return the masked-LM loss on blocks, with the same masks each time."""
    return measure_masked_lm_loss(model, blocks, DataCollatorForTokenMask(tokenizer, seed=0), batch_size=BATCH)["loss"]


def count_tokens(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Count the tokens of texts, which may exceed the encoder's limit."""
    return [len(ids) for ids in tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]]


def count_pieces(texts: Iterable[Any], tokenizer: PreTrainedTokenizerBase, chosen: Any = None) -> Words:
    """Count the pieces of words.

    Args:
        texts: Texts, or lists of words.
        chosen: For each list of words, which of them count, as booleans.
    """
    pieces: list[int] = []
    new = unknown = 0
    for number, text in enumerate(texts):
        is_split = not isinstance(text, str)
        encoding = tokenizer(text, is_split_into_words=is_split, add_special_tokens=False, verbose=False)
        words: dict[int, list[bool]] = {}  # whether each piece is unknown
        for word, token in zip(encoding.word_ids(), encoding["input_ids"], strict=True):
            if word is not None and (chosen is None or chosen[number][word]):
                words.setdefault(word, []).append(token == tokenizer.unk_token_id)
        pieces += map(len, words.values())
        new += sum(len(each) > 1 or each[0] for each in words.values())
        unknown += sum(map(sum, words.values()))
    if not pieces:
        return Words(0.0, 0.0, 0.0, 0.0)
    broken = sum(count >= BROKEN for count in pieces) / len(pieces)
    return Words(statistics.mean(pieces), new / len(pieces), broken, unknown / sum(pieces))


def measure_task(
    name: str, plan: Plan, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_seq_length: int
) -> TaskFacts:
    """Measure the facts about a task."""
    task = plan.tasks[name]
    train, test = (read_examples(plan.folder / task.get_file(split)) for split in ("train", "test"))
    columns = find_texts(task.kind, task.get_file("train"), plan.folder, task.options.get("text_column_names"))
    texts = [[normalize_text(row.get(column)) for column in columns] for row in train]
    known = {tuple(row) for row in texts}
    floors = score_floors(task, {}, plan.folder)
    entities = None
    if task.kind == "ner":
        rows = list(islice(train, DOCUMENTS))
        inside = [[tag != "O" for tag in row["tags"]] for row in rows]
        entities = count_pieces([row["tokens"] for row in rows], tokenizer, inside)
    largest_label, unlabeled = measure_balance(task.kind, train)
    return TaskFacts(
        name=name,
        kind=task.kind,
        train=len(train),
        test=len(test),
        leaked=sum(tuple(normalize_text(row.get(column)) for column in columns) in known for row in test),
        tokens=statistics.mean(count_tokens([" ".join(row) for row in texts[:DOCUMENTS]], tokenizer)),
        words=count_pieces((text for row in texts[:DOCUMENTS] for text in row if text), tokenizer),
        entity_words=entities,
        loss=measure_loss(model, make_blocks([" ".join(row) for row in texts], tokenizer, max_seq_length), tokenizer),
        largest_label=largest_label,
        metric=task.metric,
        majority=floors[MAJORITY],
        nearest=floors.get(NEAREST),
        unlabeled=unlabeled,
    )


def measure_balance(kind: str, rows: Sequence[dict[str, Any]]) -> tuple[float | None, float | None]:
    """Return `largest_label` and `unlabeled` of `TaskFacts`."""
    if kind == "ner":
        labels = [[entity for entity, *_ in find_entities(row["tags"])] for row in rows]
    elif kind == "multi_label":
        labels = [[*{*map(str, get_label(kind, row) or ())}] for row in rows]
    elif kind == "classification":
        labels = [[str(get_label(kind, row))] for row in rows]
    else:
        return None, None
    counts = Counter(chain.from_iterable(labels))
    total = counts.total() if kind == "ner" else len(rows)
    unlabeled = None if kind == "classification" else sum(not each for each in labels) / len(rows)
    return max(counts.values()) / total if counts else None, unlabeled


def normalize_text(value: Any) -> str:
    """Return the text of a value with single spaces."""
    return " ".join(str(get_text(value)).split())

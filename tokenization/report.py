"""The report of an expansion, as JSON and plots."""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from .texts import read_texts


@dataclass(frozen=True)
class CurvePoint:
    """One vocabulary size of Algorithm 1."""

    size: int
    """Entries, |V_i|."""
    log_probability: float
    """P(D): mean over documents of the sum of ln p over a document's pieces."""
    improvement: float | None
    """(P_i - P_(i-1)) / |P_(i-1)|; None for the original vocabulary."""
    tokens: int
    """Tokens of the corpus."""


@dataclass(frozen=True)
class LengthComparison:
    """Tokens of texts before and after the expansion, without special tokens."""

    texts: int
    tokens_before: float
    """Mean per text."""
    tokens_after: float
    """Mean per text."""
    longer: float
    """Share of the texts with more tokens than before."""

    @property
    def saved(self) -> float:
        """Share of saved tokens."""
        return 1 - self.tokens_after / self.tokens_before


@dataclass(frozen=True)
class ExposureLimit:
    """The effect of keeping only entries that a planned training shows often enough."""

    training_tokens: int
    min_exposures: float
    proposed: int
    """Entries before."""
    proposed_saving: float
    """Share of the corpus' tokens that all proposed entries would save."""
    kept: int
    """Entries that training is expected to show at least `min_exposures` times."""
    saving: float
    """Share of the corpus' tokens that the kept entries save."""

    def __str__(self) -> str:
        return (
            f"{self.kept:,} of {self.proposed:,} entries are kept: {self.training_tokens:,} training tokens show each "
            f"at least {self.min_exposures:g} times. They save {self.saving:.1%} of the corpus' tokens; with the other "
            f"{self.proposed - self.kept:,} entries it would be {self.proposed_saving:.1%}."
        )


@dataclass
class ExpansionReport:
    """How the size was chosen, and the result."""

    method: str
    documents: int
    words: int
    """Words of the corpus."""
    distinct_words: int
    min_frequency: int
    stopped_by: str
    """`size` (reached), `threshold`, `max_size`, `words` or `corpus` (no more entries are frequent enough)."""
    curve: list[CurvePoint]
    """The original vocabulary and each size tried, as in Figure 4."""
    chosen: int
    """Position in `curve` of the returned vocabulary, before `exposure` left entries out."""
    useful_entries: list[dict]
    """The new entries that save most tokens of the corpus: entry, id, old pieces, frequency, tokens saved."""
    unreachable: list[str]
    """New entries that the tokenizer never produces; must be empty."""
    own_words: list[dict] = field(default_factory=list)
    """The user's own words: entries (none if the tokenizer splits the word), whether they are new, and frequency."""
    lengths: dict[str, LengthComparison] = field(default_factory=dict)
    """Name of the texts -> comparison of their lengths, as in Table 12. Filled by callers that have texts."""
    warnings: list[str] = field(default_factory=list)
    """Warnings about the use of the tokenizer; also logged."""
    saved: float = 0.0
    """Share of the corpus' tokens that the new entries save."""
    exposure: ExposureLimit | None = None
    """Set if `training_tokens` were given."""

    def describe(self) -> list[str]:
        """Return lines for a terminal: the entries left out, and how much shorter each file became."""
        lines = [str(self.exposure)] if self.exposure else []
        if self.own_words:
            lines.append(self._describe_words())
        return lines + [
            f"{name}: {lengths.tokens_before:.1f} -> {lengths.tokens_after:.1f} tokens per text"
            for name, lengths in self.lengths.items()
        ]

    def _describe_words(self) -> str:
        new = sum(row["new"] for row in self.own_words)
        unseen = [row["word"] for row in self.own_words if row["entries"] and not row["frequency"]]
        split = [row["word"] for row in self.own_words if not row["entries"]]
        text = f"{new:,} of your {len(self.own_words):,} words are new entries."
        if unseen:
            text += f" The corpus does not show {len(unseen):,}, such as {unseen[0]}: their rows stay untrained."
        if split:
            text += f" The tokenizer splits {len(split):,} before its model sees them, such as {split[0]}."
        return text

    def save(self, path: str | os.PathLike) -> None:
        """Write the report as JSON."""
        partial = Path(f"{path}.partial")
        partial.write_text(json.dumps(asdict(self), indent=2, ensure_ascii=False), encoding="utf-8")
        os.replace(partial, path)


def compare_lengths(
    before: PreTrainedTokenizerBase, after: PreTrainedTokenizerBase, texts: Iterable[str]
) -> LengthComparison:
    """Compare the tokens that two tokenizers make of each text (Table 12 of AdaLM).

    Raises:
        ValueError: There is no text.
    """
    texts = list(read_texts(texts))
    if not texts:
        raise ValueError("a comparison of lengths needs texts, but there is none. Give at least one text.")
    old, new = (
        np.array([len(ids) for ids in tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]])
        for tokenizer in (before, after)
    )
    return LengthComparison(len(texts), float(old.mean()), float(new.mean()), float((new > old).mean()))


def open_figure() -> tuple[Any, Any]:
    """Return an empty figure and its axes.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            'a picture of the vocabulary needs matplotlib, which is not installed: pip install ".[compare]" in a clone.'
        ) from error
    figure = Figure(figsize=(5, 3.5), layout="constrained")
    return figure, figure.subplots()


def plot_curve(report: ExpansionReport, path: str | os.PathLike) -> None:
    """Plot P(D) against the vocabulary size, with the chosen size marked (Figure 4 of AdaLM)."""
    figure, axes = open_figure()
    sizes = [point.size for point in report.curve]
    axes.plot(sizes, [point.log_probability for point in report.curve], marker="o")
    axes.axvline(sizes[report.chosen], linestyle="--", color="gray", label=f"chosen: {sizes[report.chosen]:,}")
    axes.set(xlabel="Vocabulary size", ylabel="P(D)")
    axes.legend()
    figure.savefig(path)


def plot_lengths(report: ExpansionReport, path: str | os.PathLike) -> None:
    """Plot the mean number of tokens per text before and after, for each set of texts of the report."""
    figure, axes = open_figure()
    places = np.arange(len(report.lengths))
    comparisons = report.lengths.values()
    axes.bar(places - 0.2, [lengths.tokens_before for lengths in comparisons], 0.4, label="before")
    axes.bar(places + 0.2, [lengths.tokens_after for lengths in comparisons], 0.4, label="after")
    axes.set_xticks(places, list(report.lengths), rotation=20)
    axes.set_ylabel("Tokens per text")
    axes.legend()
    figure.savefig(path)

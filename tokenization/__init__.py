"""Edit tokenizers: expand or trim a vocabulary. The edit of a model needs the delta, or the ids that were kept."""

from .counting import WordCounts, batch_texts, count_shard, count_words, merge_counts
from .delta import VocabularyDelta
from .expansion import expand_vocabulary
from .report import (
    CurvePoint,
    ExpansionReport,
    ExposureLimit,
    LengthComparison,
    compare_lengths,
    plot_curve,
    plot_lengths,
)
from .trimming import trim_vocabulary

__all__ = [
    "CurvePoint",
    "ExpansionReport",
    "ExposureLimit",
    "LengthComparison",
    "VocabularyDelta",
    "WordCounts",
    "batch_texts",
    "compare_lengths",
    "count_shard",
    "count_words",
    "expand_vocabulary",
    "merge_counts",
    "plot_curve",
    "plot_lengths",
    "trim_vocabulary",
]

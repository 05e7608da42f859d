"""The delta of an expansion, which the edit of the tokenizer passes to the edit of the model."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

FILE_NAME = "vocabulary_delta.json"


@dataclass(frozen=True)
class VocabularyDelta:
    """New entries of a vocabulary and the old ids that spelled them.

    The new ids follow the old ones without a gap: entry i of `pieces` has the id `old_size + i`.
    """

    old_size: int
    """Highest id of the old tokenizer plus one."""
    pieces: Mapping[str, list[int]] = field(default_factory=dict)
    """Old ids that spelled each new entry, in the order of the new ids; empty if a character was unknown."""

    counts: list[int] = field(default_factory=list)
    """Occurrences of each entry, old and new, in the corpus as the new tokenizer splits it; empty if not counted."""

    @property
    def new_size(self) -> int:
        """Highest id of the new tokenizer plus one."""
        return self.old_size + len(self.pieces)

    def save(self, directory: str | os.PathLike) -> None:
        """Write `vocabulary_delta.json` next to a tokenizer."""
        path = Path(directory, FILE_NAME)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        state = {"old_size": self.old_size, "pieces": self.pieces, "counts": self.counts}
        partial.write_text(json.dumps(state, ensure_ascii=False), encoding="utf-8")
        os.replace(partial, path)

    @classmethod
    def load(cls, directory: str | os.PathLike) -> Self:
        """Read a file that `save` wrote."""
        return cls(**json.loads(Path(directory, FILE_NAME).read_text(encoding="utf-8")))

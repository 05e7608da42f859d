"""One step of a comparison: a run of a command, and what it is for."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Literal


@dataclass(frozen=True)
class Step:
    """One run of a command."""

    name: str
    """Name of its folder and of its result."""
    kind: Literal[
        "vocabulary", "datastore", "selection", "probe", "trunk", "pretraining", "average", "evaluation", "tuning",
        "fine_tuning", "best",
    ]  # fmt: skip
    command: str
    """Command of `hf-domain`."""
    flags: Mapping[str, Any]
    needs: list[str] = field(default_factory=list)
    """Steps whose output it reads."""
    method: str | None = None
    corpus: str | None = None
    """The text or data it trains on; of an evaluation, tests on."""
    task: str | None = None
    seed: int | None = None
    pretraining_seed: int | None = None
    """Seed of the encoder's pre-training; None without one."""
    rung: int | None = None
    """Tokens of its encoder, if the budget has several numbers."""
    fold: int | None = None
    """Number of the fold, from 1; None without folds."""
    labels: float | None = None
    """The share of the training examples that it takes; None: all."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "flags", MappingProxyType({**self.flags}))

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to a worker, which a proxy of a mapping cannot."""
        values = {item.name: getattr(self, item.name) for item in fields(self)} | {"flags": {**self.flags}}
        return type(self), tuple(values.values())

    def change(self, **flags: Any) -> "Step":
        """Return the step with other flags."""
        return replace(self, flags={**self.flags, **flags})

    def list_arguments(self, *names: str) -> list[str]:
        """Return the command line after the command's name, or only the given flags."""
        arguments = []
        for name in names or self.flags:
            value = self.flags[name]
            arguments += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
        return arguments

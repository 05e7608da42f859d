"""Kinds of tasks: each says what it reads, predicts and scores. Ours and those of other packages register below."""

from importlib.metadata import entry_points

from hf_domain.tasks import classification, question_answering, token_classification  # noqa: F401  they register
from hf_domain.tasks.kind import KINDS, TaskKind, find_kind, find_kind_of_model, register_kind

for _point in entry_points(group="hf_domain.tasks"):
    _point.load()

__all__ = ["KINDS", "TaskKind", "find_kind", "find_kind_of_model", "register_kind"]

"""Kinds of tasks: each says what it reads, predicts and scores, and is registered below."""

from hf_domain.tasks import classification, question_answering, token_classification  # noqa: F401  they register
from hf_domain.tasks.kind import KINDS, TaskKind, find_kind, find_kind_of_model, register_kind

__all__ = ["KINDS", "TaskKind", "find_kind", "find_kind_of_model", "register_kind"]

"""A datastore of passages that a model can read: built once, searched with BM25.

Needs tantivy and regex, the extra `datastore`.
"""

from hf_domain.datastore.analysis import Analyzer
from hf_domain.datastore.build import build_datastore
from hf_domain.datastore.hub import load_from_hub, push_to_hub
from hf_domain.datastore.retrieval import add_passages
from hf_domain.datastore.store import Datastore

__all__ = ["Analyzer", "Datastore", "add_passages", "build_datastore", "load_from_hub", "push_to_hub"]

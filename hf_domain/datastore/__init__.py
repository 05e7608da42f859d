"""A datastore of passages that a model can read: built once, searched with BM25.

Needs the optional dependencies `hf-domain[datastore]`.
"""

from hf_domain.datastore.analysis import Analyzer
from hf_domain.datastore.storage import Datastore, build_datastore

__all__ = ["Analyzer", "Datastore", "build_datastore"]

"""A datastore of passages that a model can read: built once, searched with BM25."""

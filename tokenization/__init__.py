"""Edits of a tokenizer: vocabulary expansion and the delta that a model edit consumes."""

"""Data for training and evaluation: corpora, tasks, labels, masking and metrics."""

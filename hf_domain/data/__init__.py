"""What models are trained and tested on: corpora, tasks, labels, masking and metrics."""

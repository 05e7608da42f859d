"""The kinds of tasks: what each reads, predicts and scores."""

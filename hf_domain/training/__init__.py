"""Train an encoder on text or on a task: arguments, run folders, resuming, model cards."""

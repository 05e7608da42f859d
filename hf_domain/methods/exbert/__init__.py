"""exBERT as an adapter of peft, and its released checkpoints."""

"""exBERT beside its model: the peft adapter, and the released checkpoints."""

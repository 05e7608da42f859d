"""RADA beside its model: passages in a batch, their states, and what was read."""

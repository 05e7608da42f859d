"""G-MAP beside its model: what a memory reads and keeps, and what adaptation forgets."""

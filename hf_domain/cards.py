"""The former place of `hf_domain.training.cards`."""

from hf_domain.training.cards import make_usage, write_model_card

__all__ = ["make_usage", "write_model_card"]

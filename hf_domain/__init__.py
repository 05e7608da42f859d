"""Adapt encoder language models to a domain."""

__version__ = "0.1.0"

"""The former name of `hf_domain.cli`."""

from hf_domain.cli import COMMANDS, import_command, main

__all__ = ["COMMANDS", "import_command", "main"]

"""Model code that travels to the Hub with a checkpoint."""

# Registers our configurations: before a file of this folder, which would be half imported, asks for it.
import transformers.models.auto.configuration_auto  # noqa: F401

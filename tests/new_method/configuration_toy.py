"""Configuration of the toy method."""

from .configuration_backbone import BackboneConfig


class ToyConfig(BackboneConfig):
    """Configuration of the toy method.

    Args:
        scale_start: What the scale of every dimension starts from. 1 is our choice: the model then starts as its
            encoder.
    """

    model_type = "toy"

    scale_start: float = 1.0

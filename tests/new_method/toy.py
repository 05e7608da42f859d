"""The toy method: its builder, and its row in the table of methods."""

from typing import Any

from hf_domain.methods import Method, register_method


def build_toy(model: Any, tokenizer: Any, delta: Any, args: Any, options: dict[str, Any]) -> Any:
    """Return the encoder with a scale on its last states."""
    from hf_domain.modeling.modeling_toy import ToyForMaskedLM

    return ToyForMaskedLM.from_backbone(model, **options)


register_method(
    "toy",
    Method(
        title="Toy",
        paper="Nobody et al. 2026, <https://example.org>",
        summary="{base_model} with scaled states, trained further with masked language modeling on text of its domain.",
        citation="@misc{nobody-2026-toy}",
        model_type="toy",
        build=build_toy,
    ),
)

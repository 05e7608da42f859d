"""What the toy method adds: its builder and its row to the methods, and a row to those of a comparison."""

from typing import Any

from hf_domain.comparison.rows import Recipe
from hf_domain.methods import Method


def build_toy(model: Any, tokenizer: Any, delta: Any, args: Any, options: dict[str, Any]) -> Any:
    """Return the encoder with a scale on its last states."""
    from hf_domain.modeling.modeling_toy import ToyForMaskedLM

    return ToyForMaskedLM.from_backbone(model, **options)


METHODS = {
    "toy": Method(
        title="Toy",
        paper="Nobody et al. 2026, <https://example.org>",
        summary="{base_model} with scaled states, trained further with masked language modeling on text of its domain.",
        citation="@misc{nobody-2026-toy}",
        model_type="toy",
        build=build_toy,
        pretraining={"learning_rate": 1e-3},
    ),
}

RECIPES = {
    "toy": Recipe("Toy", method="toy", card="toy"),
}

"""Read checkpoints of the exBERT code released with the paper (https://github.com/cgmhaicenter/exBERT)."""

import re
from collections.abc import Mapping

import torch
from transformers import BertConfig

from hf_domain.modeling.backbone import load_matching_weights
from hf_domain.modeling.modeling_exbert import ExBertConfig, ExBertForMaskedLM

# Names in the released code, after old BERT names are modernized; query, key and value are one matrix here.
RENAMINGS = (
    (r"^module\.", ""),
    (r"\.gamma$", ".weight"),
    (r"\.beta$", ".bias"),
    (r"\.attention_ADD\.self\.", ".side.query_key_value."),
    (r"\.attention_ADD\.output\.dense\.", ".side.attention_output."),
    (r"\.attention_ADD\.output\.LayerNorm\.", ".side.attention_norm."),
    (r"\.intermediate_ADD\.dense\.", ".side.intermediate."),
    (r"\.output_ADD\.dense\.", ".side.output."),
    (r"\.output_ADD\.LayerNorm\.", ".side.output_norm."),
    (r"\.gate_ADD\.", ".side.gate."),
    (r"\.word_embeddings_ADD\.", ".word_embeddings.extension."),
    (r"\.decoder_ADD\.", ".decoder.extension."),
    (r"\.bias_ADD$", ".decoder.extension.bias"),
    (r"^bert\.", "model.backbone."),
    (r"^cls\.", "lm_head.cls."),
)
WORDS = "model.backbone.embeddings.word_embeddings.weight"
NEW_WORDS = "model.backbone.embeddings.word_embeddings.extension.weight"
TOKEN_TYPES = "model.backbone.embeddings.token_type_embeddings.weight"
DECODER = "lm_head.cls.predictions.decoder"


def rename_released_weights(state_dict: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Rename and reshape weights of the released code for the classes here."""
    renamed: dict[str, torch.Tensor] = {}
    for name, value in state_dict.items():
        for pattern, replacement in RENAMINGS:
            name = re.sub(pattern, replacement, name)
        renamed[name] = value
    for name in [name for name in renamed if ".query_key_value.query." in name]:
        parts = [renamed.pop(name.replace(".query.", f".{part}.")) for part in ("query", "key", "value")]
        renamed[name.replace(".query.", ".")] = torch.cat(parts)
    renamed[f"{DECODER}.weight"] = renamed[WORDS]
    renamed[f"{DECODER}.bias"] = renamed["lm_head.cls.predictions.bias"]
    if NEW_WORDS in renamed:
        renamed[f"{DECODER}.extension.weight"] = renamed[NEW_WORDS]
    return renamed


def reproduce_released_lookup(weights: dict[str, torch.Tensor]) -> None:
    """Change the input tables in place so that a lookup gives what the released code looks up.

    The released code zeroes the vectors of token type 0 and of [PAD], adds row 0 of the extension to every old token,
    and adds the row of [PAD] to every new one. Its decoder reads the unchanged tables.
    """
    weights[TOKEN_TYPES] = weights[TOKEN_TYPES].clone()
    weights[TOKEN_TYPES][0] = 0
    if NEW_WORDS in weights:
        words, new_words = weights[WORDS], weights[NEW_WORDS]
        weights[WORDS] = words + new_words[0]
        weights[WORDS][0] = 0
        weights[NEW_WORDS] = new_words + words[0]


@torch.no_grad()
def convert_released_checkpoint(
    state_dict: Mapping[str, torch.Tensor], base_config: BertConfig, legacy: bool = True
) -> ExBertForMaskedLM:
    """Build an exBERT from a checkpoint of the released code, without its pooler and next-sentence head.

    Args:
        state_dict: As `torch.load(file, weights_only=True)` returns it.
        base_config: Configuration of the extended BERT; the sizes of the extension are read off the weights.
        legacy: Whether to compute what the released code computes, including the defects of its lookup (see
            `reproduce_released_lookup`), with which the checkpoint was trained. They change the tables, so the decoder
            no longer shares them. False keeps the tables as stored, shared with the decoder.

    Returns:
        The model in evaluation mode, with a frozen base.

    Raises:
        ValueError: The weights do not fit `base_config`, or do not belong to an exBERT.
    """
    weights = rename_released_weights(state_dict)
    side = [name for name in weights if ".layer.0.side." in name]
    if not side and NEW_WORDS not in weights:
        raise ValueError(
            "an exBERT checkpoint must have an extension vocabulary or side modules, but this one has neither. "
            "Load it as a BERT."
        )
    prefix = "model.backbone.encoder.layer.0.side"
    vocabulary = weights.get(NEW_WORDS)
    config = ExBertConfig(
        backbone_config=base_config,
        extension_vocab_size=0 if vocabulary is None else len(vocabulary),
        extension_hidden_size=weights[f"{prefix}.attention_output.weight"].shape[1] if side else 0,
        extension_intermediate_size=len(weights[f"{prefix}.intermediate.bias"]) if side else None,
        tie_word_embeddings=not (legacy and vocabulary is not None),
    )
    if legacy:
        reproduce_released_lookup(weights)
    model = ExBertForMaskedLM(config)
    load_matching_weights(model, weights, "the checkpoint")
    return model.eval()

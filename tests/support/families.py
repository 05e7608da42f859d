"""A tiny masked LM of every family of transformers, and what each method makes of it."""

import copy
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from transformers import MODEL_FOR_MASKED_LM_MAPPING, AutoConfig, AutoModelForMaskedLM

from hf_domain import ExBertForMaskedLM, GMapForMaskedLM, RadaForMaskedLM, VarMAEForMaskedLM
from hf_domain.methods.lora import add_lora, merge_lora
from hf_domain.methods.new_embeddings import apply_delta
from hf_domain.methods.stock_models import decode_labeled_rows_only
from hf_domain.tokenization import VocabularyDelta
from hf_domain.training.padding_free import remove_padding

VOCAB_SIZE, LENGTH = 60, 12
FAMILIES = sorted(config.model_type for config in MODEL_FOR_MASKED_LM_MAPPING)
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
}
XLM = {"emb_dim": 32, "n_layers": 2, "n_heads": 4, "n_words": VOCAB_SIZE, "pad_index": 0}
PAIR = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
RELATIVE = {"relative_attention": True, "position_buckets": 8, "pos_att_type": ["c2p", "p2c"]}
# What a family names otherwise or needs beside these.
OWN: dict[str, dict[str, Any]] = {
    "albert": {"embedding_size": 16},
    "bart": PAIR,
    "big_bird": {"attention_type": "original_full"},
    "convbert": {"embedding_size": 32, "conv_kernel_size": 3},
    "deberta": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "pad_token_id": 0},
    "deberta-v2": RELATIVE,
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
    "electra": {"embedding_size": 16},
    "esm": {"mask_token_id": 4, "pad_token_id": 1, "position_embedding_type": "rotary"},
    "eurobert": {"num_key_value_heads": 2, "pad_token_id": 0},
    "flaubert": XLM,
    "fnet": {"tpu_short_seq_length": LENGTH},
    "funnel": {"num_hidden_layers": ..., "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 48, "block_sizes": [1, 1]},
    "longformer": {"attention_window": 4},
    "luke": {"entity_vocab_size": 10, "entity_emb_size": 16},
    "mbart": PAIR,
    "mobilebert": {"embedding_size": 32, "intra_bottleneck_size": 32, "true_hidden_size": 32},
    "modernbert": {"local_attention": 8, "pad_token_id": 0},
    "mvp": PAIR,
    "nystromformer": {"segment_means_seq_len": LENGTH, "num_landmarks": 4, "conv_kernel_size": 3},
    "perceiver": {"max_position_embeddings": LENGTH, "d_model": 32, "d_latents": 32, "num_latents": 4},
    "reformer": {"axial_pos_embds": False, "attn_layers": ["local", "local"], "local_attn_chunk_length": LENGTH},
    "rembert": {"input_embedding_size": 16, "output_embedding_size": 16},
    "roc_bert": {"pronunciation_vocab_size": 10, "shape_vocab_size": 10},
    "squeezebert": {"embedding_size": 32},
    "xlm": XLM,
    "xmod": {"languages": ("en_XX",), "default_language": "en_XX"},
}
RATES = ("hidden_dropout", "hidden_dropout_prob", "attention_dropout", "attention_probs_dropout_prob", "dropout")
RATES += ("embedding_dropout", "mlp_dropout")


def make_family(family: str) -> Any:
    """Make the same tiny masked LM of a family each time, without dropout.

    Raises:
        ValueError: The family reads more than text.
    """
    torch.manual_seed(0)
    options = {name: value for name, value in (SIZES | OWN.get(family, {})).items() if value is not ...}
    config = AutoConfig.for_model(family, **options)
    if config.get_text_config() is not config:
        raise ValueError(f"a {family} must read text alone, but has other parts")
    for name in RATES:
        if hasattr(config, name):
            setattr(config, name, 0.0)
    return AutoModelForMaskedLM.from_config(config).eval()


def make_batch(seed: int = 0) -> dict[str, torch.Tensor]:
    """Make a batch without padding, in which every fourth token has a label."""
    ids = torch.randint(5, VOCAB_SIZE, (4, LENGTH), generator=torch.Generator().manual_seed(seed))
    labels = ids.masked_fill(torch.arange(LENGTH) % 4 != 2, -100)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def add_a_word(model: Any) -> Any:
    """Give a model one more entry, spelled by two old ones, as AdaLM does."""
    apply_delta(model, VocabularyDelta(VOCAB_SIZE, {"new": [5, 6]}))
    return decode_labeled_rows_only(model)


def leave_out_padding(model: Any) -> Any:
    """Let a model read several texts in a row."""
    remove_padding(model)
    return decode_labeled_rows_only(model)


# Each starts at its encoder, so that its first loss is that of the stock model; AdaLM's has one more entry to weigh.
BUILDERS: dict[str, Callable[[Any], Any]] = {
    "DAPT": decode_labeled_rows_only,
    "padding-free": leave_out_padding,
    "AdaLM": add_a_word,
    "LoRA": lambda model: add_lora(decode_labeled_rows_only(model)),
    "VarMAE": lambda model: VarMAEForMaskedLM.from_backbone(model, residual=True, batch_norm=False),
    "exBERT": lambda model: ExBertForMaskedLM.from_backbone(model, side_init="base", gate_bias_init=30.0),
    "G-MAP": lambda model: GMapForMaskedLM.from_backbones(model, copy.deepcopy(model), starts_as_encoder=True),
    "RADA": lambda model: RadaForMaskedLM.from_backbone(model),
}


def try_method(family: str, method: str) -> None:
    """Build a method's model around a family, train it for two steps, save it, load it and predict.

    Raises:
        ValueError: The method does not support the family; the message is one sentence or two.
    """
    batch = make_batch()
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    with torch.no_grad():
        expected = make_family(family)(**batch).loss
    model = BUILDERS[method](make_family(family))
    with torch.no_grad():
        tolerance = {"rtol": 0.05, "atol": 0.0} if method == "AdaLM" else {"rtol": 1e-4, "atol": 1e-4}
        torch.testing.assert_close(model.eval()(**batch).loss, expected, **tolerance)
    optimizer = torch.optim.SGD([weight for weight in model.parameters() if weight.requires_grad], lr=1e-3)
    model.train()
    for seed in range(2):
        model(**make_batch(seed)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    with tempfile.TemporaryDirectory() as folder:
        model = (merge_lora(model, folder) if method == "LoRA" else model).eval()
        model.save_pretrained(folder)
        loaded = type(model).from_pretrained(folder).eval()
    with torch.no_grad():
        torch.testing.assert_close(loaded(**inputs).logits, model(**inputs).logits, rtol=1e-4, atol=1e-5)

"""Tiny encoders of every supported family, built in process."""

import torch
from transformers import (
    AutoModelForMaskedLM,
    BertConfig,
    DebertaV2Config,
    DistilBertConfig,
    ElectraConfig,
    ModernBertConfig,
    PreTrainedConfig,
    PreTrainedModel,
    RobertaConfig,
    XLMRobertaConfig,
)

VOCAB_SIZE = 120
SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "initializer_range": 0.2,  # large enough that a wrong weight shows in the outputs
}
FAMILIES = ["bert", "roberta", "xlm-roberta", "electra", "distilbert", "modernbert", "deberta-v2"]


def make_config(family: str, dropout: float = 0.1, **options) -> PreTrainedConfig:
    """Configuration of a tiny encoder."""
    stock = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    if family == "distilbert":
        renamed = {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"}
        renamed["intermediate_size"] = "hidden_dim"
        sizes = {renamed.get(key, key): value for key, value in SIZES.items()}
        return DistilBertConfig(**sizes, dropout=dropout, attention_dropout=dropout, **options)
    if family == "modernbert":
        tokens = {"pad_token_id": 0, "bos_token_id": 2, "cls_token_id": 2, "eos_token_id": 3, "sep_token_id": 3}
        rates = {"embedding_dropout": dropout, "attention_dropout": dropout, "mlp_dropout": dropout}
        return ModernBertConfig(**SIZES, **tokens, **rates, local_attention=8, decoder_bias=True, **options)
    if family == "deberta-v2":
        relative = {"relative_attention": True, "position_buckets": 8, "pos_att_type": ["p2c", "c2p"]}
        return DebertaV2Config(**SIZES, **stock, **relative, **options)
    config_class = {
        "bert": BertConfig,
        "roberta": RobertaConfig,
        "xlm-roberta": XLMRobertaConfig,
        "electra": ElectraConfig,
    }[family]
    if family == "electra":
        options = {"embedding_size": 16, **options}
    if "roberta" in family:
        options = {"max_position_embeddings": 130, "pad_token_id": 1, **options}
    return config_class(**SIZES, **stock, **options)


def make_masked_lm(family: str, dropout: float = 0.1, **options) -> PreTrainedModel:
    """A tiny stock masked LM with biases and norms that are not at their defaults: a lost one would show."""
    model = AutoModelForMaskedLM.from_config(make_config(family, dropout, **options)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def reload(model: PreTrainedModel, folder, **options) -> PreTrainedModel:
    """Save a model and load it; no weight is missing or left over."""
    model.save_pretrained(folder)
    loaded, info = type(model).from_pretrained(folder, output_loading_info=True, **options)
    assert not any(info.values())
    return loaded


def make_batch(batch_size: int = 4, length: int = 12, masked: bool = True) -> dict[str, torch.Tensor]:
    """A batch with padding at the end of the first row; a sixth of the tokens is labeled and masked (id 4)."""
    input_ids = torch.randint(5, VOCAB_SIZE, (batch_size, length))
    attention_mask = torch.ones_like(input_ids)
    attention_mask[0, length - 3 :] = 0
    batch = {"input_ids": input_ids, "attention_mask": attention_mask}
    if masked:
        labels = torch.full_like(input_ids, -100)
        labels[:, 1::6] = input_ids[:, 1::6]
        labels[attention_mask == 0] = -100
        batch["input_ids"] = input_ids.masked_fill(labels != -100, 4)
        batch["labels"] = labels
    batch["input_ids"][attention_mask == 0] = 1
    return batch

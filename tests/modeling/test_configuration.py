"""The fields of the encoder's configuration are fields of ours: one value, read and written at either place."""

import json

import pytest
import torch
from peft import PromptTuningConfig, get_peft_model
from tiny_models import SIZES, VOCAB_SIZE, make_batch, make_config, make_masked_lm
from transformers import AutoConfig, AutoModelForMaskedLM

from hf_domain import (
    ExBertConfig,
    ExBertForMaskedLM,
    ExBertForSequenceClassification,
    GMapConfig,
    GMapForMaskedLM,
    GMapForSequenceClassification,
    RadaConfig,
    RadaForMaskedLM,
    VarMAEConfig,
    VarMAEForMaskedLM,
    VarMAEForSequenceClassification,
)

SHAPE_FIELDS = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
SHAPE_FIELDS += ("max_position_embeddings", "type_vocab_size", "pad_token_id")
DROPOUTS = {"distilbert": "dropout", "modernbert": "mlp_dropout"}


def test_fields_are_those_of_the_encoder(family):
    encoder = make_config(family)
    config = VarMAEConfig(backbone_config=encoder)
    expected = {name: getattr(encoder, name) for name in SHAPE_FIELDS if hasattr(encoder, name)}
    assert set(expected) >= {"hidden_size", "num_hidden_layers", "max_position_embeddings", "pad_token_id"}
    assert {name: getattr(config, name) for name in expected} == expected
    assert expected.items() <= config.to_dict().items()
    for name in SHAPE_FIELDS:
        assert hasattr(config, name) == hasattr(encoder, name)
    dropout = DROPOUTS.get(family, "hidden_dropout_prob")
    setattr(config, dropout, 0.35)
    assert getattr(config.backbone_config, dropout) == 0.35
    config.backbone_config.pad_token_id = 9
    assert config.to_dict()["pad_token_id"] == config.pad_token_id == 9
    assert getattr(encoder, dropout) == 0.1


def test_dropout_by_the_name_of_the_family(family, tmp_path):
    dropout = DROPOUTS.get(family, "hidden_dropout_prob")
    VarMAEForMaskedLM.from_backbone(make_masked_lm(family)).save_pretrained(tmp_path)
    loaded = VarMAEForSequenceClassification.from_pretrained(tmp_path, **{dropout: 0.45})
    rates = {module.p for module in loaded.modules() if isinstance(module, torch.nn.Dropout)}
    assert 0.45 in rates
    assert loaded.classifier.dropout.p == 0.45
    config, unused = AutoConfig.from_pretrained(tmp_path, **{dropout: 0.2}, other=1, return_unused_kwargs=True)
    assert (getattr(config.backbone_config, dropout), unused) == (0.2, {"other": 1})


def test_from_backbone_takes_fields_of_the_encoder(tmp_path):
    make_masked_lm("bert").save_pretrained(tmp_path)
    for backbone in (str(tmp_path), AutoModelForMaskedLM.from_pretrained(tmp_path)):
        model = ExBertForMaskedLM.from_backbone(backbone, hidden_dropout_prob=0.0, attn_implementation="eager")
        assert model.config.backbone_config.hidden_dropout_prob == 0.0
        assert model.get_backbone().config._attn_implementation == "eager"
        with pytest.raises(ValueError, match="has no option hidden_dropout"):
            ExBertForMaskedLM.from_backbone(backbone, hidden_dropout=0.0)


@pytest.mark.parametrize("config_class", [VarMAEConfig, ExBertConfig, RadaConfig, GMapConfig])
def test_constructor_and_copies(config_class):
    sizes = {"memory_config": make_config("bert")} if config_class is GMapConfig else {}
    config = config_class(**SIZES, hidden_dropout_prob=0.3, chunk_size_feed_forward=4, **sizes)
    nested = config.backbone_config
    assert (nested.hidden_size, nested.num_hidden_layers, nested.hidden_dropout_prob) == (32, 2, 0.3)
    assert nested.chunk_size_feed_forward == 4
    assert config.vocab_size == nested.vocab_size == VOCAB_SIZE
    assert config_class(**config.to_dict()).to_dict() == config.to_dict()
    assert config_class.from_dict(config.to_dict()).to_dict() == config.to_dict()
    outer = RadaConfig(backbone_config=config)
    outer.pad_token_id = 7
    assert (outer.intermediate_size, nested.pad_token_id, config.pad_token_id) == (48, 0, 0)
    assert outer.backbone_config.backbone_config.pad_token_id == outer.to_dict()["pad_token_id"] == 7


def test_saved_copy_never_overrules_the_encoder(tmp_path):
    """A stock Trainer wrote the tokenizer's ids beside the encoder's configuration, where nothing read them."""
    model = RadaForMaskedLM.from_backbone(make_masked_lm("roberta"))
    model.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    saved = {key: value for key, value in json.loads(file.read_text()).items() if key not in SHAPE_FIELDS}
    file.write_text(json.dumps({**saved, "pad_token_id": 5, "bos_token_id": 6, "eos_token_id": None}))
    loaded, info = RadaForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    assert loaded.config.pad_token_id == loaded.config.backbone_config.pad_token_id == 1
    assert (loaded.config.bos_token_id, loaded.config.eos_token_id) == (0, 2)
    assert "bos_token_id" not in loaded.config.to_dict()
    batch = make_batch(masked=False)
    assert torch.equal(loaded(**batch).logits, model(**batch).logits)


def test_vocabulary_of_an_exbert():
    config = ExBertConfig(backbone_config=make_config("bert"), extension_vocab_size=20)
    assert config.to_dict()["vocab_size"] == VOCAB_SIZE + 20
    assert config.backbone_config.vocab_size == VOCAB_SIZE
    config.vocab_size = VOCAB_SIZE + 30
    assert (config.base_vocab_size, config.extension_vocab_size) == (VOCAB_SIZE, 30)
    assert ExBertConfig(**config.to_dict()).vocab_size == VOCAB_SIZE + 30
    config.vocab_size = 100
    assert (config.vocab_size, config.base_vocab_size, config.extension_vocab_size) == (100, 100, 0)


def test_rotary_parameters_and_quantization_stay_with_the_encoder():
    encoder = make_config("modernbert")
    encoder.quantization_config = {"quant_method": "none"}
    config = VarMAEConfig(backbone_config=encoder)
    assert not hasattr(config, "quantization_config")
    assert config.backbone_config.rope_parameters == encoder.rope_parameters
    with pytest.raises(AttributeError, match="'VarMAEConfig' object has no attribute 'hidden_sizes'"):
        _ = config.hidden_sizes


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_memory_attention_stays_out_of_every_configuration(implementation):
    stock = make_masked_lm("bert")
    model = GMapForMaskedLM.from_backbones(stock, make_masked_lm("bert"))
    model.set_attn_implementation(implementation)
    config = model.config
    configs = [
        config,
        config.backbone_config,
        config.memory_config,
        model.get_backbone().config,
        model.get_memory().config,
    ]
    assert [each._attn_implementation for each in configs] == [implementation] * 5
    assert stock.config._attn_implementation == "sdpa"


def test_text_of_another_length_than_the_memory():
    """A prompt in front of the text makes the attention mask longer than the ids that the memory reads."""
    stock = make_masked_lm("bert")
    model = GMapForSequenceClassification.from_backbones(stock, stock, num_labels=2)
    batch = make_batch(masked=False)
    prompted = get_peft_model(model, PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=3))
    with pytest.raises(ValueError, match="memory_input_ids and memory_attention_mask must be given"):
        prompted(**batch)
    with pytest.raises(ValueError, match="must have the length of the memory's text, 12, but has 15"):
        prompted(**batch, memory_input_ids=batch["input_ids"])
    memory = {f"memory_{name}": value for name, value in batch.items()}
    assert prompted(**batch, **memory).logits.shape == (4, 2)


def test_prompt_tuning_over_an_extension_vocabulary():
    stock = make_masked_lm("bert")
    pieces = {VOCAB_SIZE + i: [5 + i] for i in range(6)}
    model = ExBertForSequenceClassification.from_backbone(stock, extension_vocabulary=pieces, num_labels=2)
    prompted = get_peft_model(model, PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=3))
    batch = make_batch(masked=False)
    batch["input_ids"][:, 2] = VOCAB_SIZE + 2
    assert prompted(**batch).logits.shape == (4, 2)


@pytest.mark.parametrize("selection", ["gumbel", "top1"])
def test_every_weight_of_the_interface_has_a_gradient(selection):
    stock = make_masked_lm("bert", dropout=0.0)
    model = RadaForMaskedLM.from_backbone(stock, selection=selection).train()
    batch = make_batch()
    loss = model(**batch).loss
    torch.testing.assert_close(loss, stock(**batch).loss)
    loss.backward()
    interface = dict(model.model.interface.named_parameters())
    assert [name for name, parameter in interface.items() if parameter.grad is None] == []
    assert all(not parameter.grad.any() for parameter in interface.values())
    model.zero_grad()
    passages = torch.randint(5, VOCAB_SIZE, (4, 2, 6))
    model(**batch, passage_input_ids=passages).loss.backward()
    assert [name for name, parameter in interface.items() if parameter.grad is None] == []
    assert interface["output.weight"].grad.any()

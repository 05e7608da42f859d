"""Stock methods of peft on the four models: what is trained, merged and unloaded."""

import copy

import pytest
import torch
from peft import IA3Config, LoraConfig, OFTConfig, PeftModel, get_peft_model
from tiny_models import VOCAB_SIZE, make_batch, make_masked_lm

import hf_domain
from hf_domain.methods.lora import add_lora
from hf_domain.methods.new_embeddings import apply_delta
from hf_domain.tokenization import VocabularyDelta

METHODS = ["VarMAE", "ExBert", "GMap", "Rada"]
HEADS = ["MaskedLM", "SequenceClassification"]
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")  # peft asks for it


def make_model(method, head="MaskedLM", dropout=0.0, **options):
    """The same tiny model at every call."""
    torch.manual_seed(7)
    stock = make_masked_lm("bert", dropout)
    model_class = getattr(hf_domain, f"{method}For{head}")
    if head == "SequenceClassification":
        options["num_labels"] = 3
    if method == "GMap":
        options = {"strategy": "gated", **options}  # a chunk of one layer leaves its gate no choice
        return model_class.from_backbones(stock, make_masked_lm("bert", dropout), **options)
    if method == "ExBert":
        options = {"extension_vocabulary": {VOCAB_SIZE + i: [i + 5] for i in range(10)}, **options}
    return model_class.from_backbone(stock, **options)


def make_inputs(method, head="MaskedLM"):
    torch.manual_seed(3)
    batch = make_batch(masked=head == "MaskedLM")
    if head == "SequenceClassification":
        batch["labels"] = torch.tensor([0, 1, 2, 1])
    if method == "Rada":
        batch["passage_input_ids"] = torch.randint(5, VOCAB_SIZE, (4, 3, 7))
    return batch


def move(model):
    """Move every trainable weight away from where it starts."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@torch.no_grad()
def predict(model, batch):
    return model.eval()(**{key: value for key, value in batch.items() if key != "labels"}).logits


def list_untrained(model):
    """Names of the trainable weights that the last backward pass did not reach."""
    return [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and (parameter.grad is None or not parameter.grad.any())
    ]


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("method", METHODS)
def test_lora_on_all_linear_layers(method, head, tmp_path):
    batch = make_inputs(method, head)
    expected = predict(make_model(method, head), batch)
    config = LoraConfig(r=4, target_modules="all-linear", task_type={"SequenceClassification": "SEQ_CLS"}.get(head))
    adapted = move(get_peft_model(make_model(method, head), config))
    adapted.train()(**batch).loss.backward()
    assert list_untrained(adapted) == []
    trained = predict(adapted, batch)
    assert (trained - expected).abs().max() > 0.05
    with adapted.disable_adapter():
        torch.testing.assert_close(predict(adapted, batch), expected, rtol=0, atol=1e-5)
    adapted.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(make_model(method, head), tmp_path)
    torch.testing.assert_close(predict(loaded, batch), trained, rtol=0, atol=1e-5)
    torch.testing.assert_close(predict(loaded.merge_and_unload(), batch), trained, rtol=0, atol=1e-5)
    if head == "MaskedLM":  # of a classifier peft leaves the trained head in the model
        torch.testing.assert_close(predict(adapted.unload(), batch), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_lora_without_target_modules(method):
    batch = make_inputs(method)
    adapted = get_peft_model(make_model(method), LoraConfig(r=4))
    names = {name for name, parameter in adapted.named_parameters() if parameter.requires_grad}
    assert any(".attention.self.query.lora_A." in name for name in names)
    assert any(".attention.self.value.lora_A." in name for name in names)
    assert not any(".memory." in name for name in names)
    move(adapted).train()(**batch).loss.backward()
    assert list_untrained(adapted) == []
    trained = predict(adapted, batch)
    torch.testing.assert_close(predict(adapted.merge_and_unload(), batch), trained, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("method", "options"), [("GMap", {}), ("Rada", {"passage_encoder": "frozen"})])
def test_our_lora_leaves_the_second_encoder(method, options):
    adapted = add_lora(make_model(method, **options), rank=4)
    names = [name for name, parameter in adapted.named_parameters() if parameter.requires_grad]
    assert names and not any(".memory." in name or ".passage_backbone." in name for name in names)
    move(adapted).train()(**make_inputs(method)).loss.backward()
    assert list_untrained(adapted) == []


@pytest.mark.parametrize("tied", [True, False])
def test_our_lora_trains_the_rows_of_new_tokens(family, tied):
    """A new adapter changes nothing, the decoder's bias included; merged, the model predicts what it learned."""
    stock = make_masked_lm(family, dropout=0.0, tie_word_embeddings=tied)
    delta = VocabularyDelta(VOCAB_SIZE, {"aa": [5, 6], "bb": [7, 8]})
    apply_delta(stock, delta)
    batch = make_batch()
    batch["input_ids"][:, 3] = VOCAB_SIZE
    batch["labels"][:, 7] = VOCAB_SIZE + 1
    tables = [stock.get_input_embeddings(), stock.get_output_embeddings()]
    before = [table.weight[VOCAB_SIZE:].clone() for table in tables]
    expected = predict(stock, batch)
    adapted = add_lora(stock, delta, rank=4)
    torch.testing.assert_close(predict(adapted, batch), expected, rtol=0, atol=1e-5)
    move(adapted).train()(**batch).loss.backward()
    assert list_untrained(adapted) == []
    trained = predict(adapted, batch)
    with adapted.disable_adapter():
        torch.testing.assert_close(predict(adapted, batch), expected, rtol=0, atol=1e-5)
    merged = adapted.merge_and_unload()
    torch.testing.assert_close(predict(merged, batch), trained, rtol=0, atol=1e-4)
    tables = [merged.get_input_embeddings(), merged.get_output_embeddings()]
    for table, rows in zip(tables, before, strict=True):
        assert (table.weight[VOCAB_SIZE:] != rows).all(dim=1).all()


CONFIGS = {
    "dora": LoraConfig(r=4, target_modules="all-linear", use_dora=True),
    "ia3": IA3Config(
        target_modules=["query", "value", "output.dense", "interface.output"], feedforward_modules=["output.dense"]
    ),
    "oft": OFTConfig(oft_block_size=4, target_modules=["query", "value"]),
    "modules_to_save": LoraConfig(r=4, modules_to_save=["classifier"], task_type="SEQ_CLS"),
}


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("method", METHODS)
def test_other_adapters(method, config, tmp_path):
    def make_trained():
        model = make_model(method, "SequenceClassification")
        if method == "Rada":  # what multiplies the zeros of a fresh interface learns nothing
            torch.nn.init.normal_(model.model.interface.output.weight, std=0.2)
        return model

    batch = make_inputs(method, "SequenceClassification")
    adapted = move(get_peft_model(make_trained(), copy.deepcopy(CONFIGS[config])))
    adapted.train()(**batch).loss.backward()
    assert list_untrained(adapted) == []
    trained = predict(adapted, batch)
    adapted.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(make_trained(), tmp_path)
    torch.testing.assert_close(predict(loaded, batch), trained, rtol=0, atol=1e-5)
    torch.testing.assert_close(predict(loaded.merge_and_unload(), batch), trained, rtol=0, atol=1e-5)


def test_statistics_of_a_mean_network_follow_its_adapter(tmp_path):
    """What peft does not save is not changed: the statistics of a network that is not trained, and is saved of one."""
    batch = make_inputs("VarMAE")
    for modules in (None, ["mean_network"]):
        adapted = get_peft_model(make_model("VarMAE"), LoraConfig(r=4, modules_to_save=modules))
        move(adapted).train()(**batch)
        trained = predict(adapted, batch)
        adapted.save_pretrained(tmp_path / str(modules))
        loaded = PeftModel.from_pretrained(make_model("VarMAE"), tmp_path / str(modules))
        torch.testing.assert_close(predict(loaded, batch), trained, rtol=0, atol=1e-5)


# -------------------------------------------------------------------------------------------- added tokens


@pytest.mark.parametrize(
    ("method", "head", "options"),
    [(method, head, {}) for method in METHODS for head in HEADS]
    + [
        ("ExBert", "MaskedLM", {"extension_vocabulary": None}),
        ("ExBert", "MaskedLM", {"tie_word_embeddings": False}),
        ("GMap", "SequenceClassification", {"strategy": "logits_fusion"}),
        ("Rada", "MaskedLM", {"passage_encoder": "frozen"}),
    ],
)
def test_added_tokens(method, head, options, tmp_path):
    """Markers of entities, say: they train, are saved, and change nothing of what was there."""
    model = make_model(method, head, **options).eval()
    batch = make_inputs(method, head)
    before, size = predict(model, batch), model.config.vocab_size
    table = model.resize_token_embeddings(size + 3)
    assert model.config.vocab_size == size + 3 and model.get_input_embeddings() is table
    after = predict(model, batch)
    # Not bit by bit: a matrix with more rows may be multiplied in another order.
    torch.testing.assert_close(after[..., : before.shape[-1]], before, rtol=1e-5, atol=1e-5)

    batch["input_ids"][:, 3] = size
    batch["input_ids"][1, 5:7] = size + 2
    if head == "MaskedLM":
        batch["labels"][:, 8] = size + 1
    assert not torch.equal(predict(model, batch), after)
    model.train()(**batch).loss.backward()
    rows = [
        weight.grad[-3:]
        for weight in {*table.parameters(), *(model.get_output_embeddings() or table).parameters()}
        if weight.grad is not None and len(weight) > 2
    ]
    assert rows and all(torch.isfinite(row).all() and row.any() for row in rows)
    move(model)
    expected = predict(model, batch)
    model.save_pretrained(tmp_path)
    loaded, info = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    torch.testing.assert_close(predict(loaded, batch), expected, rtol=0, atol=1e-6)


def test_added_tokens_of_an_exbert_inside_another_model(tmp_path):
    model = hf_domain.VarMAEForSequenceClassification.from_backbone(make_model("ExBert"), num_labels=3).eval()
    batch = make_inputs("ExBert", "SequenceClassification")
    before = predict(model, batch)
    model.resize_token_embeddings(VOCAB_SIZE + 12)
    assert torch.equal(predict(model, batch), before)
    batch["input_ids"][0, 3] = VOCAB_SIZE + 11
    model.save_pretrained(tmp_path)
    loaded = hf_domain.VarMAEForSequenceClassification.from_pretrained(tmp_path)
    assert torch.equal(predict(loaded, batch), predict(model, batch))


def test_memory_reads_a_text_without_its_added_tokens():
    """As it would read the text with the markers masked: their own states tell it nothing."""
    model = make_model("GMap", "SequenceClassification").eval()
    batch = make_inputs("GMap", "SequenceClassification")
    model.resize_token_embeddings(VOCAB_SIZE + 3)
    batch["input_ids"][:, 3] = VOCAB_SIZE + 1
    known = batch["input_ids"].clone()
    known[:, 3] = 0
    mask = batch["attention_mask"].clone()
    mask[:, 3] = 0
    given = {"memory_input_ids": known, "memory_attention_mask": mask}
    assert torch.equal(predict(model, batch), predict(model, {**batch, **given}))
    states = model.model.encode_memory(batch["input_ids"], batch["attention_mask"])
    assert torch.equal(predict(model, batch), predict(model, {**batch, "memory_states": states}))


def test_vocabulary_of_an_exbert_never_shrinks():
    model = make_model("ExBert")
    with pytest.raises(ValueError, match="must be at least 130, but would be 120"):
        model.resize_token_embeddings(VOCAB_SIZE)
    model.resize_token_embeddings(131, pad_to_multiple_of=8)
    assert model.config.vocab_size == 136


def test_lora_trains_what_a_memory_gives():
    """The outputs of the memory start at zero: frozen there, they would shut the memory out for good."""
    model = make_model("GMap", "SequenceClassification", starts_as_encoder=True)
    batch = make_inputs("GMap", "SequenceClassification")
    adapted = move(get_peft_model(model, LoraConfig(r=4, task_type="SEQ_CLS")))
    shut = {**batch, "memory_attention_mask": torch.zeros_like(batch["attention_mask"])}
    assert (predict(adapted, batch) - predict(adapted, shut)).abs().max() > 1e-3

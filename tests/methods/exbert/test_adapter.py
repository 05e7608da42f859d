"""exBERT as an adapter: what peft promises of an adapter, on the seven families, and the way to a model and back."""

import copy
import re
import shutil
import sys
import warnings
from importlib.metadata import version

import forked_python
import pytest
import torch
from huggingface_hub import ModelCard
from packaging.version import Version
from peft import AutoPeftModel, PeftModel, TrainableTokensConfig, get_peft_model
from peft.tuners.tuners_utils import BaseTuner
from safetensors.torch import load_file, save_file
from tiny_models import FAMILIES, VOCAB_SIZE, make_batch, make_masked_lm
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)
from transformers.integrations.peft import MIN_PEFT_VERSION

from hf_domain import (
    ExBertAdapterConfig,
    ExBertForMaskedLM,
    ExBertForTokenClassification,
    ExBertModel,
    VarMAEForTokenClassification,
)
from hf_domain.methods.exbert.adapter import list_head_modules
from hf_domain.methods.exbert.card import write_adapter_card
from hf_domain.methods.exbert.convert import convert_to_adapter, convert_to_model, load_under_head, save_as_model

NUM_NEW = 10
VOCABULARY = {VOCAB_SIZE + i: [i + 5, i + 20] for i in range(NUM_NEW)}
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")  # peft asks for it


def make_stock(family="bert", dropout=0.1):
    """The same tiny masked LM at every call."""
    torch.manual_seed(7)
    return make_masked_lm(family, dropout)


def randomize(model):
    """Move every trainable weight away from its default."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def make_adapter(stock, **options):
    config = ExBertAdapterConfig.from_vocabulary(VOCABULARY, VOCAB_SIZE, **options)
    return randomize(get_peft_model(stock, config))


def make_base_batch():
    torch.manual_seed(3)
    return make_batch()


def make_extended_batch():
    """The same batch with tokens and a label of the extension."""
    batch = make_base_batch()
    batch["input_ids"][1:, ::5] = VOCAB_SIZE + 3
    batch["labels"][1, 1] = VOCAB_SIZE + 4
    return batch


@torch.no_grad()
def predict(model, batch):
    return model(**{key: value for key, value in batch.items() if key != "labels"})[0]


# -------------------------------------------------------------------------------- one adapter on one base


def test_trains_saves_and_unloads(family, tmp_path):
    stock = make_stock(family)
    before = {key: value.clone() for key, value in stock.state_dict().items()}
    base_logits = predict(stock, make_base_batch())
    model = make_adapter(stock, modules_to_save=list_head_modules(stock))
    start = {name: parameter.clone() for name, parameter in model.named_parameters()}
    own = {name for name in start if ".exbert_adapters." in name or ".modules_to_save." in name}

    dataset = [{key: value[row] for key, value in make_extended_batch().items()} for row in range(4)]
    options = {"max_steps": 2, "save_steps": 1, "learning_rate": 1e-2, "use_cpu": True, "disable_tqdm": True}
    Trainer(model, TrainingArguments(str(tmp_path), **options), train_dataset=dataset).train()
    model.eval()
    assert {name for name, parameter in model.named_parameters() if parameter.requires_grad} == own
    assert {name for name, parameter in model.named_parameters() if not torch.equal(parameter, start[name])} == own

    saved = load_file(tmp_path / "checkpoint-2" / "adapter_model.safetensors")
    assert all(".exbert_adapters." in key or key.removeprefix("base_model.model.") in before for key in saved)
    assert not any(value.shape == stock.get_input_embeddings().weight.shape for value in saved.values())
    for options in ({"adapter_name": "other"}, {"low_cpu_mem_usage": True}):
        again = PeftModel.from_pretrained(make_stock(family), tmp_path / "checkpoint-2", **options)
        assert torch.equal(predict(again, make_extended_batch()), predict(model, make_extended_batch()))

    with model.disable_adapter():
        assert torch.equal(predict(model, make_base_batch()), base_logits)
        assert torch.isfinite(model(**make_base_batch()).loss)
    assert model.unload() is stock
    assert stock.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[key]) for key, value in stock.state_dict().items())
    assert type(stock.get_input_embeddings()) is torch.nn.Embedding
    assert stock.config.vocab_size == VOCAB_SIZE
    assert torch.equal(predict(stock, make_base_batch()), base_logits)


@pytest.mark.parametrize("vocabulary", [VOCABULARY, None])
def test_equals_the_model_and_converts_both_ways(family, vocabulary):
    model = ExBertForMaskedLM.from_backbone(make_stock(family), extension_vocabulary=vocabulary, gate_bias_init=0.5)
    randomize(model)
    batch = make_extended_batch() if vocabulary else make_base_batch()
    adapter = convert_to_adapter(model, make_stock(family)).eval()
    torch.testing.assert_close(predict(adapter, batch), predict(model, batch), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(adapter(**batch).loss, model(**batch).loss)  # the stock head's loss and ours
    back = convert_to_model(adapter)
    assert back.config.to_dict() == model.config.to_dict()
    torch.testing.assert_close(predict(back, batch), predict(model, batch), rtol=1e-5, atol=1e-5)


def test_encoder_alone_converts_both_ways(tmp_path):
    make_stock().save_pretrained(tmp_path)
    model = ExBertModel.from_backbone(AutoModel.from_pretrained(tmp_path), extension_vocabulary=VOCABULARY)
    adapter = convert_to_adapter(model, AutoModel.from_pretrained(tmp_path)).eval()
    assert torch.equal(predict(adapter, make_extended_batch()), predict(model, make_extended_batch()))
    back = convert_to_model(adapter)
    assert type(back) is ExBertModel
    assert torch.equal(predict(back, make_extended_batch()), predict(model, make_extended_batch()))


def test_adapter_on_an_untied_base_converts_to_a_model():
    stock = make_stock()
    stock.config.tie_word_embeddings = False
    stock.set_output_embeddings(copy.deepcopy(stock.get_output_embeddings()))
    stock.get_output_embeddings().weight = torch.nn.Parameter(torch.randn_like(stock.get_output_embeddings().weight))
    adapter = make_adapter(stock, gate_bias_init=0.5)
    model = convert_to_model(adapter).eval()
    torch.testing.assert_close(
        predict(model, make_extended_batch()), predict(adapter, make_extended_batch()), rtol=1e-5, atol=1e-5
    )


def test_what_cannot_be_converted():
    model = ExBertForMaskedLM.from_backbone(make_stock(), extension_vocabulary=VOCABULARY)
    with torch.no_grad():
        model.model.backbone.encoder.layer[1].output.dense.bias.add_(1.0)
    with pytest.raises(ValueError, match=r"encoder.layer.1.output.dense.bias: it was trained too"):
        convert_to_adapter(model, make_stock())
    model = ExBertForMaskedLM.from_backbone(make_stock(), tie_word_embeddings=False)
    with pytest.raises(ValueError, match="must have tie_word_embeddings=True"):
        convert_to_adapter(model, make_stock())


@pytest.mark.parametrize("absent", ["extension_vocab_size", "extension_hidden_size"])
def test_ablations(absent):
    model = randomize(get_peft_model(make_stock(), ExBertAdapterConfig(**{"extension_vocab_size": 10, absent: 0})))
    names = [name for name, _ in model.named_parameters() if ".exbert_adapters." in name]
    assert any(".side." in name for name in names) is (absent == "extension_vocab_size")
    assert any(".extension." in name for name in names) is (absent == "extension_hidden_size")
    assert predict(model, make_base_batch()).shape[-1] == VOCAB_SIZE + (0 if absent == "extension_vocab_size" else 10)
    model(**make_base_batch()).loss.backward()
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    assert [name for name, weight in trained.items() if weight.grad is None] == []  # DDP stops at the first


# ---------------------------------------------------------------------------------- loading without a base


def save_on_named_base(folder):
    """Save a base, and beside it an adapter with its expanded tokenizer; return the adapter's predictions."""
    make_stock().save_pretrained(folder / "base")
    stock = AutoModelForMaskedLM.from_pretrained(folder / "base")
    model = make_adapter(stock)
    model.save_pretrained(folder / "adapter")
    vocabulary = {f"w{i}": i for i in range(VOCAB_SIZE + NUM_NEW)}
    backend = Tokenizer(WordPiece(vocabulary, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="w0").save_pretrained(folder / "adapter")
    return predict(model, make_extended_batch())


@pytest.mark.skipif(
    Version(version("peft")) < Version(MIN_PEFT_VERSION),
    reason=f"this transformers loads no adapter without peft {MIN_PEFT_VERSION}",
)
def test_loads_by_the_auto_classes_with_its_tokenizer(tmp_path):
    expected = save_on_named_base(tmp_path)
    by_transformers = AutoModelForMaskedLM.from_pretrained(tmp_path / "adapter")
    assert torch.equal(predict(by_transformers, make_extended_batch()), expected)
    by_transformers.disable_adapters()
    base = AutoModelForMaskedLM.from_pretrained(tmp_path / "base")
    assert torch.equal(predict(by_transformers, make_base_batch()), predict(base, make_base_batch()))
    # AutoPeftModel resizes the base to the tokenizer; the extension stands all the same.
    by_peft = AutoPeftModel.from_pretrained(tmp_path / "adapter")
    assert by_peft.get_base_model().get_input_embeddings().num_embeddings == VOCAB_SIZE + NUM_NEW
    assert torch.equal(predict(by_peft, make_extended_batch()), expected)


def test_masked_lm_adapter_under_a_classifier_trains_and_saves_the_head(tmp_path):
    """Without the head in `modules_to_save`, a reload would draw another head: the trained model would be lost."""
    make_stock().save_pretrained(tmp_path / "base")
    stock = AutoModelForMaskedLM.from_pretrained(tmp_path / "base")
    make_adapter(stock, modules_to_save=list_head_modules(stock)).save_pretrained(tmp_path / "adapter")

    def load_base():
        return AutoModelForSequenceClassification.from_pretrained(tmp_path / "base", num_labels=3)

    with pytest.warns(UserWarning, match=r"\(bert.pooler, classifier\), but names cls.*transform: no head"):
        PeftModel.from_pretrained(load_base(), tmp_path / "adapter", is_trainable=True)
    with pytest.warns(UserWarning, match="but names nothing: no head is trained"):
        get_peft_model(load_base(), ExBertAdapterConfig())
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "modules_to_save should name")
        model = load_under_head(load_base(), tmp_path / "adapter")
        get_peft_model(load_base(), ExBertAdapterConfig(modules_to_save=["classifier"]))
        frozen = PeftModel.from_pretrained(load_base(), tmp_path / "adapter")  # only to predict
    expected = AutoModelForMaskedLM.from_pretrained(tmp_path / "adapter").eval().base_model
    for each in (model, frozen):
        encoder = each.eval().get_base_model().base_model
        assert torch.equal(predict(encoder, make_extended_batch()), predict(expected, make_extended_batch()))
    head = [weight for name, weight in model.named_parameters() if "classifier.modules_to_save" in name]
    before = [weight.clone() for weight in head]
    batch = {**make_extended_batch(), "labels": torch.tensor([0, 1, 2, 1])}
    dataset = [{name: values[row] for name, values in batch.items()} for row in range(4)]
    options = {"max_steps": 2, "learning_rate": 1e-2, "use_cpu": True, "disable_tqdm": True, "save_strategy": "no"}
    Trainer(model, TrainingArguments(str(tmp_path), report_to="none", **options), train_dataset=dataset).train()
    assert head and not any(torch.equal(weight, start) for weight, start in zip(head, before, strict=True))
    expected = predict(model.eval(), batch)
    model.save_pretrained(tmp_path / "classifier")
    again = PeftModel.from_pretrained(load_base(), tmp_path / "classifier").eval()
    assert torch.equal(predict(again, batch), expected)


def test_adapter_of_an_encoder_under_a_classifier(family, tmp_path):
    """Its weights have the names of an encoder without a head, and all of them were dropped."""
    make_stock(family).base_model.save_pretrained(tmp_path / "base")
    make_adapter(AutoModel.from_pretrained(tmp_path / "base")).save_pretrained(tmp_path / "adapter")
    expected = PeftModel.from_pretrained(AutoModel.from_pretrained(tmp_path / "base"), tmp_path / "adapter").eval()
    head = AutoModelForSequenceClassification.from_pretrained(tmp_path / "base", num_labels=3)
    encoder = load_under_head(head, tmp_path / "adapter").eval().get_base_model().base_model
    assert torch.equal(predict(encoder, make_extended_batch()), predict(expected, make_extended_batch()))
    weights = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    save_file(dict(list(weights.items())[1:]), tmp_path / "adapter" / "adapter_model.safetensors")
    head = AutoModelForSequenceClassification.from_pretrained(tmp_path / "base", num_labels=3)
    with pytest.raises(ValueError, match="has no weights for"):
        load_under_head(head, tmp_path / "adapter")


@pytest.mark.commands
def test_card_says_how_to_load(tmp_path):
    save_on_named_base(tmp_path)
    card = ModelCard.load(tmp_path / "adapter" / "README.md")
    assert card.text.lstrip().startswith("# adapter\n") and "```python\nimport hf_domain" in card.text
    assert "without it, peft stops with `KeyError: 'EXBERT'`" in card.text
    assert str(tmp_path) not in card.content and "<" not in card.text and card.data.base_model is None
    run_usage(card, tmp_path)


def run_usage(card, folder):
    """Run the code of a card as it is, beside the folders that it names."""
    code = re.search(r"```python\n(.*?)```", card.text, re.DOTALL)[1]
    command = [sys.executable, "-c", f"{code}\nprint(len(model.peft_config))"]
    run = forked_python.run(command, cwd=folder, has_libraries=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip().endswith("1")


@pytest.mark.commands
def test_card_of_an_adapter_in_a_run_names_its_subfolder(tmp_path):
    """The adapter was saved at the top, in a folder for unfinished files, and moved to `adapter/`."""
    make_stock().save_pretrained(tmp_path / "base")
    model = make_adapter(AutoModelForMaskedLM.from_pretrained(tmp_path / "base"))
    model.save_pretrained(tmp_path / "run")
    save_as_model(model, tmp_path / "run")
    card = ModelCard.load(tmp_path / "run" / "adapter" / "README.md")
    assert 'PeftModel.from_pretrained(base, "run", subfolder="adapter")' in card.text
    assert str(tmp_path) not in card.content
    run_usage(card, tmp_path)


def test_card_keeps_a_base_on_the_hub(tmp_path):
    for _ in range(2):  # peft updates the card each time
        write_adapter_card(tmp_path, "google-bert/bert-base-uncased", "cells")
    card = ModelCard.load(tmp_path / "README.md")
    assert (card.data.base_model, card.data.base_model_relation) == ("google-bert/bert-base-uncased", "adapter")
    assert 'from_pretrained("google-bert/bert-base-uncased")' in card.text and card.text.count("import hf_domain") == 1


def test_without_the_import_peft_does_not_know_the_type(tmp_path):
    save_on_named_base(tmp_path)
    code = "from transformers import AutoModelForMaskedLM; AutoModelForMaskedLM.from_pretrained('adapter')"
    run = forked_python.run([sys.executable, "-c", code], cwd=tmp_path, has_libraries=True)
    assert run.returncode != 0
    assert "KeyError: 'EXBERT'" in run.stderr


def test_adapter_on_a_model_of_ours():
    stock = VarMAEForTokenClassification.from_backbone(make_stock(), num_labels=3).eval()
    expected = predict(stock, make_base_batch())
    model = make_adapter(stock, modules_to_save=list_head_modules(stock))
    assert torch.isfinite(predict(model, make_extended_batch())).all()
    assert not torch.equal(predict(model, make_base_batch()), expected)
    assert torch.equal(predict(model.unload(), make_base_batch()), expected)


# -------------------------------------------------------------------------------------- several adapters


def test_several_adapters_on_one_base(tmp_path):
    model = make_adapter(make_stock())
    first = predict(model, make_extended_batch())
    larger = {VOCAB_SIZE + i: [i] for i in range(20)}
    model.add_adapter("second", ExBertAdapterConfig.from_vocabulary(larger, VOCAB_SIZE, extension_size=16.3))
    model.add_adapter("plain", ExBertAdapterConfig())
    assert torch.equal(predict(model, make_extended_batch()), first)
    model.set_adapter("second")
    second = predict(randomize(model), make_extended_batch())
    assert second.shape[-1] == VOCAB_SIZE + 20
    assert torch.isfinite(model(**make_extended_batch()).loss)
    model.set_adapter("plain")
    assert predict(model, make_base_batch()).shape[-1] == VOCAB_SIZE
    model.save_pretrained(tmp_path)
    model.delete_adapter("plain")
    model.set_adapter("default")
    assert torch.equal(predict(model, make_extended_batch()), first)
    model.delete_adapter("default")
    assert torch.equal(predict(model, make_extended_batch()), second)
    assert not any(".default." in name for name, _ in model.named_parameters())

    loaded = PeftModel.from_pretrained(make_stock(), tmp_path / "second", adapter_name="mine")
    loaded.load_adapter(tmp_path, adapter_name="first")
    assert torch.equal(predict(loaded, make_extended_batch()), second)
    loaded.set_adapter("first")
    assert torch.equal(predict(loaded, make_extended_batch()), first)


def test_only_one_adapter_at_a_time():
    model = make_adapter(make_stock())
    model.add_adapter("second", ExBertAdapterConfig())
    batch, expected = make_extended_batch(), predict(model, make_extended_batch())
    with pytest.raises(ValueError, match="must serve all rows of a batch, but adapter_names gives each row its own"):
        model(**batch, adapter_names=["default", "second", "default", "second"])
    with pytest.raises(ValueError, match=r"must be active at a time, .* are to be: default, second"):
        model.base_model.set_adapter(["default", "second"])
    assert model.active_adapters == ["default"]
    assert torch.equal(predict(model, batch), expected)


def test_another_start_of_the_extension_is_refused():
    model = make_adapter(make_stock())
    with pytest.raises(ValueError, match=r"starts at 110 and another adapter at 120"):
        model.add_adapter("other", ExBertAdapterConfig(extension_vocab_size=5, base_vocab_size=110))


@pytest.mark.parametrize("name", ["side", "gate", "encoder", "extension"])
def test_name_of_a_module_is_refused(name):
    # peft leaves out every key with another adapter's name in it: a second adapter would lose its weights unseen.
    model = make_adapter(make_stock())
    with pytest.raises(ValueError, match=f"must not be that of a module of the model, but '{name}'"):
        model.add_adapter(name, ExBertAdapterConfig())


# -------------------------------------------------------------------------------------------- bad input


def test_wrong_base_is_detected(tmp_path):
    model = make_adapter(make_stock())
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"'model_type': 'bert'.*but is loaded on .*'model_type': 'roberta'"):
        PeftModel.from_pretrained(make_stock("roberta"), tmp_path)
    stock = make_stock()
    stock.resize_token_embeddings(VOCAB_SIZE - 8)
    with pytest.raises(ValueError, match=r"'vocab_size': 120.*but is loaded on .*'vocab_size': 112"):
        PeftModel.from_pretrained(stock, tmp_path)


def test_base_of_another_name_is_a_warning(tmp_path):
    save_on_named_base(tmp_path)
    shutil.copytree(tmp_path / "base", tmp_path / "elsewhere")
    with pytest.warns(UserWarning, match="has the same shape; its predictions are meaningless unless"):
        PeftModel.from_pretrained(AutoModelForMaskedLM.from_pretrained(tmp_path / "elsewhere"), tmp_path / "adapter")


def test_wrong_configuration(monkeypatch):
    with pytest.raises(ValueError, match="starts at id 120 and the base has 110 rows"):
        ExBertAdapterConfig.from_vocabulary(VOCABULARY, 110)
    with pytest.raises(ValueError, match="multiple of the base's 4 attention heads"):
        get_peft_model(make_stock(), ExBertAdapterConfig(extension_hidden_size=30))
    with pytest.raises(ValueError, match="cannot be merged, because its gates depend on the token"):
        make_adapter(make_stock()).merge_and_unload()
    extended = ExBertForMaskedLM.from_backbone(make_stock(), extension_vocabulary=VOCABULARY)
    with pytest.raises(ValueError, match="must not be an exBERT"):
        get_peft_model(extended, ExBertAdapterConfig())
    monkeypatch.delattr(BaseTuner, "_remove_adapter_name_from_key")
    with pytest.raises(ImportError, match=r"needs peft 0.21 or newer, but finds \d"):
        ExBertAdapterConfig()


# ------------------------------------------------------------------- numbers under other conditions


def test_bfloat16_base(family):
    model = make_adapter(make_stock(family).to(torch.bfloat16)).train()
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters() if parameter.requires_grad)
    loss = model(**make_extended_batch()).loss
    loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.requires_grad)


def test_adapter_in_the_type_of_its_base():
    config = ExBertAdapterConfig.from_vocabulary(VOCABULARY, VOCAB_SIZE)
    model = get_peft_model(make_stock().to(torch.bfloat16), config, autocast_adapter_dtype=False)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    model(**make_extended_batch()).loss.backward()


@pytest.mark.compiled
@pytest.mark.parametrize("family", FAMILIES)
def test_compiled_whole(family):
    model = make_adapter(make_stock(family))
    batch = {key: value for key, value in make_extended_batch().items() if key != "labels"}
    torch._dynamo.reset()
    compiled = torch.compile(model.get_base_model(), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(**batch).logits, predict(model, batch), rtol=1e-4, atol=1e-4)


def test_activation_checkpointing_gives_the_same_gradient(family):
    gradients = []
    for checkpointed in (False, True):
        stock = make_stock(family, dropout=0.0)
        if checkpointed:
            (getattr(stock, "activation_checkpointing_enable", None) or stock.gradient_checkpointing_enable)()
        model = make_adapter(stock).train()
        model(**make_extended_batch()).loss.backward()
        gradients.append([parameter.grad for parameter in model.parameters() if parameter.requires_grad])
    for plain, other in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, other, rtol=1e-3, atol=1e-5)


# --------------------------------------------------------------------- peft's own methods on our models


def test_trainable_tokens_on_our_models(tmp_path):
    model = ExBertForTokenClassification.from_backbone(make_stock(), extension_vocabulary=VOCABULARY)
    model.save_pretrained(tmp_path / "base")
    config = TrainableTokensConfig(token_indices=[3, 4], target_modules=["word_embeddings.extension"])
    adapter = randomize(get_peft_model(model, config))
    batch = make_extended_batch()
    labels = torch.zeros_like(batch.pop("labels"))
    adapter(**batch, labels=labels).loss.backward()
    assert {name for name, parameter in adapter.named_parameters() if parameter.grad is not None} == {
        "base_model.model.model.backbone.embeddings.word_embeddings.extension.trainable_tokens_delta.default"
    }
    adapter.save_pretrained(tmp_path / "adapter")
    again = ExBertForTokenClassification.from_pretrained(tmp_path / "base")
    assert torch.equal(predict(PeftModel.from_pretrained(again, tmp_path / "adapter"), batch), predict(adapter, batch))

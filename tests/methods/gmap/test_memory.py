"""Inputs and states of a memory: two tokenizers, the collator, the cache."""

import logging

import pytest
import torch
from datasets import Dataset
from tiny_models import make_config, make_masked_lm
from tiny_tokenizers import SENTENCES, make_bert_tokenizer, make_roberta_tokenizer
from transformers import AutoModelForMaskedLM, DataCollatorWithPadding, Trainer, TrainingArguments

from hf_domain import GMapConfig, GMapForSequenceClassification, GMapModel, VarMAEConfig
from hf_domain.methods import hidden_state_cache
from hf_domain.methods.gmap.memory import (
    DataCollatorWithMemory,
    DatasetWithMemory,
    cache_memory_states,
    check_same_ids,
    describe_states,
    load_memory_tokenizer,
    name_memory_inputs,
)


@pytest.fixture
def tokenizer():
    return make_bert_tokenizer()


def make_gmap(tokenizer, head=GMapModel, memory_vocab_size=None, **options):
    """A G-MAP whose encoders know the tokenizer, or whose memory has another vocabulary."""
    encoders = []
    for size in (len(tokenizer), memory_vocab_size or len(tokenizer)):
        config = make_config("bert", dropout=0.0)
        config.vocab_size = size
        encoders.append(AutoModelForMaskedLM.from_config(config))
    return head.from_backbones(*encoders, **options)


def tokenize(tokenizer, texts=SENTENCES, memory_tokenizer=None, **options):
    columns = {**tokenizer(texts, **options), "labels": [row % 2 for row in range(len(texts))]}
    if memory_tokenizer is not None:
        columns |= name_memory_inputs(Dataset.from_dict(dict(memory_tokenizer(texts)))).to_dict()
    return Dataset.from_dict(columns)


def open_cache(folder, model, dataset):
    """Read what was computed, as far as it fits the model and the text."""
    return hidden_state_cache.StateStore(folder, describe_states(model, dataset))


# -------------------------------------------------------------------------------------------- two tokenizers


def test_inputs_of_both_tokenizers(tokenizer):
    memory_tokenizer = make_roberta_tokenizer()
    dataset = tokenize(tokenizer, memory_tokenizer=memory_tokenizer)
    assert dataset["memory_input_ids"][1] == memory_tokenizer(SENTENCES[1])["input_ids"]
    assert dataset["input_ids"][1] == tokenizer(SENTENCES[1])["input_ids"]
    assert "memory_token_type_ids" not in dataset.column_names  # RoBERTa has none
    assert "memory_token_type_ids" in tokenize(tokenizer, memory_tokenizer=tokenizer).column_names
    assert not any(name.startswith("memory_") for name in tokenize(tokenizer).column_names)

    collator = DataCollatorWithMemory(DataCollatorWithPadding(tokenizer), memory_tokenizer)
    batch = collator([dataset[row] for row in (0, 4)])
    expected = memory_tokenizer.pad({"input_ids": [dataset["memory_input_ids"][row] for row in (0, 4)]})
    assert batch["memory_input_ids"].tolist() == expected["input_ids"]
    assert batch["memory_attention_mask"].tolist() == expected["attention_mask"]
    assert batch["input_ids"].shape != batch["memory_input_ids"].shape
    assert batch["labels"].tolist() == [0, 0]

    model = make_gmap(tokenizer, GMapForSequenceClassification, memory_vocab_size=len(memory_tokenizer))
    together = model(**batch).logits
    alone = model(**collator([dataset[4]])).logits
    torch.testing.assert_close(together[1:], alone, rtol=1e-4, atol=1e-5)


def test_collator_without_memory(tokenizer):
    collator = DataCollatorWithPadding(tokenizer)
    rows = list(tokenize(tokenizer))
    plain, wrapped = collator(rows), DataCollatorWithMemory(collator)(rows)
    assert plain.keys() == wrapped.keys()
    assert all(torch.equal(plain[name], wrapped[name]) for name in plain)


def test_memory_tokenizer_is_found(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    own = {"memory_tokenizer": "own"}
    assert load_memory_tokenizer(VarMAEConfig()) is load_memory_tokenizer(GMapConfig()) is None
    loaded = load_memory_tokenizer(GMapConfig(**own, memory_name_or_path=str(tmp_path)))
    assert loaded.get_vocab() == tokenizer.get_vocab()
    with pytest.raises(ValueError, match="must have memory_name_or_path"):
        load_memory_tokenizer(GMapConfig(**own))
    check_same_ids(tokenizer, loaded)
    with pytest.raises(ValueError, match="both encoders must have one tokenizer"):
        check_same_ids(tokenizer, make_bert_tokenizer(SENTENCES[:2]))


# ------------------------------------------------------------------------------------------------- the cache


@pytest.mark.parametrize("own", [False, True])
def test_cached_states_are_those_of_the_memory(own, tokenizer, tmp_path):
    memory_tokenizer = make_roberta_tokenizer() if own else None
    model = make_gmap(tokenizer, memory_vocab_size=len(memory_tokenizer) if own else None)
    dataset = tokenize(tokenizer, memory_tokenizer=memory_tokenizer)
    (left := tmp_path / "cache" / "memory_cache.json.0.unfinished").parent.mkdir()
    left.write_text("{", encoding="utf-8")
    cache = cache_memory_states(model, dataset, tmp_path / "cache", batch_size=2)
    assert len(cache) == len(dataset) and not left.exists()
    prefix = "memory_" if own else ""
    for row, states in enumerate(cache):
        expected = model.encode_memory(torch.tensor([dataset[f"{prefix}input_ids"][row]]))[0]
        assert states.dtype == torch.bfloat16
        torch.testing.assert_close(states.float(), expected, rtol=1e-2, atol=2e-2)
    assert {file.suffix for file in (tmp_path / "cache").iterdir()} <= {".json", ".safetensors", ".lock"}
    total = sum(len(ids) for ids in dataset[f"{prefix}input_ids"])
    (shard,) = (tmp_path / "cache").glob("*.safetensors")
    assert 0 < shard.stat().st_size - total * 2 * 32 * 2 < 600  # ids, places and a header
    with pytest.raises(IndexError):
        cache[len(dataset)]


def test_padding_is_not_kept(tokenizer, tmp_path):
    model = make_gmap(tokenizer)
    padded = tokenize(tokenizer, padding="max_length", max_length=40, truncation=True)
    cache = cache_memory_states(model, padded, tmp_path / "padded")
    plain = cache_memory_states(model, tokenize(tokenizer), tmp_path / "plain")
    assert len(cache) == len(plain)
    assert all(torch.equal(one, other) for one, other in zip(cache, plain, strict=True))


def test_training_on_cached_states(tokenizer, tmp_path):
    model = make_gmap(tokenizer, GMapForSequenceClassification)
    dataset = tokenize(tokenizer)
    cached = DatasetWithMemory(dataset, cache_memory_states(model, dataset, tmp_path / "cache"))
    model.get_memory().register_forward_hook(lambda *_: pytest.fail("the memory encoder was run"))
    arguments = TrainingArguments(str(tmp_path), num_train_epochs=2, use_cpu=True, disable_tqdm=True, report_to="none")
    collator = DataCollatorWithMemory(DataCollatorWithPadding(tokenizer))
    trainer = Trainer(model, arguments, train_dataset=cached, eval_dataset=cached, data_collator=collator)
    assert trainer.train().training_loss > 0
    assert trainer.evaluate()["eval_loss"] > 0


def count_runs(model):
    runs = []
    model.base_model.memory.register_forward_hook(lambda *_: runs.append(1))
    return runs


def test_cache_is_computed_once_and_again_after_a_change(tokenizer, tmp_path, caplog):
    model, dataset = make_gmap(tokenizer), tokenize(tokenizer)
    runs = count_runs(model)
    caplog.set_level(logging.WARNING)
    first = cache_memory_states(model, dataset, tmp_path)[0]
    assert len(runs) == 1
    assert torch.equal(cache_memory_states(model, dataset, tmp_path)[0], first)
    model.memory_gates[0].weight.data.add_(1)  # what is trained changes nothing
    cache_memory_states(model, dataset, tmp_path)
    assert len(runs) == 1 and not caplog.records

    with torch.no_grad():
        # Not a sum: a number added to all features is what the LayerNorm behind the embeddings removes.
        next(model.memory.parameters()).copy_(next(model.memory.parameters()).flip(-1))
    with pytest.raises(ValueError, match="must have the memory encoder"):
        open_cache(tmp_path, model, dataset)
    cache_memory_states(model, dataset, tmp_path / "with buffers")
    model.memory.register_buffer("statistics", torch.ones(2))  # such as those of a VarMAE's normalization
    with pytest.raises(ValueError, match="must have the memory encoder"):
        open_cache(tmp_path / "with buffers", model, dataset)
    del model.memory.statistics
    assert not torch.equal(cache_memory_states(model, dataset, tmp_path)[0], first)
    other_text = tokenize(tokenizer, texts=SENTENCES[:3])
    with pytest.raises(ValueError, match="must have the token ids"):
        open_cache(tmp_path, model, other_text)
    assert len(cache_memory_states(model, other_text, tmp_path)) == 3
    other_tokenizer = tokenize(make_bert_tokenizer(SENTENCES[::-1]), texts=SENTENCES[:3])
    with pytest.raises(ValueError, match="must have the token ids"):
        open_cache(tmp_path, model, other_tokenizer)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ValueError, match="must have the precision"):
        open_cache(tmp_path, model, other_text)
    single = make_gmap(tokenizer, strategy="single_layer")
    single.memory.load_state_dict(model.memory.state_dict())
    with pytest.raises(ValueError, match="must have the choice of states"):
        open_cache(tmp_path, single, other_text)
    assert cache_memory_states(single, other_text, tmp_path)[0].shape[1:] == (1, 32)
    assert [record.message.partition("because ")[2] for record in caplog.records] == [
        "the memory encoder changed",
        "the token ids changed",
        "the choice of states changed",
    ]


def test_interrupted_computation_over_an_old_cache(tokenizer, tmp_path, monkeypatch):
    model, dataset = make_gmap(tokenizer), tokenize(tokenizer)
    old = cache_memory_states(model, dataset, tmp_path)
    before = [states.clone() for states in old]
    other = make_gmap(tokenizer)

    def fail(*_, **__):
        raise KeyboardInterrupt

    for name in ("save_file", "write_json"):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(hidden_state_cache, name, fail)
            cache_memory_states(other, dataset, tmp_path)
        assert len(open_cache(tmp_path, model, dataset)) == len(dataset)  # the old states are still whole
        with pytest.raises(ValueError, match="must have the memory encoder"):
            open_cache(tmp_path, other, dataset)
    new = cache_memory_states(other, dataset, tmp_path)
    assert not torch.equal(new[0], before[0])
    assert all(torch.equal(states, kept) for states, kept in zip(old, before, strict=True))  # still readable


def test_cache_of_a_model_that_was_saved(tokenizer, tmp_path):
    model, dataset = make_gmap(tokenizer), tokenize(tokenizer)
    cache_memory_states(model, dataset, tmp_path / "cache")
    model.save_pretrained(tmp_path / "model")
    for head in (GMapModel, GMapForSequenceClassification):
        loaded = head.from_pretrained(tmp_path / "model", id2label={0: "no", 1: "yes"})
        assert len(open_cache(tmp_path / "cache", loaded, dataset)) == len(dataset)


@pytest.mark.parametrize("strategy", ["chunk_gated", "logits_fusion"])
@pytest.mark.parametrize(("side", "length"), [("right", None), ("left", None), ("right", 30), ("left", 30)])
def test_states_are_placed_at_their_tokens(strategy, side, length, tokenizer, tmp_path):
    encoders = [make_masked_lm("modernbert", dropout=0.0) for _ in range(2)]
    model = GMapForSequenceClassification.from_backbones(*encoders, strategy=strategy).eval()
    dataset = tokenize(tokenizer)
    assert len(tokenizer) <= model.config.vocab_size
    cached = DatasetWithMemory(dataset, cache_memory_states(model, dataset, tmp_path))
    tokenizer.padding_side = side
    options = {"padding": "max_length", "max_length": length} if length else {}
    collator = DataCollatorWithMemory(DataCollatorWithPadding(tokenizer, **options))
    plain, batch = (collator([rows[row] for row in range(5)]) for rows in (dataset, cached))
    assert torch.equal(batch["memory_attention_mask"], plain["attention_mask"])
    real = plain["attention_mask"].bool()
    del batch["labels"], plain["labels"]
    states, expected = (model.model(**inputs).last_hidden_state[real] for inputs in (batch, plain))
    torch.testing.assert_close(states, expected, rtol=2e-2, atol=2e-2)


def test_dataset_in_another_order(tokenizer, tmp_path):
    """Also if all examples have the same length, so that only their ids tell."""
    dataset = tokenize(tokenizer, padding="max_length", truncation=True, max_length=4)
    cache = cache_memory_states(make_gmap(tokenizer), dataset, tmp_path)
    assert len({sum(mask) for mask in dataset["attention_mask"]}) == 1
    with pytest.raises(ValueError, match="of these examples in this order, but it has those of others"):
        DatasetWithMemory(dataset.select(range(len(dataset) - 1, -1, -1)), cache)


def test_collator_without_the_tokenizer_of_the_memory(tokenizer):
    rows = list(tokenize(tokenizer, memory_tokenizer=make_roberta_tokenizer()))
    with pytest.raises(ValueError, match="need a memory_tokenizer that pads them, but it is None"):
        DataCollatorWithMemory(DataCollatorWithPadding(tokenizer))(rows)


def test_what_has_no_states_to_keep(tokenizer, tmp_path):
    dataset = tokenize(tokenizer)
    for model in (make_gmap(tokenizer, freeze_memory=False), make_masked_lm("bert")):
        with pytest.raises(ValueError, match="needs a frozen memory"):
            cache_memory_states(model, dataset, tmp_path)
    cache = cache_memory_states(make_gmap(tokenizer), dataset, tmp_path)
    with pytest.raises(ValueError, match="all 3 examples, but has 5"):
        DatasetWithMemory(dataset.select(range(3)), cache)
    with pytest.raises(FileNotFoundError):
        open_cache(tmp_path / "nowhere", make_gmap(tokenizer), dataset)

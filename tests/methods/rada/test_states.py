"""The cache of encoded passages: equal to encoding, told in advance, valid for one source, never half written."""

import json
import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from filelock import FileLock, Timeout
from safetensors import safe_open
from tiny_models import VOCAB_SIZE, make_batch, make_masked_lm
from tiny_tokenizers import make_bert_tokenizer

from hf_domain.methods import hidden_state_cache
from hf_domain.methods.hidden_state_cache import StateSource
from hf_domain.methods.rada.states import PassageCache, build_passage_cache, describe_source, list_retrieved
from hf_domain.modeling.modeling_rada import RadaForSequenceClassification

LENGTHS = [5, 2, 9, 4, 7, 3, 8]
PASSAGE_IDS = [0, 1, 2, 4, 5, 6]  # 3 was never retrieved
INDEX = torch.tensor([[4, 0, 6], [1, -1, -1], [2, 5, -1], [-1, -1, -1]])


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(hidden_state_cache, "SHARD_SEQUENCES", 4)


@pytest.fixture
def tokenizer():
    return make_bert_tokenizer()


@pytest.fixture
def passages():
    ids = [torch.randint(5, VOCAB_SIZE, (length,)).tolist() for length in LENGTHS]
    return Dataset.from_dict({"id": range(len(ids)), "input_ids": ids})


def make_model(**options):
    options = {"passage_encoder": "frozen", "num_labels": 3, **options}
    model = RadaForSequenceClassification.from_backbone(make_masked_lm("bert", dropout=0.0), **options)
    with torch.no_grad():
        for parameter in model.model.interface.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def build(folder, model, tokenizer, passages, passage_ids=PASSAGE_IDS, **options):
    return build_passage_cache(folder, model, tokenizer, passages, "a", passage_ids, **options)


def make_passages(passages):
    """The passages of INDEX as the collator brings them."""
    rows = torch.nn.utils.rnn.pad_sequence([torch.tensor(ids) for ids in passages["input_ids"]], batch_first=True)
    mask = torch.arange(rows.shape[1]) < torch.tensor(LENGTHS)[:, None]
    return {"passage_input_ids": rows, "passage_attention_mask": mask.long(), "passage_index": INDEX}


def test_no_passage_was_retrieved(tmp_path, tokenizer, passages):
    assert not len(build(tmp_path / "cache", make_model(), tokenizer, passages, []))


@pytest.mark.parametrize("padding_side", ["right", "left"])
def test_states_are_those_of_the_encoder(tmp_path, tokenizer, passages, padding_side):
    model = make_model().train()
    tokenizer.padding_side = padding_side
    cache = build(tmp_path, model, tokenizer, passages, batch_size=2)
    assert model.training
    assert len(cache) == 6
    states, mask = cache.read_states(torch.tensor([6, 1, 4]))
    assert states.dtype == torch.bfloat16
    assert mask.sum(1).tolist() == [8, 2, 7]
    for row, number in enumerate([6, 1, 4]):
        ids = torch.tensor([passages["input_ids"][number]])
        expected = model.model.passage_backbone(ids).last_hidden_state[0]
        torch.testing.assert_close(states[row][mask[row]].float(), expected, rtol=1e-2, atol=1e-2)
        assert (states[row][~mask[row]] == 0).all()
        vector = cache.read_vectors(torch.tensor([[number]]))[0, 0]
        torch.testing.assert_close(vector, states[row][mask[row]].float().mean(0))


@pytest.mark.parametrize("scores", ["pooled", "joint"])
def test_a_model_reads_the_cache_as_it_reads_tokens(scores, tmp_path, tokenizer, passages):
    model = make_model(scores=scores, selection="top1")
    model.use_passage_cache(build(tmp_path, model, tokenizer, passages))
    batch = make_batch(masked=False)
    for training in (False, True):
        model.train(training)
        expected = model(**batch, **make_passages(passages), labels=torch.arange(4) % 3)
        output = model(**batch, passage_ids=INDEX, labels=torch.arange(4) % 3)
        assert torch.equal(output.selected_passages, expected.selected_passages)
        torch.testing.assert_close(output.passage_weights, expected.passage_weights, rtol=0, atol=0.02)
        torch.testing.assert_close(output.logits, expected.logits, rtol=0, atol=0.02)
    assert torch.equal(output.logits[3], expected.logits[3])
    gradients = []
    for loss in (expected.loss, output.loss):
        model.zero_grad()
        loss.backward()
        gradients.append(model.model.interface.value.weight.grad.clone())
    torch.testing.assert_close(*gradients, rtol=0.1, atol=0.01)
    without = model.eval()(**batch, passage_ids=torch.full((4, 3), -1)).logits
    assert torch.equal(without, model(**batch).logits)


def test_evaluation_reads_one_passage_and_training_each_once(tmp_path, tokenizer, passages, monkeypatch):
    model = make_model()
    cache = build(tmp_path, model, tokenizer, passages)
    model.use_passage_cache(cache)
    read = []
    original = PassageCache.read_states
    monkeypatch.setattr(PassageCache, "read_states", lambda self, ids: read.append(ids.tolist()) or original(self, ids))
    monkeypatch.setattr(model.model, "encode_passages", None)  # nothing is encoded
    batch = make_batch(masked=False)
    index = torch.cat([INDEX[:2], INDEX[:1], INDEX[3:]])
    selected = model(**batch, passage_ids=index).selected_passages
    (ids,) = read
    assert ids[:3] == [index[row, k].item() for row, k in enumerate(selected[:3])]
    assert len(ids) == 4
    model.train()(**batch, passage_ids=index)
    assert read[1] == [0, 1, 4, 6]


def test_size_is_reported_before(tmp_path, tokenizer, passages, monkeypatch, capsys):
    model = make_model()
    tokens = sum(LENGTHS[number] for number in PASSAGE_IDS)
    needed = StateSource({}, list, list, shape=(32,), keeps_means=True).estimate_bytes(tokens, 6)
    assert needed == tokens * 32 * 2 + 6 * (32 * 4 + 8 + 8)
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(needed - 1))
    with pytest.raises(OSError, match=r"6 sequences need .* GB.*Name another folder"):
        build(tmp_path, model, tokenizer, passages)
    assert not list(tmp_path.glob("*.*s*"))  # neither states nor a manifest
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(needed))
    build(tmp_path, model, tokenizer, passages)
    assert "6 sequences of 34 tokens: 0.0 MB" in capsys.readouterr().out
    written = 0
    for file in tmp_path.glob("*.safetensors"):
        with safe_open(file, "pt") as shard:
            written += sum(shard.get_tensor(name).nbytes for name in shard.keys())  # noqa: SIM118
    assert written == needed + 8 * 2  # one offset more in each of the two shards


def test_a_cache_is_of_one_encoder_tokenizer_and_datastore(tmp_path, tokenizer, passages):
    model = make_model()
    build(tmp_path, model, tokenizer, passages)
    source = describe_source(model, tokenizer, "a")
    PassageCache(tmp_path, source)
    with torch.no_grad():
        model.get_input_embeddings().weight[7] += 1  # the encoder that trains, not the frozen one
    assert describe_source(model, tokenizer, "a") == source
    with torch.no_grad():
        model.model.passage_backbone.get_input_embeddings().weight[7, 0] += 1
    others = {
        "encoder": (model, tokenizer, "a"),
        "tokenizer": (make_model(), make_bert_tokenizer(["other words"]), "a"),
        "passages": (make_model(), tokenizer, "b"),
    }
    other_heads = make_model()
    other_heads.config.backbone_config.num_attention_heads *= 2  # equal weights, other states
    sources = [describe_source(each, tokenizer, "a")["encoder"].split() for each in (make_model(), other_heads)]
    assert sources[0][1] != sources[1][1]
    for part, other in others.items():
        changed = source | {part: describe_source(*other)[part]}
        assert changed != source
        with pytest.raises(ValueError, match=f"must have the {part} .*Compute them again"):
            PassageCache(tmp_path, changed)


def test_a_shared_encoder_may_read_but_not_train(tmp_path, tokenizer, passages):
    model = make_model(passage_encoder="shared")
    model.use_passage_cache(build(tmp_path, model, tokenizer, passages))
    batch = make_batch(masked=False)
    model(**batch, passage_ids=INDEX)
    with pytest.raises(ValueError, match=r"goes stale.*passage_encoder='frozen'"):
        model.train()(**batch, passage_ids=INDEX)


def count_encoded(model, monkeypatch):
    encoded, encode = [], model.model.encode_passages
    monkeypatch.setattr(model.model, "encode_passages", lambda ids, mask: encoded.append(len(ids)) or encode(ids, mask))
    return encoded


def test_what_is_there_is_not_encoded_again(tmp_path, tokenizer, passages, monkeypatch):
    model = make_model()
    encoded = count_encoded(model, monkeypatch)
    build(tmp_path, model, tokenizer, passages)
    assert sum(encoded) == 6
    build(tmp_path, model, tokenizer, passages, [2, 4])
    assert sum(encoded) == 6
    before = {file: file.stat().st_mtime_ns for file in tmp_path.glob("*.safetensors")}
    cache = build(tmp_path, model, tokenizer, passages, [3])
    assert sum(encoded) == 7 and cache.ids.tolist() == list(range(7))
    assert len(before) == 2 and all(file.stat().st_mtime_ns == time for file, time in before.items())


def check_same(cache, fresh):
    ids = torch.as_tensor(fresh.ids)
    for one, other in zip(cache.read_states(ids), fresh.read_states(ids), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(cache.read_vectors(ids), fresh.read_vectors(ids))


def test_what_a_larger_datastore_still_holds_stays(tmp_path, tokenizer, passages, monkeypatch):
    model = make_model()
    encoded = count_encoded(model, monkeypatch)
    folders = (tmp_path / "cache", tmp_path / "fresh")

    def build_again(rows, fingerprint, wanted):
        encoded.clear()
        cache = build_passage_cache(folders[0], model, tokenizer, rows, fingerprint, wanted, batch_size=1)
        count, ids = sum(encoded), cache.ids.tolist()
        assert len(PassageCache(folders[0], describe_source(model, tokenizer, fingerprint))) == len(ids)
        shutil.rmtree(folders[1], ignore_errors=True)
        check_same(cache, build_passage_cache(folders[1], model, tokenizer, rows, fingerprint, ids, batch_size=1))
        return count, ids

    smaller = passages.select(range(6))
    assert build_again(smaller, "a", [0, 1, 2, 4, 5]) == (5, [0, 1, 2, 4, 5])
    assert build_again(passages, "b", [1, 3, 6]) == (2, list(range(7)))
    changed = {number: ids for number, ids in enumerate(passages["input_ids"])} | {5: [7, 8]}
    assert build_again(changed, "c", [0, 5]) == (1, [0, 1, 2, 3, 4, 5, 6])  # the shard of 5 held it alone
    del changed[0]
    assert build_again(changed, "d", [1]) == (1, [1, 3, 5, 6])
    assert len(list(folders[0].glob("states-*"))) == 3


def test_rows_are_where_they_were_written(tmp_path, tokenizer, passages, monkeypatch):
    model = make_model()
    build(tmp_path / "cache", model, tokenizer, passages, batch_size=1)
    fresh = build(tmp_path / "fresh", model, tokenizer, passages, batch_size=1)
    monkeypatch.setattr(hidden_state_cache, "SHARD_SEQUENCES", 3)
    check_same(PassageCache(tmp_path / "cache"), fresh)
    check_same(build(tmp_path / "smaller", model, tokenizer, passages, batch_size=1), fresh)
    monkeypatch.setattr(model.model, "encode_passages", None)
    check_same(build(tmp_path / "cache", model, tokenizer, passages), fresh)


def test_states_of_another_precision_are_not_read(tmp_path, tokenizer, passages, monkeypatch):
    model = make_model()
    encoded = count_encoded(model, monkeypatch)
    build(tmp_path, model, tokenizer, passages)
    with torch.autocast("cpu", torch.bfloat16):
        source = describe_source(model, tokenizer, "a")
        with pytest.raises(ValueError, match="must have the precision bfloat16, but have float32"):
            PassageCache(tmp_path, source)
        build(tmp_path, model, tokenizer, passages)
        build(tmp_path, model, tokenizer, passages)
    assert sum(encoded) == 12
    assert PassageCache(tmp_path, source).source["precision"] == "bfloat16"


def test_processes_wait_for_each_other(tmp_path, tokenizer, passages, monkeypatch):
    model = make_model()
    encode, seen = model.model.encode_passages, []

    def watch(ids, mask):
        if not (tmp_path / "again").exists():
            with pytest.raises(Timeout):
                FileLock(tmp_path / "states.lock").acquire(timeout=0)
        return encode(ids, mask)

    monkeypatch.setattr(model.model, "encode_passages", watch)
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda source, target: seen.append(str(source)) or replace(source, target))
    build(tmp_path, model, tokenizer, passages)
    build(tmp_path / "again", model, tokenizer, passages)
    unfinished = [Path(name).name for name in seen if name.endswith(".unfinished") and "states-" in name]
    assert len({*unfinished}) == len(unfinished) == 4  # processes on other machines may have the same number
    with FileLock(tmp_path / "states.lock", timeout=0):
        pass


def test_an_interrupted_build_continues_and_hurts_nothing(tmp_path, tokenizer, passages, monkeypatch):
    model = make_model()
    build(tmp_path, model, tokenizer, passages, [2, 4], batch_size=1)
    before = (tmp_path / "states.json").read_text()
    replace, finished = os.replace, []

    def die_at_the_second_shard(source, target):
        if finished:
            raise KeyboardInterrupt
        replace(source, target)
        finished.append(target)

    monkeypatch.setattr(os, "replace", die_at_the_second_shard)
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path, model, tokenizer, passages, range(7), batch_size=1)
    assert (tmp_path / "states.json").read_text() == before
    assert len(PassageCache(tmp_path)) == 2  # still the old one
    monkeypatch.setattr(os, "replace", replace)
    encoded = count_encoded(model, monkeypatch)
    cache = build(tmp_path, model, tokenizer, passages, range(7), batch_size=1)
    assert sum(encoded) == 1
    fresh = build(tmp_path / "fresh", model, tokenizer, passages, range(7), batch_size=1)
    check_same(cache, fresh)
    assert not list(tmp_path.glob("*.unfinished"))


def test_damaged_and_missing_files(tmp_path, tokenizer, passages):
    model = make_model()
    with pytest.raises(FileNotFoundError, match=r"does not\. Compute the states first"):
        PassageCache(tmp_path)
    cache = build(tmp_path, model, tokenizer, passages)
    with pytest.raises(ValueError, match="3 is not among the 6 of"):
        cache.read_vectors(torch.tensor([0, 3]))
    file = tmp_path / json.loads((tmp_path / "states.json").read_text())["shards"][1]
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(ValueError, match=rf"must be complete, but .*{file.name} cannot be read"):
        PassageCache(tmp_path)
    assert len(build(tmp_path, model, tokenizer, passages)) == 6  # the damaged shard is made again
    (tmp_path / "states.json").write_text("{")
    assert len(build(tmp_path, model, tokenizer, passages)) == 6
    assert set(json.loads((tmp_path / "states.json").read_text())) == {"source", "shards", "sequences"}


def test_shards_are_cut_by_bytes_too(tmp_path, tokenizer, passages, monkeypatch):
    model = make_model()
    whole = build(tmp_path / "whole", model, tokenizer, passages, range(7), batch_size=1)
    monkeypatch.setattr(hidden_state_cache, "SHARD_BYTES", 10 * 32 * 2)  # of ten tokens
    cut = build(tmp_path / "cut", model, tokenizer, passages, range(7), batch_size=1)
    check_same(cut, whole)
    counts = [len(list((tmp_path / name).glob("states-*"))) for name in ("whole", "cut")]
    assert counts[0] == 2 and counts[1] > 3


def test_what_was_retrieved():
    splits = [Dataset.from_dict({"passage_ids": ids}) for ids in ([[5, 2, 9], []], [[2, 7]])]
    assert list_retrieved(splits) == [2, 5, 7, 9]
    assert list_retrieved(splits, num_passages=2) == [2, 5, 7]

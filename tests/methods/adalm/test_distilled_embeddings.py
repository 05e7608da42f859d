"""New rows learn what the encoder made of their pieces, and nothing else changes."""

from itertools import chain

import pytest
import torch
from datasets import Dataset
from tiny_models import VOCAB_SIZE, make_masked_lm

from hf_domain.methods.adalm import distilled_embeddings
from hf_domain.methods.adalm.distilled_embeddings import choose_snippets, compute_loss, distill_new_rows
from hf_domain.methods.new_embeddings import apply_delta
from hf_domain.modeling.backbone import find_encoder
from hf_domain.tokenization import VocabularyDelta

DELTA = VocabularyDelta(VOCAB_SIZE, {"a": [7, 9, 11], "b": [20, 21], "c": []})
A, B, C = range(VOCAB_SIZE, VOCAB_SIZE + 3)


def make_expanded(family="bert"):
    model = make_masked_lm(family)
    apply_delta(model, DELTA)
    return model


def make_examples(count=48):
    """Texts of old entries with a new one at every third place."""
    ids = torch.randint(30, VOCAB_SIZE, (count, 12), generator=torch.Generator().manual_seed(0))
    ids[:, 2::3] = torch.randint(A, B + 1, (count, 4), generator=torch.Generator().manual_seed(1))
    return Dataset.from_dict({"input_ids": ids.tolist()})


def test_the_loss_is_the_difference_of_states():
    """Against two forwards by ids, a text at a time."""
    model = make_expanded()
    encoder, table = model.base_model, model.get_input_embeddings().weight
    rows = table[VOCAB_SIZE : DELTA.new_size].detach().clone()
    texts = [[30, A, 31], [32, B, 33, C, A, 34]]
    loss = compute_loss(encoder, table, rows, DELTA, texts)
    squares = []
    with torch.no_grad():
        for text in texts:
            new = encoder(input_ids=torch.tensor([text])).last_hidden_state[0]
            spelled = [[id_] if id_ < VOCAB_SIZE else list(DELTA.pieces.values())[id_ - VOCAB_SIZE] for id_ in text]
            old = encoder(input_ids=torch.tensor([[*chain.from_iterable(spelled)]])).last_hidden_state[0]
            start = 0
            for state, pieces in zip(new, spelled, strict=True):
                if pieces:  # an entry that no pieces spelled has no target
                    squares.append((state - old[start : start + len(pieces)].mean(0)).square())
                start += len(pieces)
    assert loss.item() == pytest.approx(torch.cat(squares).mean().item(), rel=1e-5)


def test_new_rows_alone_train_and_come_closer(family):
    model = make_expanded(family)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    texts, table = make_examples()["input_ids"], model.get_input_embeddings().weight

    def measure():
        with torch.no_grad():
            return compute_loss(model.base_model, table, table[VOCAB_SIZE : DELTA.new_size], DELTA, texts).item()

    loss = measure()
    distill_new_rows(model, DELTA, make_examples(), learning_rate=0.02, batch_size=4, progress=False)
    assert measure() < 0.95 * loss
    assert {name for name, parameter in model.named_parameters() if parameter.requires_grad} == trained
    for name, tensor in model.state_dict().items():
        if tensor.data_ptr() == table.data_ptr():
            assert torch.equal(tensor[:VOCAB_SIZE], before[name][:VOCAB_SIZE])
            moved = (tensor[VOCAB_SIZE:] != before[name][VOCAB_SIZE:]).any(1)
            assert moved.tolist() == [True, True, False]  # nothing shows the third
        else:
            assert torch.equal(tensor, before[name]), name
    assert find_encoder(model) is model.base_model


def test_the_order_comes_from_the_seed():
    models = [make_expanded() for _ in range(3)]
    models[1].load_state_dict(models[0].state_dict())
    models[2].load_state_dict(models[0].state_dict())
    for model, seed in zip(models, (1, 1, 2), strict=True):
        distill_new_rows(model, DELTA, make_examples(), seed, progress=False)
    tables = [model.get_input_embeddings().weight for model in models]
    assert torch.equal(tables[0], tables[1]) and not torch.equal(tables[0], tables[2])


def test_text_without_new_entries_changes_nothing():
    model = make_expanded()
    before = model.get_input_embeddings().weight.detach().clone()
    first, last = distill_new_rows(model, DELTA, Dataset.from_dict({"input_ids": [[30, 31]]}), progress=False)
    assert first != first and last != last  # NaN
    assert torch.equal(model.get_input_embeddings().weight, before)


def test_snippets_show_each_entry_often_enough(monkeypatch):
    examples = [{"input_ids": ids} for ids in ([30, A], [31, 32], [A, A], [A, B], [A], [B])]
    assert list(choose_snippets(examples, DELTA, 2)) == [[30, A], [A, A], [A, B], [B]]
    # Long texts are cut; a part whose old pieces are too many is left out.
    monkeypatch.setattr(distilled_embeddings, "SNIPPET", 2)
    assert list(choose_snippets([{"input_ids": [30, A, 31, B, 32]}], DELTA, 2)) == [[30, A], [31, B]]
    monkeypatch.setattr(distilled_embeddings, "LONGEST", 3)
    assert list(choose_snippets([{"input_ids": [30, A, 31, B, 32]}], DELTA, 2)) == [[31, B]]

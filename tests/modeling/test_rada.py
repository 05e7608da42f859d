"""RADA: the equations of section 3.3 computed a second time; further proofs are in test_proofs.py."""

import copy
import math

import pytest
import torch
from method_models import METHODS, make_batch_with_passages, make_passages, make_rada
from tiny_models import VOCAB_SIZE, make_batch, make_masked_lm
from torch.nn import functional as F
from transformers import Trainer, TrainingArguments

from hf_domain import (
    RadaConfig,
    RadaForMaskedLM,
    RadaForSequenceClassification,
    RadaModel,
    VarMAEForTokenClassification,
)
from hf_domain.modeling import selection_rada
from hf_domain.modeling.selection_rada import RetrievalInterface, average_states, sample_gumbel
from hf_domain.training.callbacks import Annealing, log_auxiliary_losses


def make_interface(hidden_size=8, num_heads=2, deviation=0.5, **options) -> RetrievalInterface:
    interface = RetrievalInterface(hidden_size, num_heads, **options).eval()
    with torch.no_grad():
        for parameter in interface.parameters():
            parameter.normal_(std=deviation)
    return interface


def make_states(batch_size=4, length=5, passages=3, passage_length=4, hidden_size=8):
    """States with padding; row 0 has all its passages, row 1 a shorter one, row 2 one, the last row none."""
    hidden_states = torch.randn(batch_size, length, hidden_size)
    attention_mask = torch.ones(batch_size, length, dtype=torch.long)
    attention_mask[0, -2:] = 0
    states = torch.randn(batch_size, passages, passage_length, hidden_size)
    mask = torch.ones(batch_size, passages, passage_length, dtype=torch.long)
    mask[1, 0, 2:] = 0
    mask[2, 1:] = 0
    mask[-1] = 0
    return hidden_states, states, attention_mask, mask


# ---------------------------------------------------------------------------------------- 1: the equations


def attend_by_the_equations(interface, rows, words, states, part):
    """Eqs. 4-7 for one head: the score of each word, summed over the positions i, as {(k, j): score}."""
    alpha = {
        (i, k, j): (interface.query.weight[part] @ x)
        @ (interface.key.weight[part] @ states[k, j])
        / math.sqrt(part.stop - part.start)
        for i, x in enumerate(rows)
        for k, j in words
    }
    if interface.scores == "joint":
        alpha = {
            (i, k, j): torch.exp(value) / sum(torch.exp(alpha[i, *word]) for word in words)
            for (i, k, j), value in alpha.items()
        }
    total = {word: sum(alpha[i, *word] for i in range(len(rows))) for word in words}
    return total if interface.scores == "literal" else {word: value / len(rows) for word, value in total.items()}


def read_by_the_equations(interface, rows, states, mask, noise):
    """Eqs. 4-14 for one input, and what they are made safe with: fused vector, choice, beta and weights of words."""
    words = [(k, j) for k in range(len(mask)) for j in range(mask.shape[1]) if mask[k, j]]
    kept = sorted({k for k, _ in words})
    size = states.shape[-1] // interface.num_heads
    scores, weights, values = torch.zeros(len(kept)), {}, {k: [] for k in kept}
    for head in range(interface.num_heads):
        part = slice(head * size, (head + 1) * size)
        alpha = attend_by_the_equations(interface, rows, words, states, part)
        for position, k in enumerate(kept):
            own = torch.stack([alpha[word] for word in words if word[0] == k])
            score = own.mean() * interface.scale[0] if interface.scores == "pooled" else own.sum()
            if interface.scores == "logsumexp":
                score = torch.log(torch.exp(interface.scale[0] * own).mean())
            scores = scores + score * F.one_hot(torch.tensor(position), len(kept))
            if interface.scores in ("pooled", "logsumexp"):
                own = torch.exp(own)
            weights[head, k] = own / own.sum()
            read = torch.stack([interface.value.weight[part] @ states[word] for word in words if word[0] == k])
            values[k].append(weights[head, k] @ read)
    if interface.scores == "joint":
        scores = torch.log(scores / interface.num_heads)
    if interface.training and interface.selection == "gumbel":
        scores = scores + noise[[0 if interface.scores == "literal" else k for k in kept]]
    beta = (scores / interface.temperature).softmax(0)
    best = int(beta.argmax())
    choice = beta if interface.selection == "all" else F.one_hot(torch.tensor(best), len(kept)).float()
    if interface.selection == "gumbel":
        choice = choice - beta.detach() + beta
    fused = sum(c * torch.cat(values[k]) for c, k in zip(choice, kept, strict=True))
    chosen_weights = torch.stack([weights[head, kept[best]] for head in range(interface.num_heads)])
    return fused, kept[best], dict(zip(kept, beta.tolist(), strict=True)), chosen_weights


def normalize(norm, x):
    deviation = (x.var(-1, correction=0, keepdim=True) + norm.eps).sqrt()
    return (x - x.mean(-1, keepdim=True)) / deviation * norm.weight + norm.bias


def test_joint_scores_are_shares_of_the_attention():
    """Whatever the lengths, which the softmax of the selection would hide."""
    interface = make_interface(scores="joint")
    hidden_states, states, attention_mask, mask = (each[:3] for each in make_states())
    words, passages = interface.score(hidden_states, states, attention_mask.bool(), mask.bool())
    torch.testing.assert_close((words.exp() * mask[:, None]).sum((2, 3)), torch.ones(words.shape[:2]))
    torch.testing.assert_close((passages.exp() * mask.any(-1)).sum(-1), torch.ones(3))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("selection", ["gumbel", "top1", "all"])
@pytest.mark.parametrize("scores", ["pooled", "logsumexp", "joint", "literal"])
def test_interface_equals_the_equations(scores, selection, training, monkeypatch):
    interface = make_interface(scores=scores, selection=selection, temperature=0.7).train(training)
    expected_interface = copy.deepcopy(interface)
    hidden_states, states, attention_mask, mask = make_states()
    noise = sample_gumbel(torch.empty(4, 3))
    monkeypatch.setattr(selection_rada, "sample_gumbel", lambda like: noise[:, : like.shape[1]])
    states.requires_grad_()
    output = interface(hidden_states, states, attention_mask, mask)
    probe = torch.randn_like(hidden_states)
    (output.last_hidden_state * probe).sum().backward()

    expected_states = states.detach().clone().requires_grad_()
    for b in range(3):
        rows = hidden_states[b][attention_mask[b].bool()]
        fused, selected, beta, weights = read_by_the_equations(
            expected_interface, rows, expected_states[b], mask[b], noise[b]
        )
        read = normalize(expected_interface.norm, hidden_states[b] + expected_interface.output.weight @ fused)
        (read * probe[b]).sum().backward()
        torch.testing.assert_close(output.last_hidden_state[b], read, rtol=1e-4, atol=1e-5)
        assert output.selected_passages[b] == selected
        torch.testing.assert_close(
            output.passage_weights[b], torch.tensor([beta.get(k, 0.0) for k in range(3)]), rtol=1e-4, atol=1e-5
        )
        real = mask[b, selected].bool()
        torch.testing.assert_close(output.word_weights[b][:, real], weights, rtol=1e-4, atol=1e-5)
        assert (output.word_weights[b][:, ~real] == 0).all()
    assert output.selected_passages[3] == -1
    assert output.passage_weights[3].sum() == output.word_weights[3].sum() == 0
    assert torch.equal(output.last_hidden_state[3], hidden_states[3])

    pairs = [(states, expected_states), *zip(interface.parameters(), expected_interface.parameters(), strict=True)]
    for one, other in pairs:
        if other.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-4)
        else:
            assert one.grad is None or (one.grad == 0).all()


def test_literal_equations_are_not_safe():
    interface = make_interface(scores="literal", deviation=1.0)
    hidden_states, states, attention_mask, mask = make_states(batch_size=200)
    output = interface(hidden_states, states, attention_mask, mask)
    weights = output.word_weights[:-1]
    assert (weights < 0).float().mean() > 0.2
    assert weights.abs().max() > 10
    states[0, :, 1], states[0, :, 0] = -states[0, :, 2], -states[0, :, 3]  # scores that sum to nothing
    interface.key.weight.data.copy_(torch.eye(8))
    states[0] = states[0].round()
    hidden_states[0], attention_mask[0] = hidden_states[0].round(), 1
    interface.query.weight.data.copy_(torch.eye(8))
    assert not torch.isfinite(interface(hidden_states, states, attention_mask, mask).last_hidden_state[0]).all()


def test_printed_noise_cancels():
    hidden_states, states, attention_mask, mask = make_states()
    literal = make_interface(scores="literal", deviation=0.1).train()
    weights = [literal(hidden_states, states, attention_mask, mask).passage_weights for _ in range(2)]
    torch.testing.assert_close(weights[0], weights[1])
    ours = make_interface(deviation=0.1).train()
    weights = [ours(hidden_states, states, attention_mask, mask).passage_weights for _ in range(2)]
    assert (weights[0] - weights[1]).abs().max() > 0.01


@pytest.mark.parametrize("scores", ["pooled", "logsumexp", "joint"])
def test_weights_are_weights_whatever_the_shapes_and_magnitudes(scores):
    """10,000 inputs, each with its own lengths, number of passages and magnitudes, also in training."""
    generator = torch.Generator().manual_seed(0)

    def draw(low, high, shape=()):
        return torch.randint(low, high + 1, shape, generator=generator)

    for trial in range(250):
        size, rows = 4 * int(draw(1, 3)), 40
        length, passages, width = (int(draw(1, high)) for high in (7, 5, 9))
        interface = make_interface(size, int(2 ** draw(0, 2)), float(10.0 ** draw(-3, 1)), scores=scores)
        interface.train(trial % 2 == 0)
        magnitudes = 10.0 ** draw(-12, 6, (2, rows)).float()
        hidden_states = torch.randn(rows, length, size, generator=generator) * magnitudes[0, :, None, None]
        states = torch.randn(rows, passages, width, size, generator=generator) * magnitudes[1, :, None, None, None]
        attention_mask = torch.arange(length) < draw(1, length, (rows, 1))
        mask = torch.arange(width) < draw(0, width, (rows, passages, 1))
        output = interface(hidden_states, states, attention_mask, mask)
        has_passage = mask.any(-1).any(-1)
        assert torch.isfinite(output.last_hidden_state).all()
        assert (output.word_weights >= 0).all() and (output.passage_weights >= 0).all()
        for weights in (output.word_weights.sum(-1).mean(-1), output.passage_weights.sum(-1)):
            torch.testing.assert_close(weights, has_passage.float(), rtol=0, atol=1e-4)
        assert torch.equal(output.last_hidden_state[~has_passage], hidden_states[~has_passage])
        assert mask[torch.arange(rows), output.selected_passages].any(-1)[has_passage].all()


def test_gradients_stay_finite_where_nothing_can_be_read():
    for scores in ("pooled", "joint", "literal"):
        interface = make_interface(scores=scores).train()
        hidden_states, states, attention_mask, mask = make_states()
        interface(hidden_states, states, attention_mask * 0, mask * 0).last_hidden_state.sum().backward()
        for parameter in interface.parameters():
            assert parameter.grad is None or (parameter.grad == 0).all()


def test_noise_is_independent_for_every_passage():
    noise = sample_gumbel(torch.empty(20_000, 3))
    assert torch.corrcoef(noise.T).sub(torch.eye(3)).abs().max() < 0.03
    assert abs(noise.mean() - 0.5772) < 0.02
    assert abs(noise.var() - math.pi**2 / 6) < 0.05
    # Gumbel-max: passages are drawn in proportion to the exponential of their scores.
    interface = make_interface().train()
    scores = torch.tensor([0.0, 1.0, -1.0]).expand(20_000, 3)
    choice, _ = interface.choose(scores, torch.ones(20_000, 3, dtype=torch.bool))
    torch.testing.assert_close(choice.mean(0), scores[0].softmax(0), rtol=0, atol=0.02)


def test_one_decisive_word_wins():
    """Two of the words of one passage score high; by the mean, the other passage is ahead with all of its words."""
    words = torch.tensor([[6.0, 6.0, *[-2.0] * 18], [0.5] * 20])
    states = F.one_hot(torch.zeros(2, 20, dtype=torch.long), 8) * words[..., None] * math.sqrt(8)
    hidden_states = F.one_hot(torch.zeros(1, 3, dtype=torch.long), 8).float()
    chosen = {}
    for scores in ("pooled", "logsumexp"):
        interface = RetrievalInterface(8, 1, scores=scores).eval()
        with torch.no_grad():
            interface.query.weight.copy_(torch.eye(8))
            interface.key.weight.copy_(torch.eye(8))
            interface.scale.fill_(1.0)
        chosen[scores] = interface(hidden_states, states[None]).selected_passages.item()
    assert chosen == {"pooled": 1, "logsumexp": 0}


def test_a_long_passage_does_not_lead_by_its_length():
    interface = make_interface(scores="logsumexp")
    hidden_states, word = torch.randn(2, 5, 8), torch.randn(8)
    mask = torch.ones(2, 2, 6, dtype=torch.long)
    mask[:, 0, 1:] = 0
    weights = interface(hidden_states, word.expand(2, 2, 6, 8), passage_attention_mask=mask).passage_weights
    torch.testing.assert_close(weights, torch.full((2, 2), 0.5))


@pytest.mark.parametrize("scores", ["pooled", "logsumexp", "joint"])
def test_retrieval_scores_are_a_prior(scores):
    """Beta is multiplied by the score of the retrieval to the power of the learned scale."""
    interface = make_interface(scores=scores, selection="all", prior_scale_init=1.5)
    without = make_interface(scores=scores, selection="all")
    without.load_state_dict({name: value for name, value in interface.state_dict().items() if name != "prior_scale"})
    hidden_states, states, attention_mask, mask = make_states()
    found = torch.rand(4, 3) + 0.5
    found[mask.sum(-1) == 0] = 0.0
    output = interface(hidden_states, states, attention_mask, mask, passage_scores=found)
    expected = without(hidden_states, states, attention_mask, mask).passage_weights * found**interface.prior_scale
    expected[:3] /= expected[:3].sum(-1, keepdim=True)
    torch.testing.assert_close(output.passage_weights, expected.detach())
    output.last_hidden_state[0].square().sum().backward()
    assert interface.prior_scale.grad.abs() > 0
    assert RetrievalInterface(8, 2, prior_scale_init=4.0).prior_scale.item() == 4.0
    with pytest.raises(ValueError, match="passage_scores must be given to a RADA with prior_scale_init"):
        interface(hidden_states, states, attention_mask, mask)


def test_annealing():
    interface = make_interface(temperature=2.0, final_temperature=0.5, final_noise=0.2, selection="all")
    found = {}
    for progress in (0.0, 0.5, 1.0):
        interface.anneal(progress)
        found[progress] = (interface.temperature, interface.noise)
    assert found == {0.0: (2.0, 1.0), 0.5: (pytest.approx(1.0), pytest.approx(0.6)), 1.0: (0.5, pytest.approx(0.2))}
    interface.anneal(0.0)
    available = torch.ones(1, 2, dtype=torch.bool)
    logits = torch.tensor([[1.0, 0.0]])
    for mode, temperature in ((True, 2.0), (False, 0.5)):
        weights = interface.train(mode).choose(logits, available)[1]
        torch.testing.assert_close(weights, (logits / temperature).softmax(-1))


def test_training_without_the_callback_says_so_once(caplog):
    model = make_rada(head=RadaForSequenceClassification, num_labels=2, final_temperature=0.5).train()
    batch = make_batch_with_passages(masked=False)
    for _ in range(2):
        model(**batch)
    assert caplog.text.count("Pass callbacks=[Annealing()] of hf_domain.training.callbacks") == 1
    caplog.clear()
    annealed = make_rada(head=RadaForSequenceClassification, num_labels=2, final_temperature=0.5).train()
    annealed.model.anneal(0.0)
    for quiet in (annealed, make_rada(head=RadaForSequenceClassification, num_labels=2).train()):
        quiet(**batch)
    assert "Annealing" not in caplog.text


def test_trainer_anneals(tmp_path):
    model = make_rada(head=RadaForSequenceClassification, num_labels=2, temperature=4.0, final_temperature=1.0)
    seen = []
    model.model.interface.register_forward_pre_hook(lambda module, _: seen.append(module.temperature))
    rows = [{name: value[0] for name, value in make_batch_with_passages(masked=False).items()} | {"labels": 1}] * 4
    args = TrainingArguments(tmp_path, max_steps=4, report_to="none", use_cpu=True, save_strategy="no")
    Trainer(model, args, train_dataset=rows, callbacks=[Annealing()]).train()
    assert seen == pytest.approx([4.0 ** (1 - step / 4) for step in range(4)])


def test_gradient_reaches_the_selection():
    hidden_states, states, attention_mask, mask = make_states()
    mask[:2, :, 1:] = 0  # passages of one word: word weights are 1, and only the choice depends on the scores
    mask[2:] = 0
    for scores in ("pooled", "joint"):
        for selection, reaches in (("gumbel", True), ("all", True), ("top1", False)):
            interface = make_interface(scores=scores, selection=selection).train()
            output = interface(hidden_states, states, attention_mask, mask)
            (output.last_hidden_state * torch.randn_like(hidden_states)).sum().backward()
            for parameter in (interface.query.weight, interface.key.weight):
                moved = 0.0 if parameter.grad is None else parameter.grad.abs().max().item()
                assert (moved > 1e-5) == reaches, (scores, selection)


# -------------------------------------------------------------------------------------- reading one alone


def score_in_full(interface, hidden_states, states, attention_mask, mask):
    """The paper's double sum over all positions and words, as means."""
    q, k = (
        linear(x).unflatten(-1, (interface.num_heads, -1))
        for linear, x in ((interface.query, hidden_states), (interface.key, states))
    )
    alpha = torch.einsum("bihd,bkjhd->bhikj", q, k) / q.shape[-1] ** 0.5
    alpha = alpha * attention_mask[:, None, :, None, None] * mask[:, None, None]
    counts = attention_mask.sum(1)[:, None] * mask.sum(-1)
    return interface.scale * alpha.sum(dim=(1, 2, 4)) / counts.clamp(min=1)


@pytest.mark.parametrize("prior", [None, 2.0])
def test_selection_by_vectors_is_selection_in_full(prior):
    for trial in range(100):
        torch.manual_seed(trial)
        interface = make_interface(16, 4, prior_scale_init=prior)
        hidden_states, states, attention_mask, mask = make_states(6, 7, 5, 9, 16)
        available, found = mask.any(-1), torch.rand(6, 5) + 0.5
        full = score_in_full(interface, hidden_states, states, attention_mask, mask)
        full = full if prior is None else full + interface.prior_scale * found.log()
        vectors = average_states(states, mask.bool())
        selected, weights = interface.select(hidden_states, vectors, available, attention_mask, found)
        output = interface(hidden_states, states, attention_mask, mask, passage_scores=found)
        expected = full.masked_fill(~available, -torch.inf)
        torch.testing.assert_close(weights[:-1], expected[:-1].softmax(-1))
        assert torch.equal(selected[:-1], expected.argmax(-1)[:-1])
        assert torch.equal(selected[:-1], output.selected_passages[:-1])
        assert torch.equal(weights, output.passage_weights)


def count_encoded(model):
    """Record the shape of everything the encoder is given."""
    shapes = []
    encoder = model.base_model.backbone
    encoder.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    return shapes


def test_evaluation_encodes_one_passage_alone(family):
    model = make_rada(family, head=RadaModel)
    batch, passages = make_batch(masked=False), make_passages()
    ids, mask = passages["passage_input_ids"], passages["passage_attention_mask"]
    expected = model(**batch, **passages)
    states = model.encode_passages(ids.flatten(0, 1), mask.flatten(0, 1)).unflatten(0, ids.shape[:2])
    vectors = average_states(states, mask.bool())
    shapes = count_encoded(model)
    output = model(**batch, **passages, passage_vectors=vectors)
    assert shapes == [(4, 12), (4, 7)]  # the inputs, and one passage for each of them
    shapes.clear()
    cached = model(**batch, passage_states=states, passage_attention_mask=mask)
    assert shapes == [(4, 12)]
    for other in (output, cached):
        assert torch.equal(other.selected_passages, expected.selected_passages)
        torch.testing.assert_close(other.last_hidden_state, expected.last_hidden_state, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(other.word_weights, expected.word_weights, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(other.passage_weights, expected.passage_weights, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("scores", ["pooled", "joint"])
def test_passages_by_row_are_encoded_once(scores, training, monkeypatch):
    model = make_rada(dropout=0.0, head=RadaModel, scores=scores).train(training)
    noise = sample_gumbel(torch.empty(4, 3))
    monkeypatch.setattr(selection_rada, "sample_gumbel", lambda like: noise)
    rows = torch.randint(5, VOCAB_SIZE, (5, 7))
    mask = torch.ones_like(rows)
    mask[1, 3:] = 0
    index = torch.tensor([[0, 1, 2], [2, 0, -1], [4, -1, -1], [-1, -1, -1]])
    batch = make_batch(masked=False)
    shapes = count_encoded(model)
    output = model(**batch, passage_input_ids=rows, passage_attention_mask=mask, passage_index=index)
    assert shapes == [(4, 12), (5, 7)]
    spread = mask[index.clamp(min=0)] * (index >= 0)[..., None]
    expected = model(**batch, passage_input_ids=rows[index.clamp(min=0)], passage_attention_mask=spread)
    assert torch.equal(output.selected_passages, expected.selected_passages)
    torch.testing.assert_close(output.last_hidden_state, expected.last_hidden_state, rtol=1e-4, atol=1e-4)


# ------------------------------------------------------------------------------------------- 2: no-op


@pytest.mark.parametrize("training", [True, False])
def test_without_passages_it_is_the_encoder(family, training):
    stock = make_masked_lm(family, dropout=0.0)
    model = RadaForMaskedLM.from_backbone(stock)
    batch = make_batch(masked=False)
    passages = make_passages()
    nothing = {
        "absent": {},
        "of padding": passages | {"passage_attention_mask": torch.zeros_like(passages["passage_attention_mask"])},
        "of no row": {
            "passage_input_ids": passages["passage_input_ids"][0],
            "passage_index": torch.full((4, 2), -1),
        },
        "of no passage": {"passage_input_ids": torch.empty(4, 0, 7, dtype=torch.long)},
    }
    expected = stock(**batch).logits
    for name, given in nothing.items():
        assert torch.equal(model.train(training)(**batch, **given).logits, expected), name
    mixed = model.eval()(**batch, **passages)
    assert torch.equal(mixed.logits[-1], expected[-1])
    assert not torch.allclose(mixed.logits[0], expected[0])
    assert mixed.selected_passages.tolist()[1] == 0
    assert mixed.selected_passages.tolist()[-1] == -1


def test_fresh_interface_adds_nothing_and_learns_to(family):
    """Whatever it reads, at any spread of new weights: the states are normalized, and no more."""
    model = RadaModel.from_backbone(make_masked_lm(family), initializer_range=1.0)
    batch = make_batch(masked=False)
    states = model(**batch).last_hidden_state
    read = model(**batch, **make_passages()).last_hidden_state
    real = batch["attention_mask"].bool()
    real[-1] = False
    torch.testing.assert_close(read[real], F.layer_norm(states[real], states.shape[-1:]))
    assert F.cosine_similarity(states[real], read[real], dim=-1).min() > 0.97
    assert 0.8 < read[real].std() / states[real].std() < 1.25
    read[real].sin().sum().backward()
    assert model.interface.output.weight.grad.abs().sum() > 0


# ----------------------------------------------------------- 3, 5: what trains, and with what gradient


def test_frozen_passages_are_encoded_without_dropout_and_gradient():
    model = make_rada(head=RadaModel, dropout=0.5, passage_encoder="frozen").train()
    for key, value in model.backbone.state_dict().items():
        assert torch.equal(model.passage_backbone.state_dict()[key], value)
    ids = torch.randint(5, VOCAB_SIZE, (3, 7))
    once, twice = (model.encode_passages(ids, torch.ones_like(ids)) for _ in range(2))
    assert torch.equal(once, twice)
    assert not once.requires_grad


@pytest.mark.parametrize("passage_gradient", [True, False])
def test_gradient_through_passages(passage_gradient):
    model = make_rada(head=RadaModel, passage_gradient=passage_gradient).train()
    ids = torch.full((4, 2, 6), 7)
    ids[:, 1] = 8
    batch = make_batch(masked=False)
    batch["input_ids"].clamp_(min=9)
    model(**batch, passage_input_ids=ids).last_hidden_state.pow(3).sum().backward()
    gradient = model.get_input_embeddings().weight.grad
    assert gradient[9:].abs().max() > 0
    assert (gradient[7:9].abs().max() > 0) == passage_gradient


def test_what_was_read_is_neither_logged_nor_gathered(tmp_path):
    model = make_rada()
    trainer = Trainer(
        model,
        TrainingArguments(str(tmp_path), max_steps=1, use_cpu=True, report_to="none", disable_tqdm=True),
        train_dataset=METHODS["rada"].make_dataset(),
        eval_dataset=METHODS["rada"].make_dataset(),
    )
    log_auxiliary_losses(trainer)
    assert math.isfinite(trainer.train().training_loss)
    assert trainer.predict(METHODS["rada"].make_dataset()).predictions.shape == (8, 12, VOCAB_SIZE)


# --------------------------------------------------------------------------- 4: saving, loading, heads


def test_frozen_passage_encoder_of_a_shared_checkpoint(tmp_path):
    make_rada().save_pretrained(tmp_path)
    model, info = RadaForMaskedLM.from_pretrained(tmp_path, passage_encoder="frozen", output_loading_info=True)
    assert not info["missing_keys"]
    for key, value in model.model.backbone.state_dict().items():
        assert torch.equal(model.model.passage_backbone.state_dict()[key], value)
    assert not any(parameter.requires_grad for parameter in model.model.passage_backbone.parameters())


def test_missing_weights_are_initialized(tmp_path):
    make_rada(scores="joint").save_pretrained(tmp_path)
    model, info = RadaForMaskedLM.from_pretrained(tmp_path, scores="pooled", output_loading_info=True)
    assert info["missing_keys"] == {"model.interface.scale"}
    assert model.model.interface.scale.item() == pytest.approx(math.sqrt(32))


def test_passages_go_through_another_method_to_their_reader():
    model = VarMAEForTokenClassification.from_backbone(make_rada(head=RadaModel)).eval()
    batch = make_batch_with_passages(masked=False)
    plain = {name: value for name, value in batch.items() if not name.startswith("passage")}
    with_passages, without = model(**batch).logits, model(**plain).logits
    assert torch.equal(with_passages[-1], without[-1])
    assert not torch.allclose(with_passages[0], without[0])


# ----------------------------------------------------------- 6-8, 10: padding, evaluation, compilation


def test_passages_are_chosen_at_random_in_training_alone(family):
    model = make_rada(family, dropout=0.0)
    batch = make_batch_with_passages()
    for training in (False, True):
        once, again = (model.train(training)(**batch).passage_weights for _ in range(2))
        assert torch.equal(once, again) is not training


@pytest.mark.parametrize("scores", ["pooled", "logsumexp", "joint"])
def test_padding_of_passages_never_leaks(family, scores):
    model = make_rada(family, scores=scores)
    batch = make_batch_with_passages(masked=False)
    alone = {
        "input_ids": batch["input_ids"][:1, :9],
        "passage_input_ids": batch["passage_input_ids"][:1],
        "passage_attention_mask": batch["passage_attention_mask"][:1],
    }
    with torch.no_grad():
        padded = model(**batch)
        torch.testing.assert_close(padded.logits[:1, :9], model(**alone).logits, rtol=1e-4, atol=1e-4)
        changed = dict(batch)
        changed["passage_input_ids"] = torch.where(
            batch["passage_attention_mask"] == 1, batch["passage_input_ids"], torch.tensor(50)
        )
        if family not in ("roberta", "xlm-roberta"):  # they count positions by the padding token
            torch.testing.assert_close(model(**changed).logits, padded.logits, rtol=1e-4, atol=1e-4)
        # One passage, of which nothing is padding, in a batch of longer ones.
        one = {"input_ids": batch["input_ids"][:1, :9], "passage_input_ids": batch["passage_input_ids"][:1, :1, :4]}
        among = {**alone, "passage_attention_mask": alone["passage_attention_mask"].clone()}
        among["passage_attention_mask"][:, 1:] = 0
        torch.testing.assert_close(model(**among).logits, model(**one).logits, rtol=1e-4, atol=1e-4)


# ------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"num_heads": 3}, "num_heads must divide the hidden size 128, but is 3"),
        ({"scores": "mean"}, "scores must be one of pooled, logsumexp, joint, literal, but is 'mean'"),
        ({"selection": "best"}, "selection must be one of gumbel, top1, all, but is 'best'"),
        ({"passage_encoder": "other"}, "passage_encoder must be one of shared, frozen, but is 'other'"),
        ({"temperature": 0.0}, "temperature must be above 0, but is 0.0"),
        ({"final_temperature": 0.0}, "final_temperature must be above 0, but is 0.0"),
        ({"final_noise": -1.0}, "final_noise must be at least 0, but is -1.0"),
        ({"num_passages": 0}, "num_passages must be at least 1, but is 0"),
        ({"passage_encoder": "frozen", "passage_gradient": True}, "needs passage_encoder='shared'"),
    ],
)
def test_wrong_option(option, message):
    with pytest.raises(ValueError, match=message):
        RadaConfig(**option)


def test_wrong_passages():
    model = make_rada(head=RadaModel)
    batch = make_batch(masked=False)
    with pytest.raises(ValueError, match=r"but they are \[4, 7\] with no passage_index"):
        model(**batch, passage_input_ids=torch.ones(4, 7, dtype=torch.long))
    with pytest.raises(ValueError, match=r"the mask is \[4, 3, 6\]"):
        model(
            **batch,
            passage_input_ids=torch.ones(4, 3, 7, dtype=torch.long),
            passage_attention_mask=torch.ones(4, 3, 6),
        )
    with pytest.raises(ValueError, match="Call use_passage_cache first"):
        model(**batch, passage_ids=torch.ones(4, 3, dtype=torch.long))

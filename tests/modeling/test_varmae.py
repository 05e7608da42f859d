"""VarMAE: the equations of the paper computed a second time; further proofs are in test_proofs.py."""

import copy
import math

import pytest
import torch
from method_models import METHODS, make_varmae
from safetensors.torch import load_file, save_file
from tiny_models import VOCAB_SIZE, make_batch, make_masked_lm
from torch import distributed, multiprocessing
from torch.distributions import Normal, kl_divergence
from torch.nn import functional as F
from two_processes import get_context

from hf_domain import (
    VarMAEConfig,
    VarMAEForMaskedLM,
)
from hf_domain.modeling.layers_varmae import MeanNetwork, compute_kl
from hf_domain.modeling.modeling_varmae import sample_tokens
from hf_domain.testing import train

# ------------------------------------------------------------------------------------ 1: the equations


def compute_expected(model, batch, noise, ratio_mask=None):
    """Eqs. 2-5 and section 2.3 token by token, from the parameters alone."""
    config = model.config
    network = model.model.mean_network

    def perceptron(part, x):
        return part.out_proj(F.gelu(part.dense(x)))

    context = model.model.encode(batch["input_ids"], batch["attention_mask"]).last_hidden_state
    masked = [(b, i) for b in range(len(context)) for i in range(context.shape[1]) if batch["labels"][b, i] != -100]
    unmasked = [
        (b, i)
        for b in range(len(context))
        for i in range(context.shape[1])
        if batch["labels"][b, i] == -100
        and batch["attention_mask"][b, i] == 1
        and int(batch["input_ids"][b, i]) not in config.special_token_ids
    ]
    positions = masked + unmasked
    raw = torch.stack([perceptron(network.perceptron, context[b, i]) for b, i in positions])
    if model.training:
        center, variance = raw.mean(0), ((raw - raw.mean(0)) ** 2).mean(0)
    else:
        center, variance = network.running_mean, network.running_var
    means = config.norm_scale * (raw - center) / (variance + 1e-5).sqrt() + network.shift

    total, terms = 0.0, {"masked": [], "unmasked": []}
    for row, (b, i) in enumerate(positions):
        kind = "masked" if row < len(masked) else "unmasked"
        chosen = masked if kind == "masked" else unmasked
        log_variance = perceptron(getattr(model, f"{kind}_log_variance"), context[b, i])
        deviation = (log_variance / 2).exp()
        z = means[row] + deviation * noise[row] if model.training else means[row]
        target = batch["labels"][b, i] if kind == "masked" else batch["input_ids"][b, i]
        reconstruction = -model.decode(z[None])[0].log_softmax(-1)[target]
        kl = kl_divergence(Normal(means[row], deviation), Normal(0.0, 1.0))
        kl = kl.mean() if config.kl_reduction == "mean" else kl.sum()
        if config.loss_weighting == "sequence":
            weight = 1 / sum(1 for other, _ in chosen if other == b) / len(context)
        else:
            weight = 1 / len(chosen)
        strength = config.kl_weight if kind == "masked" else config.unmasked_kl_weight
        total = total + weight * (reconstruction + strength * kl)
        terms[kind].append((reconstruction.item(), kl.item()))
    return total, terms


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kl_reduction": "sum", "kl_weight": 0.3, "unmasked_kl_weight": 0.7},
        {"loss_weighting": "token", "special_token_ids": [7, 8, 9, 10, 11, 12, 13, 14, 15]},
    ],
)
def test_objective_equals_the_equations(options, training, monkeypatch):
    model = make_varmae(dropout=0.0, norm_scale=0.6, **options).train(training)
    expected_model = copy.deepcopy(model)
    batch = make_batch()
    batch["labels"][2] = -100  # a sequence without a masked token
    noise = torch.randn(200, 32)
    monkeypatch.setattr(torch, "randn_like", lambda like: noise[: len(like)])
    output = model(**batch)
    expected, terms = compute_expected(expected_model, batch, noise)
    if not training:  # a masked-LM loss as any other's, so that whoever reads it has a perplexity
        expected = F.cross_entropy(expected_model(**batch).logits.flatten(0, 1), batch["labels"].flatten())
    torch.testing.assert_close(output.loss, expected)
    for kind in ("masked", "unmasked"):
        reconstruction, kl = torch.tensor(terms[kind]).mean(0)
        torch.testing.assert_close(output[f"{kind}_reconstruction_loss"], reconstruction)
        torch.testing.assert_close(output[f"{kind}_kl"], kl)
    output.loss.backward()
    expected.backward()
    own = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    reference = dict(expected_model.named_parameters())
    for name, parameter in model.named_parameters():
        if name in own:
            torch.testing.assert_close(parameter.grad, reference[name].grad, rtol=1e-3, atol=1e-5)


def test_kl_against_torch():
    mean, log_variance = torch.randn(5, 7), torch.randn(5, 7)
    expected = kl_divergence(Normal(mean, (log_variance / 2).exp()), Normal(0.0, 1.0))
    torch.testing.assert_close(compute_kl(mean, log_variance), expected)
    assert compute_kl(torch.zeros(3), torch.zeros(3)).abs().max() == 0


def test_normalization_in_training_and_evaluation():
    network = MeanNetwork(VarMAEConfig(norm_scale=0.4, norm_momentum=0.25))
    torch.nn.init.normal_(network.shift)
    context = torch.randn(50, 128)
    raw = network.perceptron(context)
    center, variance = raw.mean(0), raw.var(0, correction=0)

    trained = network(context, use_batch_statistics=True)
    torch.testing.assert_close(trained, 0.4 * (raw - center) / (variance + 1e-5).sqrt() + network.shift)
    torch.testing.assert_close(network.running_mean, center)  # the first batch alone
    torch.testing.assert_close(network.running_var, raw.var(0))
    # Zhu et al. 2020, Eq. 8: the mean KL of a dimension cannot fall below gamma^2 / 2, whatever the variances.
    assert (trained.square().mean(0) / 2).min() >= 0.99 * 0.4**2 / 2

    network(2 * context, use_batch_statistics=True)
    second = network.perceptron(2 * context)
    torch.testing.assert_close(network.running_mean, (center + second.mean(0)) / 2)
    torch.testing.assert_close(network.running_var, (raw.var(0) + second.var(0)) / 2)
    for _ in range(40):  # from the fourth batch on the momentum counts
        network(context, use_batch_statistics=True)
    torch.testing.assert_close(network.running_var, raw.var(0), rtol=1e-3, atol=1e-6)

    statistics = network.running_mean.clone()
    evaluated = network(context[None])
    expected = 0.4 * (raw - network.running_mean) / (network.running_var + 1e-5).sqrt() + network.shift
    torch.testing.assert_close(evaluated[0], expected)
    assert torch.equal(network.running_mean, statistics)


@pytest.mark.parametrize("num_batches", [1, 5])
def test_predictions_are_of_the_size_of_training_from_the_first_batches(num_batches):
    torch.manual_seed(0)
    model = VarMAEForMaskedLM.from_backbone(make_masked_lm("bert", 0.0), initializer_range=0.02).train()
    for _ in range(num_batches):
        model(**make_batch(batch_size=16))
    context = model.model.encode(**make_batch(batch_size=64, masked=False)).last_hidden_state.flatten(0, 1)
    predicted = model.model.mean_network(context).std(dim=0).mean()
    trained = model.model.mean_network(context, use_batch_statistics=True).std(dim=0).mean()
    assert 0.9 < predicted / trained < 1.1


def test_checkpoint_without_a_number_of_batches_keeps_its_statistics(tmp_path):
    model = make_varmae()
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    older = {name: weight for name, weight in weights.items() if not name.endswith("num_batches_tracked")}
    save_file(older, tmp_path / "model.safetensors", metadata={"format": "pt"})
    loaded, info = VarMAEForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    resumed = VarMAEForMaskedLM(model.config)
    missing = resumed.load_state_dict(older, strict=False).missing_keys
    assert not any("mean_network" in name for name in missing)
    for each in (loaded, resumed):
        network, before = each.train().model.mean_network, model.model.mean_network.running_var
        network(torch.randn(20, 32), use_batch_statistics=True)
        mixed = network.running_var - 0.9 * before  # the rest is a tenth of the batch's
        assert mixed.min() > 0 and not torch.allclose(network.running_var, before)
        torch.testing.assert_close(network.running_var, before, rtol=0, atol=0.2 * before.max().item() + 0.5)


def train_in_a_process(rank, folder):
    """One half of a batch, as torch.distributed sees it; saves the gradient and the statistics."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    torch.randn_like = torch.zeros_like  # the sample is the mean
    model = torch.load(folder / "model.pt", weights_only=False).train()
    batch = torch.load(folder / "batch.pt")
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    parallel(**{name: tensor[2 * rank : 2 * rank + 2] for name, tensor in batch.items()}).loss.backward()
    if rank == 1:
        gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
        torch.save(gradients | dict(model.named_buffers()), folder / "result.pt")


@pytest.mark.distributed
def test_two_processes_are_one(tmp_path, monkeypatch):
    model = make_varmae(dropout=0.0).train()
    batch = make_batch()
    batch["attention_mask"][1, 5:] = 0  # not as many tokens in each half
    batch["labels"][1, 5:] = -100
    torch.save(model, tmp_path / "model.pt")
    torch.save(batch, tmp_path / "batch.pt")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    get_context()  # a server of forks; autograd does not run in a fork of a process in which it has started threads
    multiprocessing.start_processes(train_in_a_process, (tmp_path,), nprocs=2, start_method="forkserver")
    found = torch.load(tmp_path / "result.pt")
    monkeypatch.setattr(torch, "randn_like", torch.zeros_like)
    model(**batch).loss.backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    for name, expected in (gradients | dict(model.named_buffers())).items():
        torch.testing.assert_close(found[name], expected, rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.parametrize("num_tokens", [0, 1])
def test_too_few_tokens_for_batch_statistics(num_tokens):
    model = make_varmae().train()
    batch = make_batch(batch_size=1, masked=False)
    batch["labels"] = torch.full_like(batch["input_ids"], -100)
    batch["attention_mask"] = torch.zeros_like(batch["input_ids"])
    batch["attention_mask"][0, :num_tokens] = 1
    loss = model(**batch).loss
    assert torch.isfinite(loss)
    loss.backward()


@pytest.mark.parametrize("num_counted", [0, 1, 2, 5])
def test_statistics_of_counted_tokens_are_those_of_a_batch_of_them(num_counted):
    """Fewer than two leave the running statistics as they are, and are normalized by them."""
    counted = torch.arange(7) < num_counted
    states = torch.randn(7, 16)
    network = MeanNetwork(VarMAEConfig(hidden_size=16, num_attention_heads=2))
    torch.nn.init.uniform_(network.running_var, 0.5, 2.0)
    alone = copy.deepcopy(network)
    if num_counted > 1:
        expected = alone.normalize_alone(states[counted])
    else:
        expected = (states[counted] - alone.running_mean) * (alone.running_var + 1e-5).rsqrt()
    torch.testing.assert_close(network.normalize_counted(states, counted)[counted], expected)
    for name, statistics in alone.named_buffers():
        torch.testing.assert_close(network.get_buffer(name), statistics)
    whole = network(states[counted], use_batch_statistics=True)
    assert network.num_batches_tracked == alone.num_batches_tracked + (num_counted > 1)
    means = network.perceptron(states[counted])
    if num_counted > 1:
        torch.testing.assert_close(whole, network.scale * alone.normalize_alone(means))


def test_sampled_tokens_estimate_the_whole():
    tokens = torch.rand(6, 40) < 0.7
    kept, places = sample_tokens(tokens, 0.15)
    assert len(places) == len({*places.tolist()}) == 6 * 7 and kept.sum() == kept.flatten()[places].sum()
    assert (kept <= tokens).all()
    assert torch.equal(kept.sum(1), (tokens.sum(1) * 0.15).ceil().long())
    frequency = torch.stack([sample_tokens(tokens, 0.5)[0] for _ in range(400)]).float().mean(0)
    share = (tokens.sum(1, keepdim=True) * 0.5).ceil() / tokens.sum(1, keepdim=True)
    assert (frequency - tokens * share).abs().max() < 0.12

    model = make_varmae(dropout=0.0, unmasked_ratio=0.3).train()
    batch = make_batch()
    chosen = []
    model.unmasked_log_variance.register_forward_hook(lambda module, inputs, output: chosen.append(len(output)))
    model(**batch)
    real = (batch["attention_mask"].bool() & (batch["labels"] == -100)).sum(1)
    assert chosen == [int((real * 0.3).ceil().sum())]


def test_objective_needs_the_targets():
    model = make_varmae()
    batch = make_batch()
    embeds = model.get_input_embeddings()(batch["input_ids"])
    with pytest.raises(ValueError, match="input_ids"):
        model(inputs_embeds=embeds, labels=batch["labels"])


@pytest.mark.parametrize("option", [{"unmasked_ratio": 0.0}, {"kl_reduction": "max"}, {"loss_weighting": "document"}])
def test_wrong_option(option):
    with pytest.raises(ValueError, match=rf"{next(iter(option))} must .*but is"):
        VarMAEConfig(**option)


# ----------------------------------------------------------- 3, 5: what trains, and with what gradient


def test_frozen_encoder_runs_without_graph_and_with_its_own_dropout():
    batch = make_batch()
    for backbone_dropout in (True, False):
        model = make_varmae(backbone_dropout=backbone_dropout).train()
        output = model.model.encode(**{key: batch[key] for key in ("input_ids", "attention_mask")})
        again = model.model.encode(**{key: batch[key] for key in ("input_ids", "attention_mask")})
        assert torch.equal(output.last_hidden_state, again.last_hidden_state) is not backbone_dropout
        assert not model(**batch, output_hidden_states=True).hidden_states[-1].requires_grad
    model = make_varmae(freeze_backbone=False).train()
    model(**batch).loss.backward()
    assert model.get_input_embeddings().weight.grad.abs().sum() > 0


# ----------------------------------------------------------- 6-8, 10: padding, evaluation, compilation


@pytest.mark.compiled
def test_compiled_objective():
    model = make_varmae(dropout=0.0).eval()
    batch = make_batch()
    torch._dynamo.reset()
    loss = torch.compile(model, backend="aot_eager")(**batch).loss
    torch.testing.assert_close(loss, model(**batch).loss)


# ---------------------------------------------------------------------------------- posterior collapse


def test_normalization_prevents_collapse(tmp_path):
    def train_and_measure(batch_norm):
        torch.manual_seed(0)
        model = make_varmae(dropout=0.0, batch_norm=batch_norm)
        train(model, METHODS["varmae"].make_dataset(), tmp_path, max_steps=40)
        output = model.train()(**make_batch())
        return output.masked_kl.item(), output.active_latent_share.item()

    kl, active = train_and_measure(batch_norm=True)
    floor = 0.5**2 / 2
    assert kl >= floor / 2
    assert active == 1.0
    collapsed_kl, _ = train_and_measure(batch_norm=False)
    assert collapsed_kl < floor / 2


def test_perplexity_of_a_uniform_decoder():
    model = make_varmae().eval()
    with torch.no_grad():
        for parameter in model.lm_head.parameters():
            parameter.zero_()
        assert math.isclose(model(**make_batch()).masked_reconstruction_loss.item(), math.log(VOCAB_SIZE), rel_tol=1e-5)


def test_trainers_label_smoothing_is_warned_of_once(tmp_path, caplog):
    train(make_varmae(), METHODS["varmae"].make_dataset(), tmp_path, label_smoothing_factor=0.1)
    assert caplog.text.count("label_smoothing_factor takes them away") == 1
    train(make_varmae(), METHODS["varmae"].make_dataset(), tmp_path)
    assert caplog.text.count("label_smoothing_factor") == 1

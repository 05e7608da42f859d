"""A training step keeps a GPU busy: no wait for the host, no broken graph, few operations.

All of this shows on a CPU: `torch.compile` breaks a graph where the host must read a number, and a dispatch mode counts
the operations. What they compute is in the files of the methods; here it must not depend on how rows are chosen.
"""

from collections import Counter

import pytest
import torch
from method_models import make_batch_with_passages, make_exbert, make_gmap, make_rada, make_varmae
from tiny_models import SIZES, make_batch, make_masked_lm
from torch._dynamo.utils import counters
from torch.utils._python_dispatch import TorchDispatchMode

from hf_domain import RadaForSequenceClassification
from hf_domain.methods.lora import add_lora
from hf_domain.methods.stock_models import decode_labeled_rows_only
from hf_domain.modeling import heads, layers_exbert


def make_dapt(family, **options):
    return decode_labeled_rows_only(make_masked_lm(family, **options))


def make_rada_classifier(family, **options):
    return make_rada(family, head=RadaForSequenceClassification, num_labels=3, **options)


MASKED_LMS = {
    "dapt": make_dapt,
    "lora": lambda family, **options: add_lora(make_dapt(family, **options)),
    "varmae": make_varmae,
    "varmae_15": lambda family, **options: make_varmae(family, unmasked_ratio=0.15, **options),
    "exbert": make_exbert,
    "gmap": lambda family, **options: make_gmap(family, starts_as_encoder=True, **options),
}
MODELS = MASKED_LMS | {"rada": make_rada_classifier}


def make_inputs(method, number, places=False):
    """A batch with other masks and other padding for each number."""
    torch.manual_seed(number)
    if method == "rada":
        return make_batch_with_passages(masked=False) | {"labels": torch.randint(3, (4,))}
    batch = make_batch(length=24)
    batch["labels"] = batch["labels"].masked_fill(torch.rand(batch["labels"].shape) < 0.4, -100)
    batch["labels"][:, 1] = 7
    if places:
        batch["target_places"] = heads.find_places(batch["labels"] != -100)
    return batch


@pytest.mark.parametrize("places", [False, True])
@pytest.mark.parametrize(
    ("method", "family"),
    [
        pytest.param(method, family, marks=[pytest.mark.compiled] * ((method, family) != ("dapt", "bert")))
        for method in MODELS
        for family in ("bert", "modernbert")
    ],
)
def test_a_step_is_one_graph_for_all_masks(method, family, places):
    torch._dynamo.reset()
    counters.clear()
    model = MODELS[method](family).train()
    compiled = torch.compile(model, backend="eager")
    for number in range(4):
        compiled(**make_inputs(method, number, places)).loss.backward()
    assert not counters["graph_break"]
    assert counters["stats"]["unique_graphs"] <= 2  # the second for any number of labels, or for the kind of labels


WAITS = ("nonzero", "_local_scalar_dense", "item")


class Counting(TorchDispatchMode):
    """Counts the operations of a step."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.counts[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))


def count(model, batch):
    """Count the operations of the second step."""
    model.train()(**batch).loss.backward()
    model.zero_grad()
    with Counting() as counting:
        model(**batch).loss.backward()
    return counting.counts


# Operations of a step relative to DAPT's, by family, layers and dropout. Six layers show most of what a memory costs:
# two layers read it however deep the encoder. A BERT base has 12 layers, a ModernBERT base 22. Masked LM trains without
# dropout, unless it is asked for.
MOST = {"varmae": 1.3, "varmae_15": 1.3, "lora": 1.6, "exbert": 1.6, "gmap": 1.5}
STEPS = [
    ("bert", 6, 0.1, MOST),
    ("bert", 12, 0.1, MOST),
    ("bert", 12, 0.0, MOST),
    ("modernbert", 6, 0.1, MOST | {"gmap": 1.6}),
    ("modernbert", 22, 0.0, MOST | {"exbert": 1.7}),
]


@pytest.mark.parametrize(("family", "layers", "dropout", "most"), STEPS)
def test_a_step_waits_for_nothing_and_issues_few_operations(family, layers, dropout, most, monkeypatch):
    """But what the stock encoder waits for: it looks for padding, as do a memory and the encoder of passages."""
    monkeypatch.setitem(SIZES, "num_hidden_layers", layers)
    # Only on a CPU does the attention of a side module run again in the backward pass.
    monkeypatch.setattr(layers_exbert, "checkpoint", lambda function, *inputs, use_reentrant: function(*inputs))
    models = make_masked_lm, make_dapt
    stock, plain = (count(make(family, dropout=dropout), make_inputs("dapt", 0)) for make in models)
    for method, make in MODELS.items():
        counts = count(make(family, dropout=dropout), make_inputs(method, 0))
        encoders = 2 if method in ("gmap", "rada") else 1
        assert sum(map(counts.get, WAITS, [0] * 3)) <= encoders * sum(map(stock.get, WAITS, [0] * 3)), method
        assert counts.total() <= most.get(method, 2) * plain.total(), method


def weigh_kept_tensors(method):
    """Bytes that a forward pass keeps for the backward pass, beside the weights."""
    model, sizes = MASKED_LMS[method]("bert").train(), {}
    weights = {each.untyped_storage().data_ptr() for each in model.state_dict().values()}

    def keep(tensor):
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda kept: kept):
        model(**make_inputs(method, 0))
    return sum(size for place, size in sizes.items() if place not in weights)


def test_varmae_keeps_as_much_for_the_backward_pass_however_deep_the_encoder(monkeypatch):
    kept = {}
    for layers in (2, 12):
        monkeypatch.setitem(SIZES, "num_hidden_layers", layers)
        kept[layers] = {method: weigh_kept_tensors(method) for method in ("dapt", "lora", "varmae", "varmae_15")}
    for method in ("varmae", "varmae_15"):
        assert 0 < kept[2][method] == kept[12][method]
        for rival in ("dapt", "lora"):  # LoRA's changes are in every layer, so it keeps as much as DAPT
            assert kept[12][rival] > 5 * kept[2][rival] and kept[12][rival] > 10 * kept[12][method]


@pytest.mark.parametrize("places", [False, True])
@pytest.mark.parametrize("method", MASKED_LMS)
def test_rows_chosen_without_counting_give_the_same_step(method, places, monkeypatch):
    """On a GPU rows of no weight are computed too, and a collator may have counted before."""
    monkeypatch.setattr(torch, "randn_like", torch.zeros_like)
    model, batch = MASKED_LMS[method]("bert", dropout=0.0).train(), make_inputs(method, 0, places)
    found = []
    for reads in (True, False):
        torch.manual_seed(0)  # of the sample of unmasked tokens
        if not reads:
            monkeypatch.setattr(heads, "read_without_waiting", lambda tensor: None)
        output = model(**batch)
        output.loss.backward()
        buffers = {name: each.clone() for name, each in model.named_buffers() if "running" in name}
        gradients = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
        found.append((output.loss, {**output}, buffers, gradients))
        model.zero_grad()
        for name, each in model.named_buffers():
            if "running" in name or "tracked" in name:
                each.fill_(0)
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)

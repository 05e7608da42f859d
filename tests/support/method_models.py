"""Tiny models of the four methods, whose own weights are large enough to matter, and what their proofs need to know."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from datasets import Dataset
from tiny_models import FAMILIES, VOCAB_SIZE, make_batch, make_masked_lm

from hf_domain import ExBertForMaskedLM, GMapForMaskedLM, RadaForMaskedLM, VarMAEForMaskedLM

NUM_NEW = 10
VOCABULARY = {VOCAB_SIZE + i: [i + 5, i + 20] for i in range(NUM_NEW)}
READERS = [family for family in FAMILIES if family != "deberta-v2"]  # by the attention interface


def make_varmae(family="bert", dropout=0.1, head=VarMAEForMaskedLM, **options):
    """A VarMAE whose statistics are not at their defaults."""
    model = head.from_backbone(make_masked_lm(family, dropout), **options)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point() and ("mean_network" in name or "log_variance" in name):
                tensor.add_(0.2 * torch.rand_like(tensor))
    return model


def make_exbert(family="bert", dropout=0.1, head=ExBertForMaskedLM, **options):
    """An exBERT with side modules and extension whose biases and norms are not at their defaults."""
    options = {"extension_vocabulary": VOCABULARY, **options}
    model = head.from_backbone(make_masked_lm(family, dropout), **options)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if (".side." in name or "extension" in name) and parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def make_gmap(family="bert", dropout=0.1, head=GMapForMaskedLM, **options):
    """A G-MAP of two encoders of a family."""
    model = head.from_backbones(make_masked_lm(family, dropout), make_masked_lm(family, dropout), **options)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "gates." in name:
                parameter.add_(torch.randn_like(parameter))
    return model


def make_rada(family="bert", dropout=0.1, head=RadaForMaskedLM, **options):
    """A RADA whose scores are of the size of the noise."""
    model = head.from_backbone(make_masked_lm(family, dropout), **options)
    with torch.no_grad():
        for parameter in model.base_model.interface.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
        if model.config.scores == "pooled":
            model.base_model.interface.scale.fill_(1.0)
    return model.eval()


def make_extended_batch(batch_size=4, masked=True):
    """A batch in which every third token is of the extension."""
    batch = make_batch(batch_size, masked=masked)
    new = torch.randint(VOCAB_SIZE, VOCAB_SIZE + NUM_NEW, batch["input_ids"].shape)
    for name in ("input_ids", "labels"):
        if name in batch:
            chosen = (torch.arange(12) % 3 == 1) & (batch["attention_mask"] == 1)
            if name == "labels":
                chosen &= batch["labels"] != -100
            batch[name] = torch.where(chosen, new, batch[name])
    return batch


def make_passages(batch_size=4, passages=3, length=7):
    """Passages of token ids with padding; the last row has none."""
    ids = torch.randint(5, VOCAB_SIZE, (batch_size, passages, length))
    mask = torch.ones_like(ids)
    mask[0, 0, 4:] = 0
    mask[1, 1:] = 0
    mask[-1] = 0
    return {"passage_input_ids": ids.masked_fill(mask == 0, 1), "passage_attention_mask": mask}


def make_batch_with_passages(batch_size=4, masked=True):
    return make_batch(batch_size, masked=masked) | make_passages(batch_size)


def make_choices(batch):
    """Make each two rows of a batch the choices of one example."""
    return {name: value.unflatten(0, (-1, 2)) for name, value in batch.items()}


def is_extension(name):
    return ".side." in name or ".extension." in name


@dataclass(frozen=True)
class Method:
    """What the proofs need to know of a method."""

    prefix: str
    """Prefix of its classes."""
    make: Callable[..., Any]
    make_batch: Callable[..., dict[str, torch.Tensor]] = make_batch
    families: list[str] = field(default_factory=lambda: FAMILIES)
    is_frozen: Callable[[str], bool] = lambda name: False
    """Whether masked-LM training, with the options `frozen`, leaves a parameter as it is."""
    frozen: dict[str, Any] = field(default_factory=dict)
    undecided: str = "no such name"
    """Names of parameters that may change or not."""
    exact: dict[str, Any] = field(default_factory=dict)
    """Options with which the gradient of a batch is the sum of those of its parts."""
    trained: list[dict[str, Any]] = field(default_factory=lambda: [{}])
    """Options whose gradients must be those without activation checkpointing; nothing random is drawn with them."""
    saved: list[dict[str, Any]] = field(default_factory=lambda: [{}])
    """Options whose checkpoints must be whole."""
    padded: list[dict[str, Any]] = field(default_factory=lambda: [{}])
    """Options with which padding must not leak, `attention` among them."""
    compiled: tuple[str, ...] = ()
    """Masks that a compiled model must take as well."""
    draws: bool = False
    """Whether training draws random numbers beside dropout."""

    def get_heads(self) -> dict[str, Any]:
        """Return the class of each head by its Auto class."""
        tasks = ("MaskedLM", "SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice")
        names = {"AutoModel": "Model"} | {f"AutoModelFor{task}": f"For{task}" for task in tasks}
        module = importlib.import_module(f"hf_domain.modeling.modeling_{self.prefix.lower()}")
        return {auto: getattr(module, self.prefix + name) for auto, name in names.items()}

    def make_dataset(self, size: int = 8) -> Dataset:
        """Make a dataset for masked LM."""
        torch.manual_seed(0)
        rows = self.make_batch(size)
        rows["attention_mask"][0] = 1
        return Dataset.from_dict({key: value.tolist() for key, value in rows.items()})


METHODS = {
    "varmae": Method(
        "VarMAE",
        make_varmae,
        is_frozen=lambda name: name.startswith("model.backbone."),
        exact={"batch_norm": False},  # it is per micro-batch by nature
        trained=[{"freeze_backbone": False, "log_variance_range": 0.0}],
        draws=True,
    ),
    "exbert": Method(
        "ExBert",
        make_exbert,
        make_extended_batch,
        is_frozen=lambda name: not is_extension(name) and not name.startswith("lm_head."),
        trained=[{"freeze_backbone": True}, {"freeze_backbone": False}],
    ),
    "gmap": Method(
        "GMap",
        make_gmap,
        families=READERS,
        is_frozen=lambda name: name.startswith("model.memory."),
        frozen={"fusion": "gate"},
        undecided="memory_gates.",  # a chunk of one layer leaves them no choice
        trained=[{"fusion": "memory", "strategy": "gated"}, {"fusion": "gate", "strategy": "gated"}],
        saved=[{"fusion": "gate"}, {"starts_as_encoder": True}],
        compiled=("memory_attention_mask",),
        padded=[{"fusion": f, "attention": a} for f in ("memory", "cross", "gate") for a in ("sdpa", "eager")],
    ),
    "rada": Method(
        "Rada",
        make_rada,
        make_batch_with_passages,
        is_frozen=lambda name: "passage_backbone" in name,
        frozen={"passage_encoder": "frozen"},
        exact={"selection": "all", "passage_gradient": True},  # without noise
        trained=[{"selection": "all", "passage_gradient": True}],
        saved=[{"passage_encoder": "shared"}, {"passage_encoder": "frozen", "scores": "logsumexp"}],
        draws=True,
    ),
}

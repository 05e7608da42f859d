"""Proofs for the models of a method, for the tests of this package and of others that add a method.

Each `check_...` takes a model, and a batch on the CPU with labels or without; it raises an AssertionError. Use tiny
models in float32 without dropout, whose own weights are not at their start: a zero hides an error.

    from hf_domain.testing import check_evaluation, check_padding, check_saved_and_loaded

    def test_toy(tmp_path):
        model, batch = make_toy().eval(), make_batch()
        check_padding(model, batch)
        check_evaluation(model, batch)
        check_saved_and_loaded(model, batch, tmp_path)
"""

import copy
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedModel, Trainer, TrainingArguments

Batch = dict[str, torch.Tensor]
OF_TOKENS = ("input_ids", "token_type_ids", "position_ids")


def train(
    model: PreTrainedModel,
    dataset: Dataset,
    output_dir: str | os.PathLike,
    batch_size: int = 8,
    accumulation: int = 1,
    max_steps: int = 3,
    **options: Any,
) -> list[tuple[float, float]]:
    """Train with the stock Trainer; returns loss and norm of the gradient of each step."""
    arguments = TrainingArguments(
        str(output_dir),
        per_device_train_batch_size=batch_size,
        gradient_accumulation_steps=accumulation,
        max_steps=max_steps,
        learning_rate=1e-2,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        train_sampling_strategy="sequential",
        disable_tqdm=True,
        **options,
    )
    trainer = Trainer(model, arguments, train_dataset=dataset)
    trainer.train()
    return [(log["loss"], log["grad_norm"]) for log in trainer.state.log_history if "grad_norm" in log]


def get_changed(model: PreTrainedModel, before: Mapping[str, torch.Tensor]) -> set[str]:
    """Name the parameters that are no longer what they were."""
    return {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}


def check_training(
    model: PreTrainedModel,
    dataset: Dataset,
    output_dir: str | os.PathLike,
    is_frozen: Callable[[str], bool],
    undecided: str | None = None,
) -> None:
    """Training leaves what is frozen bit-equal, and changes all other parameters.

    Args:
        is_frozen: Tells it from a parameter's name.
        undecided: Part of the names of parameters that may change or not.
    """
    before = copy.deepcopy(dict(model.named_parameters()))
    train(model, dataset, output_dir)
    frozen = {name for name in before if is_frozen(name)}
    known = {name for name in before if undecided is None or undecided not in name}
    assert get_changed(model, before) & known == known - frozen
    assert all(parameter.grad is None for name, parameter in model.named_parameters() if name in frozen)


def check_accumulation(model: PreTrainedModel, dataset: Dataset, output_dir: str | os.PathLike) -> None:
    """A batch of 8 gives the losses and gradients of four accumulated batches of 2; the model must draw nothing."""
    whole, parts = (train(copy.deepcopy(model), dataset, output_dir, *sizes) for sizes in ((8, 1), (2, 4)))
    torch.testing.assert_close(torch.tensor(whole), torch.tensor(parts), rtol=1e-3, atol=2e-4)


def check_saved_and_loaded(model: PreTrainedModel, batch: Batch, folder: str | os.PathLike) -> PreTrainedModel:
    """A saved and loaded model has the same weights, outputs and frozen parameters; returns it."""
    model.eval().save_pretrained(folder)
    loaded = type(model).from_pretrained(folder).eval()
    assert torch.equal(loaded(**batch).logits, model(**batch).logits)
    state = loaded.state_dict()
    assert state.keys() == model.state_dict().keys()
    for key, value in model.state_dict().items():
        assert torch.equal(value, state[key]), key
    first, second = ({n: p.requires_grad for n, p in each.named_parameters()} for each in (model, loaded))
    assert first == second
    return loaded


def check_padding(model: PreTrainedModel, batch: Batch) -> None:
    """The first text of a batch, which must be padded, has the logits that it has alone; labels are left out."""
    kept = batch["attention_mask"][0].bool()
    assert not kept.all(), "the first text must have padding"
    batch = {name: value for name, value in batch.items() if name != "labels"}
    first = {name: value[:1, kept] if name in OF_TOKENS else value[:1] for name, value in batch.items()}
    del first["attention_mask"]  # a text alone needs none
    with torch.no_grad():
        padded, alone = model(**batch).logits[:1, kept], model(**first).logits
    torch.testing.assert_close(padded, alone, rtol=1e-4, atol=1e-4)


def check_evaluation(model: PreTrainedModel, batch: Batch) -> None:
    """Evaluation gives the same loss and logits twice; training, which must have some noise, does not."""
    once, again = (model.eval()(**batch) for _ in range(2))
    assert torch.equal(once.loss, again.loss) and torch.equal(once.logits, again.logits)
    outputs = [model.train()(**batch) for _ in range(5)]
    assert len({output.loss.item() for output in outputs}) > 1


def check_activation_checkpointing(model: PreTrainedModel, batch: Batch) -> None:
    """Computing the activations again gives the same gradient; the model must not draw random numbers."""
    model.train()
    model(**batch).loss.backward()
    expected = [parameter.grad for parameter in model.parameters()]
    assert any(gradient is not None for gradient in expected)
    model.zero_grad()
    (getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable)()
    model(**batch).loss.backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-3, atol=1e-6)


def check_bfloat16(model: PreTrainedModel, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Mixed precision and pure bfloat16 give finite losses and gradients; returns both losses."""
    model.train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = model(**batch).loss
    mixed.backward()
    model = model.to(torch.bfloat16)  # type: ignore[arg-type]
    model.zero_grad()
    loss = model(**batch).loss
    loss.backward()
    assert torch.isfinite(torch.stack([mixed, loss.float()])).all()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    return mixed.float(), loss.float()


def check_compiled(model: PreTrainedModel, batch: Batch, **more: Any) -> None:
    """A whole graph gives the same numbers; `more` arguments go beside the batch a second time."""
    torch._dynamo.reset()
    compiled: Any = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        for options in ({}, more) if more else ({},):
            actual, expected = (each(**batch, **options).logits for each in (compiled, model))
            if actual.dim() == 3:
                actual, expected = (logits[batch["attention_mask"].bool()] for logits in (actual, expected))
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)

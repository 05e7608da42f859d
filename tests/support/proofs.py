"""Proofs that every method carries, in the same form for each."""

import torch
from transformers import Trainer, TrainingArguments


def train(model, dataset, output_dir, batch_size=8, accumulation=1, max_steps=3, **options):
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


def get_changed(model, before):
    """Name the parameters that are no longer what they were."""
    return {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}


def check_activation_checkpointing(model, batch):
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


def check_bfloat16(model, batch):
    """Mixed precision and pure bfloat16 give finite losses and gradients; returns both losses."""
    model.train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = model(**batch).loss
    mixed.backward()
    model = model.to(torch.bfloat16)
    model.zero_grad()
    loss = model(**batch).loss
    loss.backward()
    assert torch.isfinite(torch.stack([mixed, loss.float()])).all()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    return mixed.float(), loss.float()


def check_compiled(model, batch, **more):
    """A whole graph gives the same numbers; `more` arguments go beside the batch a second time."""
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        for options in ({}, more) if more else ({},):
            actual, expected = (each(**batch, **options).logits for each in (compiled, model))
            if actual.dim() == 3:
                actual, expected = (logits[batch["attention_mask"].bool()] for logits in (actual, expected))
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)

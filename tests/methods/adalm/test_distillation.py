"""MiniLM and MiniLMv2: the loss against loops, the captured states against the model's attention, the stock Trainer."""

import copy
import json
import math

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from tiny_models import VOCAB_SIZE, make_batch, make_config, make_masked_lm
from tiny_tokenizers import make_bert_tokenizer
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer, Trainer, TrainingArguments, set_seed

from hf_domain import ExBertForMaskedLM, GMapForMaskedLM, RadaForMaskedLM, VarMAEForMaskedLM
from hf_domain.methods.adalm.attention import AttentionStates, run_to_layer
from hf_domain.methods.adalm.losses import DistillationConfig, compute_distillation_losses
from hf_domain.methods.adalm.model import DistillationModel
from hf_domain.methods.adalm.students import make_student, pick_layers
from hf_domain.modeling.backbone import find_layers
from hf_domain.training.callbacks import log_auxiliary_losses

MINILM = DistillationConfig()
MINILMV2 = DistillationConfig("minilmv2", num_relation_heads=8)
LENGTHS = [7, 4, 1]


def loop_over_heads(teacher, student, num_heads, lengths):
    """The loss of one relation as the papers print it: sequence by sequence, head by head, position by position."""
    total = 0.0
    for row, length in enumerate(lengths):
        divergence = 0.0
        for head in range(num_heads):
            distributions = []
            for left, right in (teacher, student):
                width = left.shape[-1] // num_heads
                columns = slice(head * width, (head + 1) * width)
                scores = left[row, :length, columns] @ right[row, :length, columns].T / math.sqrt(width)
                distributions.append(scores.exp() / scores.exp().sum(dim=1, keepdim=True))
            p, q = distributions
            for position in range(length):
                divergence = divergence + (p[position] * (p[position] / q[position]).log()).sum()
        total = total + divergence / (num_heads * length)
    return total / len(lengths)


def make_states(width, num_heads, requires_grad=False):
    states = [torch.randn(len(LENGTHS), max(LENGTHS), width, requires_grad=requires_grad) for _ in range(3)]
    return AttentionStates(*states, num_heads=num_heads)


def make_padding():
    return (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]).long()


def test_minilm_equals_loops():
    teacher, student = make_states(24, 4), make_states(12, 4, requires_grad=True)
    terms = compute_distillation_losses(teacher, student, make_padding(), MINILM)
    assert terms.keys() == {"attention_loss", "value_loss"}
    attention = loop_over_heads((teacher.query, teacher.key), (student.query, student.key), 4, LENGTHS)
    value = loop_over_heads((teacher.value, teacher.value), (student.value, student.value), 4, LENGTHS)
    torch.testing.assert_close(terms["attention_loss"], attention)
    torch.testing.assert_close(terms["value_loss"], value)
    inputs = [student.query, student.key, student.value]
    gradients = torch.autograd.grad(sum(terms.values()), inputs)
    for gradient, expected in zip(gradients, torch.autograd.grad(attention + value, inputs), strict=True):
        torch.testing.assert_close(gradient, expected)
        assert not gradient[make_padding() == 0].any()


@pytest.mark.parametrize("num_relation_heads", [1, 3, 6, 12])
def test_minilmv2_equals_loops_for_any_heads(num_relation_heads):
    teacher, student = make_states(24, 4), make_states(12, 3, requires_grad=True)
    config = DistillationConfig("minilmv2", num_relation_heads=num_relation_heads)
    terms = compute_distillation_losses(teacher, student, make_padding(), config)
    expected = {
        f"{name}_loss": loop_over_heads(
            [getattr(teacher, name)] * 2, [getattr(student, name)] * 2, num_relation_heads, LENGTHS
        )
        for name in ("query", "key", "value")
    }
    torch.testing.assert_close(terms, expected)
    inputs = [student.query, student.key, student.value]
    gradients = torch.autograd.grad(sum(terms.values()), inputs)
    torch.testing.assert_close(gradients, torch.autograd.grad(sum(expected.values()), inputs))


@pytest.mark.parametrize("config", [MINILM, MINILMV2], ids=["minilm", "minilmv2"])
def test_blocks_of_sequences_change_nothing(family, config, monkeypatch):
    teacher, student = make_masked_lm(family), make_masked_lm(family, dropout=0.0)
    model, batch = DistillationModel(student, teacher, config).train(), make_batch(masked=False)
    results = []
    for elements in (2**21, 8 * 12 * 12 * 3, 1):  # all sequences at once, three and one, one by one
        monkeypatch.setattr("hf_domain.methods.adalm.losses.CHUNK_ELEMENTS", elements)
        model.zero_grad()
        output = model(**batch)
        output.loss.backward()
        gradients = {name: p.grad.clone() for name, p in student.named_parameters() if p.grad is not None}
        results.append((dict(output), gradients))
    for result in results[1:]:
        torch.testing.assert_close(result, results[0])


def test_default_relation_heads_are_four_times_the_teachers():
    teacher, student = make_states(48, 3), make_states(24, 2)
    default = compute_distillation_losses(teacher, student, make_padding(), DistillationConfig("minilmv2"))
    twelve = compute_distillation_losses(
        teacher, student, make_padding(), DistillationConfig("minilmv2", num_relation_heads=12)
    )
    assert default == twelve


# ---------------------------------------------------------------------------------------------- what is captured


@pytest.mark.parametrize("layer", [0, 1])
def test_captured_states_are_those_of_the_attention(family, layer):
    """Softmax of the captured scores is the model's own attention; times the captured values it is its context."""
    model, batch = make_masked_lm(family), make_batch(masked=False)
    outer = next(
        module
        for name, module in find_layers(model)[layer].named_modules()
        if name.endswith(("attention.output.dense", "out_lin", "attn.Wo"))
    )
    contexts = []
    handle = outer.register_forward_pre_hook(lambda module, inputs: contexts.append(inputs[0]))
    if family != "deberta-v2":
        model.set_attn_implementation("eager")
    attentions = model(**batch, output_attentions=True).attentions[layer]
    if family != "deberta-v2":
        model.set_attn_implementation("sdpa")
    handle.remove()
    states = run_to_layer(model, layer, **batch)
    scores = states.compute_scores("attention", 4)
    real = batch["attention_mask"].bool()
    probabilities = scores.softmax(dim=-1)
    torch.testing.assert_close(probabilities.transpose(1, 2)[real], attentions.transpose(1, 2)[real])
    context = probabilities @ states.value.unflatten(-1, (4, -1)).transpose(1, 2)
    torch.testing.assert_close(context.transpose(1, 2).flatten(2)[real], contexts[0][real])


def test_shared_projections_of_deberta():
    config = make_config("deberta-v2", share_att_key=True)
    model, batch = AutoModelForMaskedLM.from_config(config).eval(), make_batch(masked=False)
    attentions = model(**batch, output_attentions=True).attentions[1]
    states = run_to_layer(model, 1, **batch)
    scores = states.compute_scores("attention", 4)
    real = batch["attention_mask"].bool()
    torch.testing.assert_close(scores.softmax(-1).transpose(1, 2)[real], attentions.transpose(1, 2)[real])


def test_stopping_changes_nothing_and_leaves_no_hook(family):
    model, batch = make_masked_lm(family), make_batch(masked=False)
    ran = []
    find_layers(model)[1].register_forward_pre_hook(lambda module, inputs: ran.append(1))
    whole = run_to_layer(model, 0, **batch)
    stopped = run_to_layer(model, 0, **batch, stop=True)
    assert len(ran) == 1
    assert torch.equal(whole.query, stopped.query)
    assert torch.equal(whole.value, stopped.value)
    assert not any(module._forward_hooks for module in find_layers(model)[0].modules())


def test_step_runs_nothing_that_the_loss_does_not_read(family):
    teacher, student = make_masked_lm(family), make_masked_lm(family)
    ran = []
    for role, encoder in (("teacher", teacher), ("student", student)):
        for layer in find_layers(encoder):
            layer.register_forward_hook(lambda module, inputs, output, role=role: ran.append(role))
    DistillationModel(student, teacher)(**make_batch(masked=False)).loss.backward()
    assert ran.count("teacher") == len(find_layers(teacher)) - 1
    assert ran.count("student") == len(find_layers(student)) - 1


def test_local_attention_of_the_student():
    """A local student learns the teacher's attention over what it sees; one that sees all learns it as it is."""
    teacher = make_masked_lm("roberta", dropout=0.0)
    batch = make_batch(masked=False)
    student = make_masked_lm("modernbert", dropout=0.0)  # its last layer attends to 4 positions on each side
    terms = DistillationModel(student, teacher)(**batch)
    theirs, ours = run_to_layer(teacher, -1, **batch), run_to_layer(student, -1, **batch)
    position = torch.arange(12)
    window = (position[:, None] - position).abs() <= 4
    expected = 0.0
    for row in range(4):
        length = int(batch["attention_mask"][row].sum())
        near = window[:length, :length]
        for head in range(4):
            p, q = (
                states.compute_scores("attention", 4)[row, head, :length, :length]
                .masked_fill(~near, -torch.inf)
                .softmax(-1)
                for states in (theirs, ours)
            )
            expected += (p[near] * (p[near] / q[near]).log()).sum() / (4 * length) / 4
    torch.testing.assert_close(terms.attention_loss, expected)
    reverse = DistillationModel(make_masked_lm("roberta"), student)
    assert torch.isfinite(reverse(**batch).loss)


# --------------------------------------------------------------------------------------------- pairs of models


@pytest.mark.parametrize("config", [MINILM, MINILMV2], ids=["minilm", "minilmv2"])
def test_every_family_teaches_and_learns(family, config):
    teacher = make_masked_lm(family)
    before = copy.deepcopy(teacher.state_dict())
    student = make_student(teacher, num_hidden_layers=1, hidden_size=16, intermediate_size=24)
    model = DistillationModel(student, teacher, config).train()
    assert student.training
    assert not teacher.training
    batch = make_batch(masked=False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3, weight_decay=0.0)
    losses = []
    for _ in range(12):
        output = model(**batch)
        torch.testing.assert_close(
            output.loss, sum(term for name, term in output.items() if name != "loss"), rtol=1e-5, atol=1e-6
        )
        output.loss.backward()
        optimizer.step()
        losses.append(output.loss.item())
    assert losses[-1] < losses[0]
    for name, weight in teacher.state_dict().items():
        assert torch.equal(weight, before[name])
    assert all(parameter.grad is None for parameter in teacher.parameters())
    # What the docstring warns of: the rest of the last layer and the LM head have learned nothing.
    gradients = {name for name, parameter in student.named_parameters() if parameter.grad is not None}
    assert any("embedding" in name for name in gradients)
    assert not any(name.endswith(("output.dense.weight", "lin2.weight", "mlp.Wo.weight")) for name in gradients)


@pytest.mark.parametrize(
    ("student", "teacher"), [("modernbert", "roberta"), ("bert", "deberta-v2"), ("electra", "distilbert")]
)
def test_families_mix(student, teacher):
    model = DistillationModel(make_masked_lm(student), make_masked_lm(teacher)).train()
    model(**make_batch(masked=False)).loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.student.parameters() if p.grad is not None)


def test_heads_and_widths_may_differ_with_minilmv2():
    teacher = make_masked_lm("bert")
    student = make_student(teacher, num_hidden_layers=1, hidden_size=24, num_attention_heads=3, intermediate_size=24)
    with pytest.raises(ValueError, match="student has 3 and the teacher 4"):
        DistillationModel(student, teacher)
    assert DistillationModel(student, teacher, MINILMV2)(**make_batch(masked=False)).loss > 0


@pytest.mark.parametrize("wrapper", [VarMAEForMaskedLM, ExBertForMaskedLM])
def test_our_models_teach(wrapper):
    """A VarMAE teaches what its encoder attends to; an exBERT reads its extension, its base's attention teaches."""
    stock, batch = make_masked_lm("bert"), make_batch(masked=False)
    options = {}
    if wrapper is ExBertForMaskedLM:
        options["extension_vocabulary"] = {VOCAB_SIZE + number: [5, 6] for number in range(3)}
    teacher = wrapper.from_backbone(stock, **options)
    student = make_student(teacher, num_hidden_layers=1, hidden_size=16, intermediate_size=24)
    assert student.config.model_type == "bert"
    assert student.config.vocab_size == teacher.config.vocab_size
    if wrapper is VarMAEForMaskedLM:
        expected, loss = (
            DistillationModel(student, stock)(**batch).loss,
            DistillationModel(student, teacher)(**batch).loss,
        )
        assert torch.equal(loss, expected)
        assert torch.equal(
            pick_layers(teacher, [1, 2]).base_model.embeddings.word_embeddings.weight,
            stock.base_model.embeddings.word_embeddings.weight,
        )
    else:
        batch["input_ids"][:, 3] = VOCAB_SIZE + 1
        assert torch.isfinite(DistillationModel(student, teacher)(**batch).loss)
        with pytest.raises(ValueError, match="side modules"):
            pick_layers(teacher, [1])


@pytest.mark.parametrize("strategy", ["multiple_layer", "gated", "chunk_gated"])
def test_gmap_teaches_the_attention_over_the_text(strategy):
    """What the memory adds changes the states that the last layer reads; its own keys and values are not the text's."""
    stock, batch = make_masked_lm("bert"), make_batch(masked=False)
    teacher = GMapForMaskedLM.from_backbones(stock, make_masked_lm("bert"), strategy=strategy).eval()
    layer = find_layers(teacher.base_model.backbone)[-1]
    states = run_to_layer(teacher, -1, batch["input_ids"], batch["attention_mask"])
    read = []
    handle = layer.register_forward_pre_hook(lambda module, arguments: read.append(arguments[0]))
    teacher(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    handle.remove()
    for name in ("query", "key", "value"):
        assert torch.equal(getattr(states, name), getattr(layer.attention.self, name)(read[0])), name
    expected = run_to_layer(stock.eval(), -1, batch["input_ids"], batch["attention_mask"])
    assert torch.equal(states.visible, expected.visible)
    # Memory at the first layer as well: what the last one reads is no longer the stock encoder's.
    assert torch.equal(states.query, expected.query) == (strategy == "gated")
    student = make_student(teacher, num_hidden_layers=1, hidden_size=16, intermediate_size=24)
    assert (student.config.model_type, DistillationModel(student, teacher)(**batch).loss > 0) == ("bert", True)


def test_rada_teaches_as_its_encoder():
    stock, batch = make_masked_lm("bert"), make_batch(masked=False)
    student = make_student(stock, num_hidden_layers=1, hidden_size=16, intermediate_size=24)
    expected = DistillationModel(student, stock)(**batch).loss
    assert torch.equal(DistillationModel(student, RadaForMaskedLM.from_backbone(stock))(**batch).loss, expected)


def test_our_models_learn():
    teacher = make_masked_lm("bert")
    student = VarMAEForMaskedLM.from_backbone(make_masked_lm("bert"), freeze_backbone=False)
    DistillationModel(student, teacher)(**make_batch(masked=False)).loss.backward()
    assert student.get_input_embeddings().weight.grad.abs().sum() > 0
    frozen = VarMAEForMaskedLM.from_backbone(make_masked_lm("bert"))
    with pytest.raises(ValueError, match="student must be trainable, but is frozen"):
        DistillationModel(frozen, teacher)


def test_teacher_layer():
    teacher, student, batch = make_masked_lm("bert"), make_masked_lm("bert"), make_batch(masked=False)
    losses = [DistillationModel(student, teacher, DistillationConfig(teacher_layer=n))(**batch).loss for n in (1, 2)]
    assert losses[0] != losses[1] == DistillationModel(student, teacher)(**batch).loss
    assert (
        DistillationModel(pick_layers(teacher, [1]), teacher, DistillationConfig(teacher_layer=1))(**batch).loss < 1e-6
    )


def test_padding_never_leaks(family):
    torch.manual_seed(1)
    model = DistillationModel(make_masked_lm(family), make_masked_lm(family)).eval()
    batch = make_batch(masked=False)
    whole = model(**batch).loss
    rows = [model(input_ids[real.bool()][None], None).loss for input_ids, real in zip(*batch.values(), strict=True)]
    torch.testing.assert_close(whole, torch.stack(rows).mean(), rtol=1e-4, atol=1e-5)


def test_compiled_object_gives_the_same_loss():
    """Its forward pass as Trainer compiles it with --torch_compile."""
    model = DistillationModel(make_masked_lm("bert"), make_masked_lm("bert")).eval()
    input_ids = torch.randint(5, VOCAB_SIZE, (2, 7))
    compiled = torch.compile(model, backend="eager")
    assert torch.equal(compiled(input_ids).loss, model(input_ids).loss)


def test_bfloat16_teacher_and_autocast():
    teacher = make_masked_lm("bert")
    student = make_student(teacher, num_hidden_layers=1)
    batch = make_batch(masked=False)
    exact = DistillationModel(student, teacher).eval()(**batch).loss
    model = DistillationModel(student, copy.deepcopy(teacher).bfloat16()).eval()
    with torch.autocast("cpu", torch.bfloat16):
        output = model(**batch)
    assert output.loss.dtype == torch.float32
    torch.testing.assert_close(output.loss, exact, rtol=0.1, atol=0.02)
    output.loss.backward()


def test_activation_checkpointing_gives_the_same_gradients(family):
    teacher, student, batch = make_masked_lm(family), make_masked_lm(family, dropout=0.0), make_batch(masked=False)
    gradients = []
    for checkpointing in (False, True):
        model = DistillationModel(copy.deepcopy(student), teacher)
        if checkpointing:
            (getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable)()
        model.train()(**batch).loss.backward()
        gradients.append({name: p.grad for name, p in model.student.named_parameters() if p.grad is not None})
    torch.testing.assert_close(*gradients)


# -------------------------------------------------------------------------------------------- the stock Trainer


@pytest.fixture
def train(tmp_path):
    """Train a student of one layer on eight rows of unequal length; returns the trainer."""

    def train(batch_size=8, accumulation=1, folder="output", teacher_family="bert", resume=None, **options):
        set_seed(0)
        teacher = make_masked_lm(teacher_family)
        student = make_student(teacher, num_hidden_layers=2, hidden_size=16, intermediate_size=24)
        for module in student.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        rows = make_batch(8, masked=False)
        rows["attention_mask"][3, 5:] = 0
        defaults = {"max_steps": 2, "save_strategy": "no"}
        trainer = Trainer(
            DistillationModel(student, teacher),
            TrainingArguments(
                str(tmp_path / folder),
                per_device_train_batch_size=batch_size,
                gradient_accumulation_steps=accumulation,
                logging_steps=1,
                learning_rate=1e-2,
                use_cpu=True,
                disable_tqdm=True,
                report_to="none",
                train_sampling_strategy="sequential",
                **(defaults | options),
            ),
            train_dataset=Dataset.from_dict({key: value.tolist() for key, value in rows.items()}),
            processing_class=make_bert_tokenizer(),
        )
        log_auxiliary_losses(trainer)
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    return train


def read_log(trainer, *names):
    return torch.tensor([[line[name] for name in names] for line in trainer.state.log_history if "loss" in line])


def test_accumulation_is_exact(train):
    names = ("loss", "grad_norm", "attention_loss", "value_loss")
    whole, parts = read_log(train(8, 1), *names), read_log(train(2, 4), *names)
    torch.testing.assert_close(whole, parts, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(whole[:, 0], whole[:, 2] + whole[:, 3], rtol=1e-3, atol=2e-4)


def test_evaluation_needs_no_labels(train):
    trainer = train()
    metrics = trainer.evaluate(trainer.train_dataset)
    assert metrics["eval_loss"] == pytest.approx(metrics["eval_attention_loss"] + metrics["eval_value_loss"], abs=1e-4)


def test_the_student_alone_is_saved(train, tmp_path):
    trainer = train()
    trainer.save_model()
    folder = tmp_path / "output"
    weights = load_file(folder / "model.safetensors")
    assert not any("teacher" in name for name in weights)
    config = json.loads((folder / "config.json").read_text())
    assert (config["architectures"], config["num_hidden_layers"]) == (["BertForMaskedLM"], 2)
    assert "keys_to_ignore_at_inference" not in config
    loaded, info = AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values())
    batch = make_batch(masked=False)
    expected = trainer.model.student.eval().base_model(**batch).last_hidden_state
    assert torch.equal(AutoModel.from_pretrained(folder)(**batch).last_hidden_state, expected)
    assert torch.equal(loaded.base_model(**batch).last_hidden_state, expected)
    assert len(AutoTokenizer.from_pretrained(folder)) == len(make_bert_tokenizer())


def test_resumes_to_the_same_losses(train, tmp_path):
    whole = read_log(train(4, folder="whole", max_steps=4, save_strategy="steps", save_steps=2), "loss")
    checkpoint = str(tmp_path / "whole" / "checkpoint-2")
    parts = read_log(
        train(4, folder="parts", max_steps=4, save_strategy="steps", save_steps=2, resume=checkpoint), "loss"
    )
    assert torch.equal(whole, parts)
    first, second = (
        load_file(tmp_path / folder / "checkpoint-4" / "model.safetensors") for folder in ("whole", "parts")
    )
    assert all(torch.equal(first[name], second[name]) for name in first)


# -------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "minilmv3"}, "must be 'minilm' or 'minilmv2', but is 'minilmv3'"),
        ({"num_relation_heads": 8}, "but is 8. Use method='minilmv2'"),
        ({"method": "minilmv2", "num_relation_heads": 0}, "num_relation_heads must be at least 1, but is 0"),
        ({"teacher_layer": 0}, "teacher_layer must be at least 1, but is 0"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        DistillationConfig(**options)

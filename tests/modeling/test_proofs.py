"""The proofs that every method carries, in the same form for each.

Of the ten, (1) the equations and (2) the method that does nothing are in the file of each method.
"""

import json

import pytest
import torch
from method_models import METHODS, NUM_NEW, make_choices
from safetensors.torch import load_file, save_file
from tiny_models import VOCAB_SIZE, make_masked_lm
from torch.nn import functional as F
from without_package import run_without_package

from hf_domain import RadaForMaskedLM, VarMAEForMaskedLM, VarMAEForTokenClassification
from hf_domain.testing import (
    check_accumulation,
    check_activation_checkpointing,
    check_bfloat16,
    check_compiled,
    check_evaluation,
    check_padding,
    check_saved_and_loaded,
    check_training,
)

HEADS = ["AutoModel", "AutoModelForSequenceClassification", "AutoModelForTokenClassification"]
HEADS += ["AutoModelForQuestionAnswering", "AutoModelForMultipleChoice"]
MASKED_LM = "AutoModelForMaskedLM"


@pytest.fixture(params=METHODS)
def method(request):
    """Each of the four methods."""
    return METHODS[request.param]


def list_cases(options=None):
    """List each method in all families it has, with each of some options."""
    return [
        pytest.param(method, family, each, id="-".join([name, family, *map(str, each.values())]))
        for name, method in METHODS.items()
        for family in method.families
        for each in (getattr(method, options) if options else [{}])
    ]


def list_compiled():
    """List each method in all families it has; `make test` takes a sample."""
    sample = [("exbert", "roberta")]  # test_steps.py compiles a VarMAE
    for name, method in METHODS.items():
        for family in method.families:
            marks = () if (name, family) in sample else pytest.mark.compiled
            yield pytest.param(method, family, id=f"{name}-{family}", marks=marks)


over_families = pytest.mark.parametrize(("method", "family", "options"), list_cases())


def list_trained(model):
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


# ----------------------------------------------------------------------- 3, 5: what trains, with what gradient


@over_families
def test_training_leaves_what_is_frozen_and_changes_the_rest(method, family, options, tmp_path):
    model = method.make(family, **method.frozen)
    check_training(model, method.make_dataset(), tmp_path, method.is_frozen, method.undecided)


@over_families
def test_fine_tuning_trains_all_but_second_encoders(method, family, options):
    batch = method.make_batch(masked=False)
    for head, labels in (("Sequence", torch.arange(4) % 3), ("Token", torch.randint(0, 3, (4, 12)))):
        pretrained = method.make(family)
        model = method.get_heads()[f"AutoModelFor{head}Classification"](
            type(pretrained.config).from_dict(pretrained.config.to_dict(), num_labels=3)
        )
        model.train()(**batch, labels=labels).loss.backward()
        without = {name for name, parameter in model.named_parameters() if parameter.grad is None}
        assert without == {name for name, _ in model.named_parameters() if name.startswith("model.memory.")}


@pytest.mark.parametrize("head", ["MaskedLM", "SequenceClassification", "TokenClassification"])
def test_accumulation_gives_the_same_loss_and_gradient(method, head, tmp_path, monkeypatch):
    options = {} if head == "MaskedLM" else {"num_labels": VOCAB_SIZE + NUM_NEW, "classifier_dropout": 0.0}
    model = method.make(dropout=0.0, head=method.get_heads()[f"AutoModelFor{head}"], **method.exact, **options)
    dataset = method.make_dataset()
    if head == "SequenceClassification":
        dataset = dataset.map(lambda row: {"labels": row["input_ids"][0]})
    monkeypatch.setattr(torch, "randn_like", torch.zeros_like)
    check_accumulation(model, dataset, tmp_path)


def test_losses_are_those_of_the_logits(method):
    batch = method.make_batch()
    output = method.make().eval()(**batch)
    torch.testing.assert_close(output.loss, F.cross_entropy(output.logits.flatten(0, 1), batch.pop("labels").flatten()))
    start, end = torch.tensor([1, 2, 3, 50]), torch.tensor([2, 2, 5, 50])
    model = method.make(head=method.get_heads()["AutoModelForQuestionAnswering"]).eval()
    output = model(**batch, start_positions=start, end_positions=end)
    pairs = ((output.start_logits, start), (output.end_logits, end))
    expected = sum(F.cross_entropy(logits[:3], positions[:3]) for logits, positions in pairs)
    torch.testing.assert_close(output.loss, expected / 2)


def test_choices_are_scored_alone_and_compared_within_an_example(method):
    batch, labels = method.make_batch(masked=False), torch.tensor([1, -100])
    model = method.make(head=method.get_heads()["AutoModelForMultipleChoice"]).eval()
    output = model(**make_choices(batch), labels=labels)
    first = model.model(**batch).last_hidden_state[:, 0]
    scores = model.classifier.out_proj(torch.tanh(model.classifier.dense(first))).view(2, 2)
    torch.testing.assert_close(output.logits, scores)
    torch.testing.assert_close(output.loss, F.cross_entropy(scores[:1], labels[:1]))
    of_window = model(**make_choices(batch), labels=labels, num_items_in_batch=4)
    torch.testing.assert_close(of_window.loss, output.loss / 4)
    model.train()(**make_choices(batch), labels=labels).loss.backward()
    without = {name for name, parameter in model.named_parameters() if parameter.grad is None}
    assert without == {name for name, _ in model.named_parameters() if name.startswith("model.memory.")}


# ------------------------------------------------------------------------------- 4: saving, loading, heads


@pytest.mark.parametrize(("method", "family", "options"), list_cases("saved"))
def test_saved_and_loaded_bit_equal(method, family, options, tmp_path):
    model = method.make(family, **options).eval()
    if options.get("passage_encoder") == "frozen":
        torch.nn.init.normal_(model.get_input_embeddings().weight)  # as if trained: the two encoders differ
    loaded = check_saved_and_loaded(model, method.make_batch(masked=False), tmp_path)
    assert list_trained(loaded) == {name for name, _ in model.named_parameters() if not method.is_frozen(name)}


@pytest.mark.parametrize("head", HEADS)
def test_every_head_loads_from_every_other(method, head, tmp_path):
    heads = method.get_heads()
    masked_lm = method.make().eval()
    masked_lm.save_pretrained(tmp_path / "mlm")
    model, info = heads[head].from_pretrained(tmp_path / "mlm", output_loading_info=True)
    assert all(key.startswith(("classifier.", "qa_outputs.")) for key in info["missing_keys"])
    batch = method.make_batch(masked=False)
    with torch.no_grad():
        expected = masked_lm.model(**batch).last_hidden_state
        assert torch.equal(model.base_model(**batch).last_hidden_state, expected)
        model.save_pretrained(tmp_path / "head")
        again = heads["AutoModel"].from_pretrained(tmp_path / "head")
        assert torch.equal(again(**batch).last_hidden_state, expected)


LOAD = """
import json, torch, transformers
from safetensors.torch import load_file, save_file
tensors, batch = {}, load_file("batch.safetensors")
for name in json.load(open("names.json")):
    auto_class, _, folder = name.partition("=")
    for folder in (folder, folder + "-again"):
        model = getattr(transformers, auto_class).from_pretrained(folder, trust_remote_code=True).eval()
        model.save_pretrained(folder + "-again")
    with torch.no_grad():
        given = {key: value.unflatten(0, (-1, 2)) for key, value in batch.items()} if "Choice" in auto_class else batch
        tensors[name] = model(**given)[0].contiguous()
save_file(tensors, "outputs.safetensors")
"""


def make_special(name, method, folder):
    """Make the models of a method beside its heads over BERT that must load without the package."""
    if name == "varmae":
        nested = VarMAEForMaskedLM.from_backbone(RadaForMaskedLM.from_backbone(make_masked_lm("roberta")))
        return {f"{MASKED_LM}=nested": nested}
    if name == "rada":
        composed = RadaForMaskedLM.from_backbone(VarMAEForMaskedLM.from_backbone(make_masked_lm("roberta")))
        frozen = method.make("deberta-v2", passage_encoder="frozen")
        return {f"{MASKED_LM}=frozen": frozen, f"{MASKED_LM}=composed": composed}
    base_class = method.get_heads()["AutoModel"]
    composed = VarMAEForTokenClassification.from_backbone(method.make(head=base_class))
    models = {"AutoModelForTokenClassification=composed": composed}
    if name == "exbert":
        return models | {
            f"{auto}=deberta-{auto}": method.make("deberta-v2", head=h) for auto, h in method.get_heads().items()
        }
    make_masked_lm("bert").save_pretrained(folder / "general")
    reference = base_class.from_backbones(make_masked_lm("bert"), str(folder / "general"), save_memory=False)
    return models | {
        "AutoModel=modernbert": method.make("modernbert", head=base_class),
        "AutoModel=reference": reference,
    }


@pytest.mark.parametrize("name", METHODS)
def test_every_head_loads_without_the_package(name, tmp_path):
    method, expected = METHODS[name], {}
    batch = method.make_batch(masked=False)
    models = {f"{auto_class}={auto_class}": method.make(head=head) for auto_class, head in method.get_heads().items()}
    for key, model in (models | make_special(name, method, tmp_path)).items():
        model.eval().save_pretrained(tmp_path / key.partition("=")[2])
        with torch.no_grad():
            expected[key] = model(**(make_choices(batch) if "Choice" in key else batch))[0]
    save_file(batch, tmp_path / "batch.safetensors")
    (tmp_path / "names.json").write_text(json.dumps([*expected]))
    result = run_without_package(LOAD, tmp_path)
    assert result.returncode == 0, result.stderr[-2000:]
    outputs = load_file(tmp_path / "outputs.safetensors")
    for key, value in expected.items():
        assert torch.equal(outputs[key], value), key


# ---------------------------------------------------------------- 6-8, 10: padding, evaluation, compilation


@pytest.mark.parametrize(("method", "family", "options"), list_cases("padded"))
def test_padding_never_leaks(method, family, options):
    options = dict(options)
    attention = options.pop("attention", None)
    model = method.make(family, **options).eval()
    if attention:
        model.set_attn_implementation(attention)
    batch = method.make_batch(masked=False)
    # Only where positions do not count padding may it stand on the left as well.
    for shift in (0, 3) if family in ("roberta", "xlm-roberta", "modernbert") else (0,):
        check_padding(model, batch | {n: batch[n].roll(shift, dims=1) for n in ("input_ids", "attention_mask")})
    batch = method.make_batch()
    loss = model(**batch).loss
    batch["input_ids"][0, -3:] = 50
    if family not in ("roberta", "xlm-roberta"):  # they count positions by the padding token
        torch.testing.assert_close(model(**batch).loss, loss)


@over_families
def test_evaluation_is_deterministic_and_training_is_not(method, family, options):
    model, batch = method.make(family, dropout=0.0 if method.draws else 0.1), method.make_batch()
    check_evaluation(model, batch)
    assert model(**batch).logits is None  # in training


@pytest.mark.parametrize(("method", "family"), [*list_compiled()])
def test_compiled_whole(method, family):
    batch = method.make_batch(masked=False)
    nothing = {name: torch.zeros_like(batch["input_ids"]) for name in method.compiled}
    check_compiled(method.make(family).eval(), batch, **nothing)


@pytest.mark.compiled
@pytest.mark.parametrize("head", HEADS[1:3])
def test_heads_compile_whole(method, head):
    check_compiled(method.make(head=method.get_heads()[head]).eval(), method.make_batch(masked=False))


@pytest.mark.parametrize(("method", "family", "options"), list_cases("trained"))
def test_activation_checkpointing_gives_the_same_gradient(method, family, options, monkeypatch):
    model = method.make(family, dropout=0.0, **options)
    monkeypatch.setattr(torch, "randn_like", torch.zeros_like)
    check_activation_checkpointing(model, method.make_batch())


@over_families
def test_bfloat16(method, family, options):
    mixed, pure = check_bfloat16(method.make(family), method.make_batch())
    if not method.draws:
        torch.testing.assert_close(pure, mixed, rtol=0.2, atol=0.2)

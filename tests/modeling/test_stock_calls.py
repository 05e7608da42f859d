"""Every model answers a call as a stock encoder does, in a process that cannot import this package."""

import json

import pytest
import torch
from tiny_models import make_batch, make_masked_lm
from without_package import run_without_package

from hf_domain import ExBertForMaskedLM, GMapForMaskedLM, RadaForMaskedLM, VarMAEForMaskedLM

METHODS = {
    "varmae": VarMAEForMaskedLM.from_backbone,
    "exbert": ExBertForMaskedLM.from_backbone,
    # The other fusion returns weights over the memory's keys too, so that they have another shape.
    "gmap": lambda stock: GMapForMaskedLM.from_backbones(stock, stock, fusion="gate"),
    "rada": RadaForMaskedLM.from_backbone,
}

# Each call gets `load(head, **options)`, the inputs of a batch and `embeds(model)`, the same inputs as embeddings. It
# returns what can be compared as JSON.
CALLS = """
import copy, json, tempfile
import torch, transformers
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from transformers import AutoConfig

HEADS = ("", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
SHAPE = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
SHAPE += ("max_position_embeddings", "type_vocab_size", "pad_token_id")
FURTHER = ("hidden_act", "layer_norm_eps", "hidden_dropout_prob", "attention_probs_dropout_prob", "is_decoder")

def describe(output):
    if isinstance(output, tuple):
        return [describe(item) for item in output]
    if isinstance(output, torch.Tensor):
        return [*output.shape, str(output.dtype)]
    return {key: describe(value) for key, value in output.items() if len(value)}  # () of cross attentions without any

def labels(head, rows, length):
    if head == "ForQuestionAnswering":
        return {"start_positions": torch.zeros(rows).long(), "end_positions": torch.ones(rows).long()}
    shape = (rows,) if head == "ForSequenceClassification" else (rows, length)
    return {"labels": torch.ones(shape).long()}

def differ(model, batch):
    with torch.no_grad():
        return not torch.equal(model(**batch)[0], model(**batch)[0])

def backward(model, head, batch):
    model.train()
    rows, length = batch["input_ids"].shape
    model(**batch, **labels(head, rows, length))["loss"].backward()
    return any(parameter.grad is not None for parameter in model.parameters())

def call_prompt_tuning(load, batch, embeds):
    prompts = PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=3)
    model = get_peft_model(load("ForSequenceClassification"), prompts)
    return describe(model(**batch)), backward(model, "ForSequenceClassification", batch)

def call_gradient_checkpointing(load, batch, embeds):
    model = load("ForSequenceClassification")
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    is_on = any(getattr(module, "gradient_checkpointing", False) for module in model.modules())
    return is_on, backward(model, "ForSequenceClassification", batch)

def call_switch_attention(load, batch, embeds):
    model = load("ForTokenClassification", attn_implementation="sdpa")
    names = [model.config._attn_implementation]
    model.set_attn_implementation("eager")
    return names, model.config._attn_implementation, describe(model(**batch, output_attentions=True))

def call_set_flags_later(load, batch, embeds):
    model = load("ForMaskedLM", attn_implementation="eager")
    model.config.output_hidden_states = model.config.output_attentions = True
    asked = describe(model(**batch))
    return asked, describe(model(**batch, output_hidden_states=False, output_attentions=False))

def call_config_json(load, batch, embeds):
    with tempfile.TemporaryDirectory() as folder:
        load("ForMaskedLM", hidden_dropout_prob=0.25).save_pretrained(folder)
        saved = json.load(open(folder + "/config.json"))
        again = AutoConfig.from_pretrained(folder, trust_remote_code=True)
    return [saved[name] for name in SHAPE], again.hidden_dropout_prob

def call_write_fields(load, batch, embeds):
    config = copy.deepcopy(load("").config)
    config.max_position_embeddings, config.pad_token_id, config.hidden_dropout_prob = 77, 3, 0.75
    config.vocab_size = 200
    return [getattr(config, name) for name in SHAPE + FURTHER], [config.to_dict()[name] for name in SHAPE]

def call_unknown_field(load, batch, embeds):
    try:
        load("", hidden_dropout=0.5)
    except TypeError as error:
        return "hidden_dropout" in str(error), hasattr(load("").config, "hidden_dropout")

def call_multiple_choice(load, batch, embeds):
    choices = {name: value[None] for name, value in batch.items()}
    model = load("ForMultipleChoice", output_hidden_states=True)
    output = model(**choices)
    return describe(output), describe(output.to_tuple()), list(model(**choices, labels=torch.ones(1).long()))[:2]

CALLS = {
    "plain call": lambda load, batch, embeds: [describe(load(head)(**batch)) for head in HEADS],
    "labels": lambda load, batch, embeds: [
        list(load(head)(**batch, **labels(head, *batch["input_ids"].shape)))[:2] for head in HEADS[1:]
    ],
    "output_hidden_states in the call": lambda load, batch, embeds: [
        describe(load(head)(**batch, output_hidden_states=True)) for head in HEADS
    ],
    "output_hidden_states at from_pretrained": lambda load, batch, embeds: [
        describe(load(head, output_hidden_states=True)(**batch)) for head in HEADS
    ],
    "output_attentions at from_pretrained": lambda load, batch, embeds: [
        describe(load(head, output_attentions=True)(**batch)) for head in HEADS
    ],
    "one of the hidden states": lambda load, batch, embeds: [
        state is None for state in load("")(**batch, output_hidden_states=[-1]).hidden_states
    ],
    "flags set on a loaded model": call_set_flags_later,
    "return_dict=False in the call": lambda load, batch, embeds: [
        describe(load(head, output_hidden_states=True)(**batch, return_dict=False)) for head in HEADS
    ],
    "return_dict=False at from_pretrained": lambda load, batch, embeds: [
        describe(load(head, return_dict=False)(**batch)) for head in HEADS
    ],
    "return_dict=True over a config that says False": lambda load, batch, embeds: [
        describe(load(head, return_dict=False)(**batch, return_dict=True)) for head in HEADS
    ],
    "positional arguments": lambda load, batch, embeds: describe(
        load("")(batch["input_ids"], batch["attention_mask"], torch.zeros_like(batch["input_ids"]))
    ),
    "inputs_embeds": lambda load, batch, embeds: [
        describe(model(**embeds(model))) for model in (load("ForMaskedLM"), load("ForSequenceClassification"))
    ],
    "no dropout at from_pretrained": lambda load, batch, embeds: [
        differ(load(head, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0).train(), batch) for head in HEADS
    ],
    "dropout": lambda load, batch, embeds: differ(
        load("", hidden_dropout_prob=0.9, attention_probs_dropout_prob=0.0).train(), batch
    ),
    "switched attention": call_switch_attention,
    "bfloat16": lambda load, batch, embeds: describe(load("ForMaskedLM", dtype=torch.bfloat16)(**batch)),
    "labels of a task": lambda load, batch, embeds: describe(
        load("ForTokenClassification", id2label={0: "O", 1: "B", 2: "I"})(**batch)
    ),
    "gradient checkpointing": call_gradient_checkpointing,
    "fields of the config": lambda load, batch, embeds: [getattr(load("").config, name) for name in SHAPE + FURTHER],
    "fields of the text config": lambda load, batch, embeds: load("").config.get_text_config().hidden_size,
    "config.json": call_config_json,
    "fields written": call_write_fields,
    "unknown field": call_unknown_field,
    "multiple choice": call_multiple_choice,
    "prompt tuning": call_prompt_tuning,
}

def answer(name, folder):
    batch = torch.load("batch.pt")
    memory, loaded = name == "gmap", {}

    def load(head, **options):
        key = f"{head} {sorted(options.items())}"
        if key not in loaded:
            options |= {"add_pooling_layer": False} if name == "stock" and not head else {}
            auto_class = getattr(transformers, "AutoModel" + head)
            loaded[key] = auto_class.from_pretrained(folder, trust_remote_code=True, **options).eval()
        return copy.deepcopy(loaded[key])  # loading takes ten times as long

    def embeds(model):
        inputs = {"inputs_embeds": model.get_input_embeddings()(batch["input_ids"])}
        inputs["attention_mask"] = batch["attention_mask"]
        return inputs | ({"memory_input_ids": batch["input_ids"]} if memory else {})

    answers = {}
    for title, call in CALLS.items():
        extra = {}
        if memory and title == "prompt tuning":  # the domain encoder then reads embeddings, and the memory ids
            extra = {"memory_input_ids": batch["input_ids"], "memory_attention_mask": batch["attention_mask"]}
        try:
            answers[title] = json.loads(json.dumps(call(load, batch | extra, embeds)))
        except Exception as error:
            answers[title] = f"{type(error).__name__}: {error}"
    return answers

json.dump({name: answer(name, name) for name in open("names").read().split()}, open("answers.json", "w"))
"""
TITLES = [line.split('"')[1] for line in CALLS.partition("\nCALLS = {")[2].splitlines() if line.startswith('    "')]


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calls")
    torch.manual_seed(0)
    stock = make_masked_lm("bert")
    stock.save_pretrained(folder / "stock")
    for name, build in METHODS.items():
        build(stock).save_pretrained(folder / name)
    torch.save(make_batch(batch_size=2, length=8, masked=False), folder / "batch.pt")
    (folder / "names").write_text(" ".join(["stock", *METHODS]))
    result = run_without_package(CALLS, folder)
    assert result.returncode == 0, result.stderr[-2000:]
    return json.loads((folder / "answers.json").read_text())


@pytest.mark.parametrize("title", TITLES)
def test_call_as_a_stock_encoder_answers_it(title, answers):
    assert not isinstance(answers["stock"][title], str), answers["stock"][title]
    for method in METHODS:
        assert answers[method][title] == answers["stock"][title], method

"""Model cards and what may be published."""

import ast
import re
from functools import partial
from types import SimpleNamespace

import pytest
from huggingface_hub import ModelCard
from tiny_models import make_config, make_masked_lm
from tiny_tokenizers import make_bert_tokenizer
from transformers import BertForSequenceClassification
from without_package import run_without_package

from hf_domain import GMapConfig, GMapForMaskedLM, VarMAEForMaskedLM, hub
from hf_domain.environment import describe_environment
from hf_domain.hub import check_publication, publish
from hf_domain.methods import METHODS
from hf_domain.safe_io import read_json, write_json
from hf_domain.training.cards import write_model_card
from hf_domain.training.run import run_training

FOREIGN = {"AutoConfig": "somebody/else--configuration.Config"}
CARD = {
    "model_name": "someone/bert-cs",
    "base_model": "google-bert/bert-base-uncased",
    "corpus": "abstracts",
    "settings": {"tokens": "1,000", "learning rate": "1e-4"},
    "limits": "Not tested on speech.",
    "metadata": {"license": "apache-2.0"},
    "license_note": "Text: CC BY 4.0.",
    "example": "a [MASK] model",
    "results": "| a | b |\n| --- | --- |\n| 1 | 2 |\n\n![results](results.png)",
}


@pytest.mark.parametrize("method", METHODS)
def test_card_says_what_was_done(method, tmp_path):
    is_stock = METHODS[method].model_type is None
    # Of a stock model an `auto_map` is its base's: trust would run code of somebody else.
    write_json(tmp_path / "config.json", {"model_type": "bert" if is_stock else method, "auto_map": FOREIGN})
    card = ModelCard.load(write_model_card(tmp_path, method=method, **CARD))
    assert card.data.base_model == CARD["base_model"]
    again = ModelCard.load(write_model_card(tmp_path, method=method, **CARD | {"base_model": "bert-base-uncased"}))
    assert again.data.base_model == "bert-base-uncased"
    assert card.data.license == "apache-2.0"
    assert card.data.pipeline_tag == "fill-mask"
    assert {"hf-domain", method} <= set(card.data.tags)
    for text in (
        "| tokens | 1,000 |",
        "| 1 | 2 |",
        "results.png",
        "Not tested on speech.",
        "CC BY 4.0",
        "@inproceedings",
    ):
        assert text in card.text
    assert not any(mark in card.text for mark in ("{{", "{%", "{base_model}"))
    assert ("trust_remote_code=True" in card.text) is not is_stock


@pytest.mark.parametrize("example", ["a [MASK] model", 'the "[MASK]" \\ sat', "a\n[MASK]", "```\n[MASK]"])
def test_snippet_of_the_card_is_python(tmp_path, example):
    write_json(tmp_path / "config.json", {})
    text = write_model_card(tmp_path, method="varmae", **CARD | {"example": example}).read_text()
    fence = "````" if "```" in example else "```"
    tree = ast.parse(text.split(f"{fence}python\n")[1].split(f"\n{fence}\n")[0])
    assert example in [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]


@pytest.mark.parametrize(
    ("task", "model_class", "printed"),
    [
        ("fill-mask", VarMAEForMaskedLM, r"(0\.\d{3}  .*\n){3}"),
        ("text-classification", BertForSequenceClassification, r"\[\{'label': .*\}\]\n"),
    ],
)
def test_snippet_of_the_card_runs_without_the_package(tmp_path, task, model_class, printed):
    encoder = make_masked_lm("bert")
    model = encoder.config if task == "text-classification" else encoder
    (model_class if model is encoder.config else model_class.from_backbone)(model).save_pretrained(tmp_path / "model")
    make_bert_tokenizer().save_pretrained(tmp_path / "model")
    facts = {"model_name": "model", "example": "the [MASK] sat", "task": task}
    text = write_model_card(tmp_path / "model", **CARD | facts).read_text()
    run = run_without_package(text.split("```python\n")[1].split("```")[0], tmp_path)
    assert re.fullmatch(printed, run.stdout), run.stderr


def test_fields_of_a_card_stay_in_their_place(tmp_path):
    write_json(tmp_path / "config.json", {})
    settings = {"overrides": "a=x|y\n## Results", "files": ["/home/someone/text.txt", "b/c.txt"], "ratio": "1/2"}
    fields = {"settings": settings, "command": "hf-domain mlm ```", "base_model": "/home/someone/bert"}
    card = ModelCard.load(write_model_card(tmp_path, method="dapt", **CARD | fields))
    for line in (
        "| overrides | a=x\\|y ## Results |",
        "| files | ['text.txt', 'b/c.txt'] |",
        "| ratio | 1/2 |",
        "````bash\nhf-domain mlm ```\n````",
        "- **Base model:** bert\n",
    ):
        assert line in card.text
    assert "/home" not in card.content
    assert card.data.base_model is None


@pytest.mark.parametrize(
    ("method", "config", "told"),
    [
        ("varmae", {"freeze_backbone": True}, "the encoder itself was frozen."),
        ("varmae", {"freeze_backbone": False}, "the encoder itself was trained as well."),
        ("gmap", {"freeze_memory": False}, "as memory, which was trained as well."),
        ("exbert", {"extension_vocab_size": 9, "extension_hidden_size": 8}, "vocabulary and a side module in every"),
        ("exbert", {"extension_vocab_size": 9, "extension_hidden_size": 0}, "with an extension vocabulary, trained"),
    ],
)
def test_card_says_which_parts_there_are_and_were_trained(tmp_path, method, config, told):
    write_json(tmp_path / "config.json", config)
    assert told in write_model_card(tmp_path, method=method, **CARD).read_text()


def test_card_says_which_class_loses_the_new_words(tmp_path):
    write_json(tmp_path / "config.json", {"model_type": "roberta"})
    for ignore_merges in (False, True):
        model = {"type": "BPE", "ignore_merges": ignore_merges}
        write_json(tmp_path / "tokenizer.json", {"model": model})
        text = write_model_card(tmp_path, method="adalm", **CARD).read_text()
        assert ("`RobertaTokenizer.from_pretrained` would split the new words" in text) == ignore_merges


def test_card_of_an_unknown_method(tmp_path):
    with pytest.raises(ValueError, match=f"one of {', '.join(METHODS)}, but is dance"):
        write_model_card(tmp_path, method="dance", **CARD)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def whole(tmp_path):
    """A folder that may be published."""
    VarMAEForMaskedLM.from_backbone(make_masked_lm("bert")).save_pretrained(tmp_path / "model")
    make_bert_tokenizer().save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "README.md").write_text("{}")
    return tmp_path / "model"


def test_publish_refuses_what_is_not_whole(whole):
    assert {"model.safetensors", "modeling_varmae.py", "heads.py", "README.md"} <= {*check_publication(whole)}
    for name in ("README.md", "tokenizer_config.json", "model.safetensors", "modeling_varmae.py", "heads.py"):
        (whole / name).rename(whole / "away")
        with pytest.raises(ValueError, match=f"model lacks {name}"):
            publish(whole, "someone/model")
        (whole / "away").rename(whole / name)
    (whole / "tokenizer.json").rename(whole / "away")
    with pytest.raises(ValueError, match=r"the tokenizer of .* has none\. Save it again"):
        publish(whole, "someone/model")
    (whole / "away").rename(whole / "tokenizer.json")
    weights = (whole / "model.safetensors").read_bytes()
    (whole / "model.safetensors").write_bytes(weights[:-1])
    with pytest.raises(ValueError, match=r"model.safetensors must be a complete weights file.*\. Save the model again"):
        publish(whole, "someone/model")
    (whole / "model.safetensors").rename(whole / "model-00001-of-00002.safetensors")
    (whole / "model-00001-of-00002.safetensors").write_bytes(weights)
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    write_json(whole / "model.safetensors.index.json", {"weight_map": shards})
    with pytest.raises(ValueError, match=r"model lacks model-00002-of-00002.safetensors\."):
        publish(whole, "someone/model")


@pytest.mark.parametrize(
    "name",
    [
        "pytorch_model.bin",
        "original/Pytorch_Model.BIN",
        "a/b/w.pkl.gz",
        "w.joblib",
        "optimizer.pt.bak",
        "a/training_args.bin",
    ],
)
def test_publish_refuses_pickles(whole, name):
    (whole / "checkpoint-2").mkdir()
    for left in ("training_args.bin", "checkpoint-2/optimizer.pt"):  # Trainer's
        (whole / left).write_text("")
    assert not {"training_args.bin", "checkpoint-2/optimizer.pt"} & {*check_publication(whole)}
    (whole / name).parent.mkdir(parents=True, exist_ok=True)
    (whole / name).write_text("")
    with pytest.raises(ValueError, match=f"must have only safetensors, but .* has {name}. Remove"):
        publish(whole, "someone/model")


def test_publish_leads_to_no_code_of_others(whole):
    config, tokenizer = read_json(whole / "config.json"), read_json(whole / "tokenizer_config.json")
    for name, changed in (
        ("config.json", config | {"auto_map": FOREIGN}),
        ("config.json", config | {"model_type": "bert"}),
        ("tokenizer_config.json", tokenizer | {"auto_map": {"AutoTokenizer": ["tokens.Fast", None]}}),
    ):
        write_json(whole / name, changed)
        with pytest.raises(ValueError, match=f"must not run .* code, but auto_map of .*{name} names .* Remove"):
            publish(whole, "someone/model")
        write_json(whole / "config.json", config)
        write_json(whole / "tokenizer_config.json", tokenizer)
    check_publication(whole)


def test_vocabulary_of_a_rare_tokenizer_is_published(whole, monkeypatch):
    tokenizer = SimpleNamespace(
        get_vocab=lambda: {"a": 0},
        all_special_tokens=[],
        vocab_files_names={"vocab": "vocab.txt", "merges": "bpe.codes"},
    )
    monkeypatch.setattr(hub.AutoTokenizer, "from_pretrained", lambda folder, **options: tokenizer)
    assert "bpe.codes" not in check_publication(whole)
    (whole / "bpe.codes").touch()
    assert "bpe.codes" in check_publication(whole)


def test_memory_in_a_folder_is_not_pushed(tmp_path, monkeypatch):
    make_masked_lm("bert").save_pretrained(tmp_path / "bert")
    monkeypatch.chdir(tmp_path)
    model = GMapForMaskedLM.from_backbones(make_masked_lm("bert"), "bert", save_memory=False)
    assert model.config.memory_name_or_path == str(tmp_path / "bert")  # from wherever it is read
    for push in (model.push_to_hub, partial(model.save_pretrained, push_to_hub=True)):
        with pytest.raises(ValueError, match=r"must not name a local folder.*save_memory=True"):
            push("someone/model")
    assert not (tmp_path / "someone").exists()


def test_publish_refuses_a_memory_on_this_machine(whole):
    config = read_json(whole / "config.json")
    for memory, cure in (("/home/someone/bert", "save_memory=True"), ("../bert", "save_memory=True")):
        write_json(whole / "config.json", config | {"save_memory": False, "memory_name_or_path": memory})
        with pytest.raises(ValueError, match=rf"memory_name_or_path is {memory}\. .*{cure}"):
            publish(whole, "someone/model")
    write_json(whole / "config.json", config | {"save_memory": False, "memory_name_or_path": "someone/bert"})
    check_publication(whole)


def test_run_that_pushes_refuses_a_memory_on_this_machine():
    config = GMapConfig(**dict.fromkeys(("backbone_config", "memory_config"), make_config("bert")))
    config.memory_tokenizer, config.memory_name_or_path = "own", "/home/someone/bert"
    trainer = SimpleNamespace(
        args=SimpleNamespace(push_to_hub=True),
        model=SimpleNamespace(config=config),
        train_dataset=None,
        processing_class=None,
        add_callback=lambda callback: None,
        callback_handler=SimpleNamespace(callbacks=[]),
    )
    with pytest.raises(ValueError, match=r"memory_name_or_path is /home/someone/bert\. .* with the same tokenizer"):
        run_training(trainer)


def test_results_are_whole_files(tmp_path):
    path = tmp_path / "results.json"
    write_json(path, {"a": "ü", "environment": describe_environment()})
    content = read_json(path)
    assert content["a"] == "ü"
    assert content["environment"]["versions"]["torch"]
    assert content["environment"]["hardware"]["cpu_cores"] >= 1
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert read_json(path) == content

"""Model cards and what may be published."""

import ast
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import ModelCard
from tiny_models import make_config, make_masked_lm
from tiny_tokenizers import make_bert_tokenizer

from hf_domain import GMapConfig, GMapForMaskedLM, VarMAEForMaskedLM, hub
from hf_domain.comparison import publish as publication
from hf_domain.comparison.plan import Budget, Corpus, Plan, Row
from hf_domain.comparison.publish import make_publication
from hf_domain.comparison.results import Result, read_plan_file, write_plan_file, write_result
from hf_domain.comparison.rows import RECIPES
from hf_domain.comparison.steps import Step
from hf_domain.comparison.summary import read_report
from hf_domain.environment import describe_environment
from hf_domain.hub import check_publication, publish
from hf_domain.methods import METHODS, OWN_TYPES
from hf_domain.safe_io import read_json, write_json
from hf_domain.tasks.files import Task
from hf_domain.tasks.scores import Predictions
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


def test_fields_of_a_card_stay_in_their_place(tmp_path):
    write_json(tmp_path / "config.json", {})
    settings = {"overrides": "a=x|y\n## Results", "files": ["/home/someone/text.txt", "b/c.txt"], "ratio": "1/2"}
    fields = {"settings": settings, "usage_output": "0.9 ``` x", "base_model": "/home/someone/bert"}
    card = ModelCard.load(write_model_card(tmp_path, method="dapt", **CARD | fields))
    for line in (
        "| overrides | a=x\\|y ## Results |",
        "| files | ['text.txt', 'b/c.txt'] |",
        "| ratio | 1/2 |",
        "````text\n0.9 ``` x\n````",
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


# ------------------------------------------------------------------------------------ a model of a comparison


@pytest.fixture
def comparison(tmp_path, monkeypatch):
    """Write the folder of a comparison that trained what `train` is called for; its report is not drawn again."""
    home = tmp_path / "plan"
    plan = Plan(
        encoder="someone/bert",
        corpora={"pets": Corpus("pets.txt", "heldout.txt")},
        tasks={"animals": Task("classification", "animals", "pets", "macro_f1")},
        methods={"no_adaptation": Row("no_adaptation")},
        budget=Budget(tokens=1000),
        path=tmp_path / "plan.yaml",
    )
    (home / "results").mkdir(parents=True)
    (tmp_path / "plan.yaml").touch()

    def train(method, recipe, kind="pretraining", flags=None, config=None, **start):
        plan.methods[method] = Row(recipe, **start)
        flags = {"train_file": "pets.txt", **(flags or {})}
        flags.setdefault("method", plan.get_recipe(method).method)
        name = f"{method}-pets"
        step = train.steps[name] = Step(name, kind, "mlm", flags, [], method, "pets", id=f"{name}-00000000")
        folder = home / "steps" / step.id
        made = (config or {}).pop("model_type", RECIPES[recipe].card)
        if made in OWN_TYPES:
            VarMAEForMaskedLM.from_backbone(make_masked_lm("bert"), **(config or {})).save_pretrained(folder)
            write_json(
                folder / "config.json", read_json(folder / "config.json") | {"model_type": made} | (config or {})
            )
        else:
            make_masked_lm("bert").save_pretrained(folder)
            write_json(folder / "config.json", read_json(folder / "config.json") | (config or {}))
        make_bert_tokenizer().save_pretrained(folder)
        (folder / "log.txt").write_text("/home/someone")
        measured = {"tokens": 1000, "seconds": 2.0, "max_steps": 16, "environment": describe_environment()}
        write_result(home, Result(step, "done", **measured))
        write_plan_file(plan, train.steps.values(), home)

    def read(output_dir):
        report = read_report(read_plan_file(output_dir), publication.read_results(output_dir))
        write_json(output_dir / "report.json", {"scores": report.scores, "failed": report.failed})
        return report

    monkeypatch.setattr(publication, "write_report", read)
    monkeypatch.setattr(publication, "run_usage", lambda *args: "0.9  the cat sat")
    train.plan, train.home, train.steps = plan, home, {}
    return train


ABOUT = {"model_name": "someone/model", "license": None, "license_note": "n", "limits": "l", "example": "the [MASK]"}


def make(comparison, method, folder=None):
    """Make a publication; returns its card."""
    folder = folder or comparison.home.with_name("hub")
    return (make_publication(comparison.home, folder, method=method, corpus="pets", **ABOUT) / "README.md").read_text()


def list_files(folder):
    return sorted(path.relative_to(folder) for path in Path(folder).rglob("*"))


def test_killed_publication_does_not_block_its_folder(comparison, tmp_path, monkeypatch):
    comparison("varmae", "varmae")
    folder = tmp_path / "hub"
    make(comparison, "varmae", folder)
    remove = shutil.rmtree

    def kill(path, **options):
        if (file := Path(path, "README.md")).exists() and "unfinished" not in Path(path).name:
            file.unlink()
            raise KeyboardInterrupt
        remove(path, **options)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", kill)
        make(comparison, "varmae", folder)
    assert "max steps | 16" in make(comparison, "varmae", folder)
    assert [path for path in tmp_path.iterdir() if path.name.startswith("hub")] == [folder]


def test_publication_replaces_only_a_publication(comparison, tmp_path, monkeypatch):
    comparison("varmae", "varmae")
    home = comparison.home
    for folder in (tmp_path / "hub", home / "hub", tmp_path / "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        for _ in range(2):  # the second replaces the first
            assert "max steps | 16" in make(comparison, "varmae", folder)
        assert "log.txt" not in {path.name for path in folder.iterdir()}
    (tmp_path / "empty" / "LICENSE").touch()
    with pytest.raises(ValueError, match=r"but .* contains LICENSE. Name another"):  # which only its owner put there
        make(comparison, "varmae", tmp_path / "empty")
    (tmp_path / "thesis").mkdir()
    for name in ("README.md", "config.json", "report.json", "thesis.tex"):
        (tmp_path / "thesis" / name).touch()
    (tmp_path / "next.unfinished" / "data").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    before = list_files(tmp_path)
    for folder, message in (
        ("thesis", "contains thesis.tex. Name another"),
        ("plan.yaml", "contains plan.yaml"),
        ("next", "contains data"),
        ("plan/steps/varmae-pets-00000000", "must lie outside the comparison"),
        ("plan/results", "must lie outside the comparison"),
        ("plan/steps/hub", "must lie outside the comparison"),
        ("plan", "must lie outside the comparison"),
        (".", "must lie outside the comparison"),
    ):
        with pytest.raises(ValueError, match=message):
            make(comparison, "varmae", Path(folder))
        assert list_files(tmp_path) == before


def test_card_names_the_encoder_and_what_trained_it_before(comparison, tmp_path, monkeypatch):
    comparison("tapt", "tapt")
    comparison("varmae", "varmae", config={"freeze_backbone": False})
    comparison("second", "varmae", after="tapt")
    comparison("third", "varmae", after="second")
    comparison("tested", "varmae", after="no_adaptation")  # which trains no encoder
    comparison("legal", "varmae", encoder="models/legal")
    card = ModelCard(make(comparison, "varmae"))
    assert card.data.base_model == "someone/bert"
    assert "- **Base model:** someone/bert\n" in card.text
    assert "the encoder itself was trained as well" in card.text
    assert "- **Base model:** someone/bert (after TAPT, then VarMAE)\n" in make(comparison, "third")
    assert "- **Base model:** someone/bert\n" in make(comparison, "tested")
    assert ModelCard(make(comparison, "legal")).data.base_model == "models/legal"
    (tmp_path / "models" / "legal").mkdir(parents=True)  # paths start where the plan is, wherever the command runs
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    card = ModelCard(make(comparison, "legal"))
    assert card.data.base_model is None
    assert "- **Base model:** legal\n" in card.text


def test_card_is_of_the_recipe(comparison):
    comparison("words", "adalm")
    comparison("side", "exbert")
    comparison("general", "general_text")
    comparison("low_rank", "lora", flags={"expanded_vocabulary": "plan/steps/vocabulary-pets"})
    assert "with words of its domain added to the vocabulary" in make(comparison, "words")
    assert "exBERT" in make(comparison, "side")
    assert "(after an expansion of its vocabulary by words of the domain), trained" in make(comparison, "low_rank")
    with pytest.raises(ValueError, match=r"by masked LM, but is general. Publish one of low_rank, side, words"):
        make(comparison, "general")


def test_card_shows_the_scores_of_its_own_model(comparison):
    """A row of the report may be of several models, one for each corpus."""
    comparison.plan.tasks["plants"] = Task("plants", "classification", "garden", "macro_f1")
    comparison("varmae", "varmae")
    comparison("dapt", "dapt")
    for method in ("varmae", "dapt"):
        for task, corpus in (("animals", "pets"), ("plants", "garden")):
            name, encoder = f"{method}-{task}-seed1", comparison.steps.get(f"{method}-{corpus}")
            needs = ["of-garden" if encoder is None else encoder.id]
            step = Step(name, "fine_tuning", "classification", {}, needs, method, None, task, 1, id=name)
            comparison.steps[name] = step
            predictions = Predictions.of_names([["a"], ["b"]], [["a"], ["a"]], "macro_f1")
            write_result(comparison.home, Result(step, "done", score=50.0, predictions=predictions))
    write_plan_file(comparison.plan, comparison.steps.values(), comparison.home)
    card = make(comparison, "varmae")
    assert "animals (macro f1)" in card and "plants" not in card
    assert "gains.png" in card


def test_card_says_what_was_trained_on_what(comparison):
    own = {"train_file": ["parts/a.txt", "b.txt"]}
    comparison("varmae", "varmae", flags=own)
    comparison("more", "dapt", after="varmae", config={"model_type": "varmae", "freeze_backbone": True})
    comparison("copied", "dapt", config={"auto_map": FOREIGN})
    card = make(comparison, "varmae")
    assert "- **Corpus:** pets (a.txt, b.txt)\n" in card and "parts" not in card
    assert "trained by variational masked autoencoding" in make(comparison, "more")
    assert "trust" not in make(comparison, "copied")
    assert "auto_map" not in (comparison.home.with_name("hub") / "config.json").read_text()
    step = Step("tapt-animals", "pretraining", "mlm", {"train_file": "{root}/texts/animals.txt"}, task="animals")
    assert publication.describe_text(step, {}) == "the training texts of animals"


def test_published_report_names_failed_steps_and_shows_no_log(comparison, tmp_path):
    step = Step("dapt-on-pets", "held_out_loss", "mlm", {}, id="dapt-on-pets-00000000")
    comparison.steps[step.name] = step
    comparison("dapt", "dapt")
    failed = Result(step, "failed", "/home/someone: hf_secret")
    write_result(comparison.home, failed)
    make(comparison, "dapt")
    assert read_json(comparison.home / "report.json")["failed"] == {"dapt-on-pets": failed.error}
    assert read_json(tmp_path / "hub" / "report.json")["failed"] == ["dapt-on-pets"]
    assert not [file for file in (tmp_path / "hub").iterdir() if b"/home" in file.read_bytes()]

"""The demo and the script that makes its data, on data made here."""

import gzip
import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import forked_python
import make_quickstart_data
import pytest
from script_runs import write_jsonl
from tiny_models import make_config
from tiny_tokenizers import SENTENCES, make_bert_tokenizer
from transformers import AutoModelForMaskedLM, AutoTokenizer, BertConfig, BertForMaskedLM

from hf_domain.comparison import publication
from hf_domain.comparison.publication import run_usage
from hf_domain.examples import publish, quickstart

VOTING = ["vote"] if find_spec("tantivy") else []


@pytest.fixture
def inputs(tmp_path):
    """A tiny encoder, a corpus and a task."""
    tokenizer = make_bert_tokenizer()
    config = make_config("bert")
    config.vocab_size = len(tokenizer)
    AutoModelForMaskedLM.from_config(config).save_pretrained(tmp_path / "encoder")
    tokenizer.save_pretrained(tmp_path / "encoder")
    (tmp_path / "corpus.txt").write_text("\n".join(SENTENCES * 100), encoding="utf-8")
    (tmp_path / "task").mkdir()
    texts = [f"{number} {' '.join(SENTENCES[:4] * 3)}" for number in range(20)]  # TAPT needs a batch of them
    rows = [{"text": text, "label": str(number % 2)} for number, text in enumerate(texts)]
    for split in ("train", "validation", "test"):
        write_jsonl(tmp_path / "task" / f"{split}.jsonl", rows)
    return tmp_path


def run_quickstart(monkeypatch, inputs, **options):
    options = {
        "model_name_or_path": inputs / "encoder",
        "corpus": inputs / "corpus.txt",
        "task": inputs / "task",
        "output_dir": "output",
        "num_tokens": 2048,
        "num_train_epochs": 1,
        "num_seeds": 2,
        "max_seq_length": 32,
        **options,
    }
    arguments = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
    monkeypatch.setattr(sys, "argv", ["quickstart.py", *arguments])
    monkeypatch.chdir(inputs)  # a relative output folder, as by default
    monkeypatch.setenv("HF_MODULES_CACHE", str(inputs / "modules"))
    quickstart.main()


def test_from_corpus_to_hub_folder(monkeypatch, inputs, capfd):
    fork_publications(monkeypatch)
    run_quickstart(monkeypatch, inputs)
    told = capfd.readouterr().out
    output = inputs / "output"
    report = json.loads((output / "plan" / "report.json").read_text())
    assert list(report["scores"]) == ["fine_tune", "dapt", "tapt", "varmae", "longer", *VOTING]
    assert report["failed"] == {}
    assert {report["costs"][name]["tokens"] for name in ("dapt", "tapt", "varmae")} == {2048}
    for tasks in report["scores"].values():
        assert len(tasks["task"]) == 2
    files = {file.name for file in (output / "hub").iterdir()}
    expected = {"README.md", "config.json", "model.safetensors", "modeling_varmae.py", "report.json", "tokenizer.json"}
    assert expected | {"differences.png"} <= files
    assert not any(name.endswith(".bin") for name in files)
    assert "VarMAEForMaskedLM from" in told
    assert "without hf_domain" in told
    card = (output / "hub" / "README.md").read_text()
    for name in ("fine-tuning only", "DAPT", "TAPT", "VarMAE"):
        assert f"| {name} |" in told
        assert f"| {name} |" in card
    assert "| learning rate | 0.0003 |" in card
    assert str(inputs) not in card
    assert "disable tqdm" not in card
    assert "apache-2.0" not in card  # nobody said so of this encoder

    # Another row, by the command; a method that was not trained is refused.
    skip_snippets(monkeypatch)
    options = {"comparison": output / "plan", "corpus": "domain", "output_dir": inputs / "hub"}
    options |= {"license_note": "none", "limits": "all", "example": "the [MASK]"}
    run_publish(monkeypatch, method="dapt", **options)
    assert "BertForMaskedLM" in (inputs / "hub" / "config.json").read_text()
    with pytest.raises(ValueError, match="no trained model exbert-domain; there are dapt-domain, tapt-task, varmae-"):
        run_publish(monkeypatch, method="exbert", **options)


@pytest.mark.commands
def test_repeated_changed_and_published(monkeypatch, inputs, capfd):
    fork_publications(monkeypatch)
    run_quickstart(monkeypatch, inputs)
    output = inputs / "output"
    report = json.loads((output / "plan" / "report.json").read_text())
    capfd.readouterr()

    # What is there is not done again.
    skip_snippets(monkeypatch)
    (weights,) = (output / "plan" / "steps").glob("dapt-domain-????????/model.safetensors")
    trained = weights.stat().st_mtime_ns
    run_quickstart(monkeypatch, inputs)
    assert weights.stat().st_mtime_ns == trained
    assert json.loads((output / "plan" / "report.json").read_text()) == report

    # Other options run what they change, and the earlier plan stays.
    plan, results = (output / "plan.yaml").read_text(), {*(output / "plan" / "results").glob("*.json")}
    run_quickstart(monkeypatch, inputs, num_seeds=1)
    told = capfd.readouterr().out
    assert f"the earlier one is {Path('output', 'plan.yaml.1')}: seeds was [0, 1], is [0]\n" in told
    assert (output / "plan.yaml.1").read_text() == plan != (output / "plan.yaml").read_text()
    assert {*(output / "plan" / "results").glob("*.json")} == results
    assert weights.stat().st_mtime_ns == trained
    run_quickstart(monkeypatch, inputs)
    assert {*(output / "plan" / "results").glob("*.json")} == results and (output / "plan.yaml").read_text() == plan

    # A corpus that cannot be read leaves the plan as it is.
    (inputs / "other.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"other\.txt"):
        run_quickstart(monkeypatch, inputs, corpus=inputs / "other.txt")
    assert (output / "plan.yaml").read_text() == plan

    options = {"comparison": output / "plan", "method": "dapt", "corpus": "domain", "output_dir": inputs / "hub"}
    options |= {"license_note": "none", "limits": "all", "example": "the [MASK]"}

    # The best fine-tuned model of the task, by validation; its snippet is another one.
    monkeypatch.setattr(publication, "run_usage", run_usage)
    fine_tuned = {name: value for name, value in options.items() if name not in ("method", "corpus")}
    fine_tuned |= {"output_dir": inputs / "tuned", "task": "task", "example": "the cat sat"}
    run_publish(monkeypatch, **fine_tuned)
    (kept,) = (output / "plan" / "steps").glob("*-task-seed*/*.safetensors")
    assert (inputs / "tuned" / "model.safetensors").read_bytes() == kept.read_bytes()
    card = (inputs / "tuned" / "README.md").read_text()
    assert "pipeline_tag: text-classification" in card and "It has the best validation score of all runs" in card
    assert "'label': " in card and str(inputs) not in card
    with pytest.raises(ValueError, match="--task must be a task whose best fine-tuned model was kept, task, but is x"):
        run_publish(monkeypatch, **{**fine_tuned, "task": "x"})
    with pytest.raises(ValueError, match="or --task alone, but has method and corpus and task"):
        run_publish(monkeypatch, **{**options, "task": "task"})

    # A table of runs that did not learn is never shown without saying so.
    skip_snippets(monkeypatch)
    for path in (output / "plan" / "results").glob("*-task-seed*.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"score": 0.0}))
    run_publish(monkeypatch, **options)
    sentence = f"No row learned: all {10 + 2 * len(VOTING)} fine-tunings are no better than the majority baseline"
    before, _, after = (inputs / "hub" / "README.md").read_text().partition(sentence)
    assert "| DAPT | 0.0 ± 0.0 [did not learn]" in after and "| DAPT |" not in before


def fork_publications(monkeypatch):
    """Let publications load what they wrote in a fork; test_new_method.py has one that starts a whole process."""
    monkeypatch.setattr(publication, "subprocess", SimpleNamespace(run=forked_python.run))


def skip_snippets(monkeypatch):
    """Let cards show no real output of their snippets: running one takes seconds."""
    monkeypatch.setattr(publication, "run_usage", lambda *_: "a word")


def run_publish(monkeypatch, **options):
    arguments = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
    monkeypatch.setattr(sys, "argv", ["publish.py", *arguments])
    publish.main()


@pytest.mark.commands
def test_with_an_expanded_vocabulary_and_other_rates(monkeypatch, inputs):
    skip_snippets(monkeypatch)
    monkeypatch.setattr(quickstart, "DATA", inputs)  # as if these were the demo's own data, whose license is known
    rates = {"learning_rate": "3e-5", "pretraining_learning_rate": "1e-4"}
    run_quickstart(monkeypatch, inputs, num_seeds=1, expand_vocabulary="true", **rates)
    report = json.loads((inputs / "output" / "plan" / "report.json").read_text())
    for name, rate in (
        ("adalm-task-seed0", 3e-5),
        ("adalm-domain", 1e-4),
        ("dapt-domain", 1e-4),
        ("tapt-task", 1e-4),
        ("varmae-domain", 3e-4),
    ):
        (path,) = (inputs / "output" / "plan" / "results").glob(f"{name}-????????.json")
        result = json.loads(path.read_text())
        assert float(result["step"]["flags"]["learning_rate"]) == rate, name
    assert list(report["scores"]) == ["fine_tune", "dapt", "tapt", "varmae", "adalm", "longer", *VOTING]
    (folder,) = (inputs / "output" / "plan" / "steps").glob("vocabulary-domain-????????")
    assert json.loads((folder / "vocabulary_report.json").read_text())["unreachable"] == []
    assert "license: apache-2.0" in (inputs / "output" / "hub" / "README.md").read_text()


def test_missing_input_is_reported_first(monkeypatch, inputs):
    with pytest.raises(FileNotFoundError, match="--corpus"):
        run_quickstart(monkeypatch, inputs, corpus=inputs / "nothing.txt")
    with pytest.raises(FileNotFoundError, match="--task"):
        run_quickstart(monkeypatch, inputs, task=inputs / "nothing")
    assert not (inputs / "output").exists()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"words": ["a"], "classes": ["O"]}], r"ner: tags, tokens.* has words, classes. Rename"),
        ([{"tokens": ["a"], "tags": ["O"]}] * 2, "cannot be used as ner: training needs two different labels"),
        ([{"title": "a", "note": "b", "label": "x"}], "cannot be used as classification: .* unclear: title, note"),
    ],
)
def test_a_task_is_checked_before_the_corpus_is_copied(monkeypatch, inputs, rows, message):
    for split in ("train", "validation", "test"):
        write_jsonl(inputs / "task" / f"{split}.jsonl", rows)
    with pytest.raises(ValueError, match=message):
        run_quickstart(monkeypatch, inputs)
    assert not (inputs / "output").exists()


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        ("ner", {"tokens": ["a", "cat"], "tags": ["O", "B-cat"]}),
        ("classification", {"premise": "a cat", "hypothesis": "a dog", "label": 1}),
        ("multi_label", {"text": "a cat", "label": ["cat", "pet"]}),
        ("regression", {"text": "a cat", "label": 0.5}),
        (
            "qa",
            {"id": "1", "context": "a cat", "question": "what?", "answers": {"text": ["cat"], "answer_start": [2]}},
        ),
    ],
)
def test_the_kind_of_a_task_is_found(monkeypatch, inputs, capsys, kind, row):
    ran = []
    monkeypatch.setattr(quickstart, "run_comparison", lambda plan, *_, **__: ran.append(plan))
    monkeypatch.setattr(quickstart, "write_report", lambda _: 1 / 0)
    other = {"multi_label": ["pet"], "regression": 1.5}.get(kind, 2)
    rows = [row, row | {"id": "2"} | ({"label": other} if "label" in row else {})]
    for split in ("train", "validation", "test"):
        write_jsonl(inputs / "task" / f"{split}.jsonl", rows)
    with pytest.raises(ZeroDivisionError):
        run_quickstart(monkeypatch, inputs)
    assert ran[0].tasks["task"].kind == kind
    assert ("vote" in ran[0].methods) == (bool(VOTING) and kind not in ("ner", "qa"))
    # The demo's default needs minutes; other tasks may need an hour, which is said before any work.
    told = capsys.readouterr().out.splitlines()[-1]
    assert re.match(r"\d+ steps are missing: about \d+ min one after the other, by the speed of the encoder", told)


ANSWERS = {"text": ["hidden"], "answer_start": [4]}
KINDS = {
    "ner": lambda n: {"tokens": ["the", "hidden", "word"], "tags": ["O", f"B-{'xy'[n % 2]}", "O"]},
    "multi_label": lambda n: {"text": SENTENCES[n % 4], "label": ["a", "b"][: n % 3]},
    "regression": lambda n: {"premise": SENTENCES[n % 4], "hypothesis": SENTENCES[n % 3], "label": n / 8},
    "qa": lambda n: {"id": f"{n}", "question": "what is", "context": "the hidden word", "answers": ANSWERS},
}


@pytest.mark.commands
def test_every_kind_of_task_ends_in_a_report(monkeypatch, inputs, capfd):
    """One after the other in one folder, so that the encoders are trained once."""
    skip_snippets(monkeypatch)
    trained = {}
    for kind, make_row in KINDS.items():
        for split in ("train", "validation", "test"):
            write_jsonl(inputs / "task" / f"{split}.jsonl", [make_row(number) for number in range(8)])
        run_quickstart(monkeypatch, inputs, num_seeds=1, num_tokens=1024)
        plan = json.loads((inputs / "output" / "plan" / "plan.json").read_text())
        assert plan["tasks"]["task"]["kind"] == kind
        report = json.loads((inputs / "output" / "plan" / "report.json").read_text())
        voting = [] if kind in ("ner", "qa") else VOTING
        assert report["failed"] == {} and {*report["scores"]} == {"fine_tune", "dapt", "varmae", "longer", *voting}, (
            kind
        )
        assert all(len(scores["task"]) == 1 for scores in report["scores"].values()), kind
        told = capfd.readouterr().out
        assert "seconds in total" in told and "TAPT is left out: the training texts of the task do not fill" in told
        weights = (inputs / "output" / "plan" / "steps").glob("*-domain-????????/model.safetensors")
        times = {file: file.stat().st_mtime_ns for file in weights}
        assert len(times) == 2 and trained in ({}, times), kind
        trained = times


def run_make(monkeypatch, **options):
    arguments = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
    monkeypatch.setattr(sys, "argv", ["make_quickstart_data.py", *arguments])
    make_quickstart_data.main()


def test_encoder_is_cut_out_and_trained(monkeypatch, tmp_path):
    tokenizer = make_bert_tokenizer()
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=192,
        num_hidden_layers=4,
        num_attention_heads=6,
        intermediate_size=300,
        max_position_embeddings=64,
    )
    BertForMaskedLM(config).save_pretrained(tmp_path / "large")
    tokenizer.save_pretrained(tmp_path / "large")
    (tmp_path / "text.txt").write_text("\n".join([" ".join(SENTENCES)] * 80), encoding="utf-8")
    sizes = {"vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2, "max_seq_length": 24, "max_steps": 2}
    run_make(
        monkeypatch,
        part="encoder",
        source=tmp_path / "large",
        text=tmp_path / "text.txt",
        output_dir=tmp_path / "small",
        per_device_train_batch_size=4,
        **sizes,
    )
    small = AutoModelForMaskedLM.from_pretrained(tmp_path / "small")
    assert (small.config.hidden_size, small.config.num_hidden_layers, small.config.num_attention_heads) == (64, 2, 2)
    assert small.config.hidden_dropout_prob == 0.1
    pieces = AutoTokenizer.from_pretrained(tmp_path / "small")
    assert len(pieces) == small.config.vocab_size == 100
    assert pieces.convert_tokens_to_ids("[MASK]") == pieces.mask_token_id


def test_an_encoder_cut_to_its_own_size_is_the_same():
    tokenizer = make_bert_tokenizer()
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 96}
    config = BertConfig(vocab_size=len(tokenizer), **sizes)
    source = BertForMaskedLM(config).eval()
    sample = tokenizer(SENTENCES * 20, padding=True, truncation=True, max_length=32, return_tensors="pt")
    same = make_quickstart_data.cut_out_encoder(source, sample, list(range(len(tokenizer))), config)
    difference = source(**sample).logits - same(**sample).logits
    assert difference[sample["attention_mask"].bool()].abs().max() < 1e-3


def test_corpus_keeps_its_years(monkeypatch, tmp_path):
    documents = [
        "We describe our system for SemEval-2019 Task 3.",
        "We describe our system for SemEval-2010 Task 8.",
        "The shared task of 2021 had nine teams.",
        "A parser of English.",
        "WMT 2018 and, long before, ACL 2008.",
    ]
    (tmp_path / "text.txt").write_text("\n".join(documents))
    run_make(monkeypatch, part="corpus", text=tmp_path / "text.txt", output_dir=tmp_path)
    with gzip.open(tmp_path / "corpus.txt.gz", "rt") as file:
        assert file.read().splitlines() == [documents[0], documents[2]]

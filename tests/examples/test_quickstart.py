"""The demo, on data made here."""

import json
from pathlib import Path

import pytest
from script_runs import call_main, save_tiny_bert, write_jsonl
from tiny_tokenizers import SENTENCES

from hf_domain import advice
from hf_domain.data.files import SPLITS
from hf_domain.examples import predict, publish, quickstart


@pytest.fixture
def inputs(tmp_path):
    """A tiny encoder, a corpus and a task."""
    save_tiny_bert(tmp_path / "encoder", SENTENCES)
    (tmp_path / "corpus.txt").write_text("\n".join(SENTENCES * 100), encoding="utf-8")
    (tmp_path / "task").mkdir()
    texts = [f"{number} {' '.join(SENTENCES[:4] * 3)}" for number in range(20)]  # TAPT needs a batch of them
    rows = [{"text": text, "label": str(number % 2)} for number, text in enumerate(texts)]
    for split in ("train", "validation", "test"):
        write_jsonl(tmp_path / "task" / f"{split}.jsonl", rows)
    return tmp_path


def run_quickstart(monkeypatch, inputs, seconds_per_token=1.0, **options):
    """Run the script with few steps and tokens, as on a machine whose speed is known."""
    monkeypatch.setattr(advice, "time_training", lambda *_: seconds_per_token)
    for name, value in {"FEWEST_STEPS": 4, "FEWEST_TOKENS": 2048, "PASSES": 0}.items():
        monkeypatch.setattr(advice, name, value)
    options = {
        "model_name_or_path": inputs / "encoder",
        "corpus": inputs / "corpus.txt",
        "task": inputs / "task",
        "output_dir": "output",
        "max_seq_length": 32,
        **options,
    }
    monkeypatch.chdir(inputs)  # a relative output folder, as by default
    monkeypatch.setenv("HF_MODULES_CACHE", str(inputs / "modules"))
    call_main(quickstart.main, monkeypatch, **options)


def test_from_a_table_to_the_best_model(monkeypatch, inputs, capfd):
    """One table without splits, whose texts are the corpus; the command resumes, and predicts with what it made."""
    rows = [
        f'{number},"{" ".join(SENTENCES[:4] * 3)} {number}",{"no" if number % 2 else "yes"}' for number in range(50)
    ]
    (inputs / "mine.csv").write_text("\n".join(["n,body,answer", *rows]))
    options = {"task": inputs / "mine.csv", "corpus": None, "text_column_name": "body", "label_column_name": "answer"}
    run_quickstart(monkeypatch, inputs, **options)
    told, output = capfd.readouterr().out, inputs / "output"
    parts = {split: len((output / "mine" / f"{split}.jsonl").read_text().splitlines()) for split in SPLITS}
    assert parts == {"train": 32, "validation": 8, "test": 10}
    report = json.loads((output / "plan" / "report.json").read_text())
    assert list(report["scores"])[:4] == ["no_adaptation", "dapt", "vote", "varmae"] and report["failed"] == {}
    assert {report["costs"][name]["tokens"] for name in ("dapt", "varmae")} == {2048}
    assert all(len(tasks["mine"]) == 2 for tasks in report["scores"].values())
    assert told.count(report["answer"][0]) == 2
    published = {line for line in told.splitlines() if line.startswith("hf-domain publish ")}
    assert published == {"hf-domain publish --comparison output/plan --task mine --repo_id you/mine"}

    # What is there is not done again, though another measurement would make another plan.
    plan, results = (output / "plan.yaml").read_text(), {*(output / "plan" / "results").glob("*.json")}
    run_quickstart(monkeypatch, inputs, seconds_per_token=1e-6, **options)
    assert (output / "plan.yaml").read_text() == plan
    assert {*(output / "plan" / "results").glob("*.json")} == results

    # A comparison's folder is a model.
    capfd.readouterr()
    call_main(predict.main, monkeypatch, "output/plan", "mine.csv", text_column_names="body")
    told = capfd.readouterr()
    assert "The model: output/plan/steps/" in told.err
    # Scripts that ran before in this process log to the same stream.
    rows = [json.loads(line) for line in told.out.splitlines() if line.startswith("{")]
    assert len(rows) == 50 and {row["prediction"] for row in rows} <= {"yes", "no"}


@pytest.mark.commands
def test_models_of_a_quickstart_are_published(monkeypatch, inputs, capfd):
    """The cards are those of the runs, with the scores of the comparison."""
    run_quickstart(monkeypatch, inputs)
    options = {"comparison": inputs / "output" / "plan"}
    folder = run_publish(monkeypatch, capfd, **options, method="dapt", corpus="domain")
    assert "BertForMaskedLM" in (folder / "config.json").read_text()
    card = (folder / "README.md").read_text()
    assert "hf-domain mlm" in card and "DAPT is this model." in card and str(inputs) not in card
    folder = run_publish(monkeypatch, capfd, **options, task="task")
    (kept,) = (inputs / "output" / "plan" / "steps").glob("*-task-seed*/*.safetensors")
    card = (folder / "README.md").read_text()
    assert folder == kept.parent and "It has the best validation score of all runs" in card
    assert "hf-domain classification" in card and str(inputs) not in card
    assert "pipeline_tag: text-classification" in card and "apache-2.0" not in card


def run_publish(monkeypatch, capfd, **options):
    """Run the script; returns the folder that it names."""
    capfd.readouterr()
    call_main(publish.main, monkeypatch, **options)
    return Path(capfd.readouterr().out.rpartition("Ready for the Hub: ")[2].strip())


ANSWERS = {"text": ["hidden"], "answer_start": [4]}
KINDS = {
    "ner": lambda n: {"tokens": ["the", "hidden", "word"], "tags": ["O", f"B-{'xy'[n % 2]}", "O"]},
    "multi_label": lambda n: {"text": SENTENCES[n % 4], "label": ["a", "b"][: n % 3]},
    "regression": lambda n: {"premise": SENTENCES[n % 4], "hypothesis": SENTENCES[n % 3], "label": n / 8},
    "qa": lambda n: {"id": f"{n}", "question": "what is", "context": "the hidden word", "answers": ANSWERS},
}


@pytest.mark.commands
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_task_ends_in_a_report(monkeypatch, inputs, capfd, kind):
    for split in SPLITS:
        write_jsonl(inputs / "task" / f"{split}.jsonl", [KINDS[kind](number) for number in range(8)])
    run_quickstart(monkeypatch, inputs)
    plan = json.loads((inputs / "output" / "plan" / "plan.json").read_text())
    assert plan["tasks"]["task"]["kind"] == kind
    report = json.loads((inputs / "output" / "plan" / "report.json").read_text())
    assert report["failed"] == {} and {"no_adaptation", "dapt", "varmae"} <= {*report["scores"]}
    assert "minutes in total" in capfd.readouterr().out

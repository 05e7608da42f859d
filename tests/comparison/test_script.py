"""The command, with real runs."""

import os
import sys
import time

import pytest
from pretended_runs import SENTENCES, get_result, write_plan
from script_runs import save_tiny_bert, write_jsonl
from two_processes import get_context

from hf_domain.comparison.prepare import load_plan
from hf_domain.comparison.steps import list_steps
from hf_domain.examples import compare as compare_script
from hf_domain.safe_io import read_json

FEW = {"tapt": {"tasks": ["animals"]}, "dapt": None}
MANY = {"tapt": None, "dapt": None, "rada_mlm": None, "gmap": {"after": "dapt"}}


def run_compare(path):
    """Run the command in a process of its own, whose steps end with it."""
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115  until the process ends
    sys.argv = ["compare", path]
    compare_script.main()


@pytest.mark.faults
@pytest.mark.parametrize("methods", [FEW, MANY], ids=["few", "many"])
def test_script_is_killed_and_continues(content, tmp_path, monkeypatch, capsys, methods):
    save_tiny_bert(tmp_path / "encoder", SENTENCES)
    content["methods"] = dict(methods)
    content["datastore"] = {"max_length": 32}
    content["seeds"], content["general"] = [1], None
    path = write_plan(content, tmp_path)
    process = get_context().Process(target=run_compare, args=(str(path),))
    process.start()
    while not list((tmp_path / "plan" / "results").glob("tapt-animals-????????.json")) and process.is_alive():
        time.sleep(0.05)
    process.kill()
    process.join()
    done = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "plan" / "results").glob("*.json")}
    assert 0 < len(done) < len(list_steps(load_plan(path), tmp_path / "plan"))
    monkeypatch.setattr(sys, "argv", ["compare", str(path)])
    compare_script.main()
    assert "## Scores" in capsys.readouterr().out
    results = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "plan" / "results").glob("*.json")}
    assert {name: results[name] for name in done} == done
    assert len(results) == len(list_steps(load_plan(path), tmp_path / "plan"))
    result = read_json(get_result(tmp_path / "plan", "dapt-animals-seed1"))
    assert result["score"] == pytest.approx(100 * result["metrics"]["predict_macro_f1"])
    result = read_json(get_result(tmp_path / "plan", "dapt-entities-seed1"))
    assert result["score"] == pytest.approx(100 * result["metrics"]["predict_f1"])
    monkeypatch.setattr(sys, "argv", ["compare", str(path), "--report_only"])
    compare_script.main()
    monkeypatch.setattr(sys, "argv", ["compare", str(path), "--dry_run"])
    capsys.readouterr()
    compare_script.main()
    assert capsys.readouterr().out.startswith("No step is missing")
    get_result(tmp_path / "plan", "dapt-pets").unlink()
    compare_script.main()
    assert capsys.readouterr().out.startswith("1 step is missing:")
    (log,) = tmp_path.glob("plan/steps/dapt-pets-????????/log.txt")
    assert log.read_text().startswith("hf-domain mlm --method dapt ")


@pytest.mark.commands
def test_several_labels_and_early_stopping_of_real_runs(content, tmp_path, monkeypatch):
    """Thresholds and stops are those of the validation set; class weights those of the training set."""
    save_tiny_bert(tmp_path / "encoder", SENTENCES)
    rows = [{"text": f"{text} {number}", "label": text.split()[1:2]} for number, text in enumerate(SENTENCES[:48])]
    for number, split in enumerate(("train", "validation", "test")):
        write_jsonl(tmp_path / "animals" / f"{split}.jsonl", rows[16 * number : 16 * (number + 1)])
    options = {"class_weights": "balanced", "learning_rate": 1e-12, "num_train_epochs": 9}
    content |= {"corpus": "corpus.txt", "methods": ["no_adaptation"], "seeds": [1], "general": None}
    content |= {"tasks": {"animals": {"folder": "animals", "options": options}}}
    content["fine_tuning"] |= {"early_stopping_patience": 1, "max_seq_length": 16}
    del content["corpora"]
    path = write_plan(content, tmp_path)
    monkeypatch.setattr(sys, "argv", ["compare", str(path)])
    compare_script.main()
    report = read_json(tmp_path / "plan" / "report.json")
    assert report["failed"] == {} and report["scores"]["no_adaptation"]["animals"].keys() == {"1"}
    assert not list((tmp_path / "plan").rglob("checkpoint-*"))
    file = get_result(tmp_path / "plan", "no_adaptation-animals-seed1")
    assert read_json(file)["metrics"]["epoch"] == 2  # at this rate the second epoch is no better
    config = read_json(tmp_path / "plan" / "steps" / file.stem / "config.json")
    assert config["problem_type"] == "multi_label_classification" and len(config["label_thresholds"]) == 3

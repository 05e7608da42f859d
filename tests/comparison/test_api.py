"""A comparison of objects is the comparison of the files that hold them."""

import inspect
import re
import typing
from dataclasses import fields

import pandas as pd
import pytest
from pretended_runs import SENTENCES, get_result, pretend, run_comparison

import hf_domain
from hf_domain.comparison import api
from hf_domain.comparison.plan import Plan
from hf_domain.safe_io import read_json


@pytest.fixture(autouse=True)
def pretended(monkeypatch, tmp_path):
    """Steps leave what they would leave, and no encoder is looked at."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(
        api, "run_comparison", lambda plan, folder, num_processes: run_comparison(plan, folder, execute=pretend)
    )


@pytest.fixture
def objects(content):
    def make_rows(split):
        texts = enumerate(SENTENCES[:24])
        return pd.DataFrame([{"text": f"{text} {split} {number}", "label": text.split()[1]} for number, text in texts])

    splits = {split: make_rows(split) for split in ("train", "validation", "test")}
    return {"corpus": SENTENCES, "tasks": {"animals": splits}}


OPTIONS = {"num_tokens": 1000, "seeds": [1, 2], "pretraining": {"per_device_train_batch_size": 4, "max_seq_length": 16}}


def test_objects_are_compared(objects, tmp_path):
    found = hf_domain.compare("encoder", **objects, output_dir=tmp_path / "mine", **OPTIONS)
    assert found.folder == tmp_path / "mine" / "plan" and (found.folder / "report.html").is_file()
    assert set(found.scores["method"]) == {"no_adaptation", "dapt", "varmae"} and len(found.scores) == 6
    (score,) = found.scores.query("method == 'dapt' and seeds == '42-1'")["score"]
    assert score == pytest.approx(read_json(get_result(found.folder, "dapt-animals-seed1"))["score"])
    assert list(found.tables["Costs"].index) == ["no adaptation", "DAPT", "VarMAE"]
    assert (tmp_path / "mine" / "corpus.jsonl").read_text().count("\n") == len(SENTENCES)
    assert str(found)


def test_files_are_named_and_not_copied(content, tmp_path):
    tasks = {"animals": tmp_path / "animals"}
    found = hf_domain.compare(
        "encoder", tmp_path / "corpus.txt", tasks, ["dapt"], output_dir=tmp_path / "mine", **OPTIONS
    )
    plan = (tmp_path / "mine" / "plan.yaml").read_text()
    assert str(tmp_path / "corpus.txt") in plan and not (tmp_path / "mine" / "corpus.jsonl").exists()
    assert set(found.scores["method"]) == {"dapt"}


def test_the_same_call_goes_on_and_another_is_refused(objects, tmp_path):
    first = hf_domain.compare("encoder", **objects, output_dir=tmp_path / "mine", **OPTIONS)
    again = hf_domain.compare("encoder", **objects, output_dir=tmp_path / "mine", **OPTIONS)
    assert again.scores.equals(first.scores)
    with pytest.raises(FileExistsError, match="is another: name another"):
        hf_domain.compare("encoder", **objects, output_dir=tmp_path / "mine", **OPTIONS | {"num_tokens": 2000})


def test_a_dry_run_estimates_the_work_and_runs_nothing(objects, tmp_path):
    text = hf_domain.compare("encoder", **objects, output_dir=tmp_path / "mine", dry_run=True, **OPTIONS)
    assert re.match(r"\d+ steps are missing:", text) and "VarMAE" in text
    assert not (tmp_path / "mine" / "plan" / "results").exists()
    other = OPTIONS | {"num_tokens": 2000}  # nothing ran, so the plan may change
    assert len(hf_domain.compare("encoder", **objects, output_dir=tmp_path / "mine", **other).scores) == 6


def test_the_fields_of_a_plan_are_known():
    """Editors complete each field that the call does not give as an argument."""
    (options,) = typing.get_args(inspect.signature(hf_domain.compare).parameters["plan"].annotation)
    given = {"encoder", "corpora", "tasks", "methods", "path"}
    assert {*typing.get_type_hints(options)} == {item.name for item in fields(Plan)} - given


def test_runs_that_failed_are_named(objects, tmp_path, monkeypatch):
    def fail(step, plan, folder):
        raise RuntimeError("no space in the cat")

    monkeypatch.setattr(
        api, "run_comparison", lambda plan, folder, num_processes: run_comparison(plan, folder, execute=fail)
    )
    with pytest.raises(RuntimeError, match=r"every run must end, but \d+ failed: .*no space in the cat"):
        hf_domain.compare("encoder", **objects, output_dir=tmp_path / "mine", **OPTIONS)


def test_data_that_cannot_be_used_are_refused(objects, tmp_path):
    with pytest.raises(ValueError, match="test of animals must contain at least one example"):
        tasks = {"animals": objects["tasks"]["animals"] | {"test": []}}
        hf_domain.compare("encoder", SENTENCES, tasks, output_dir=tmp_path / "mine", **OPTIONS)
    with pytest.raises(ValueError, match="unknown"):
        hf_domain.compare("encoder", **objects, output_dir=tmp_path / "other", **OPTIONS, unknown=1)
    assert str(hf_domain.compare("encoder", **objects, output_dir=tmp_path / "other", **OPTIONS))  # corrected

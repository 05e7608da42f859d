"""The raw results of a comparison as a dataset for the Hub."""

import json
import sys
from types import SimpleNamespace

import pytest
from datasets import load_dataset
from pretended_runs import SENTENCES, pretend, run_comparison, write_plan
from sklearn.metrics import f1_score

from hf_domain.comparison import results_dataset
from hf_domain.comparison.plan_loading import load_plan
from hf_domain.comparison.publication import is_setting
from hf_domain.comparison.results_dataset import make_results_dataset
from hf_domain.examples import publish_results
from hf_domain.safe_io import read_json


@pytest.fixture
def comparison(content, tmp_path):
    """A comparison of three rows on two tasks, one of whose steps failed."""

    def run(step, plan, folder):
        if step.name == "varmae-pets":
            raise IndexError(f"{tmp_path}/secret")
        pretend(step, plan, folder)

    content["methods"] = {"fine_tune": None, "dapt": None, "varmae": None}
    run_comparison(load_plan(write_plan(content, tmp_path)), tmp_path / "plan", run)
    return tmp_path / "plan"


def load(folder, table, tmp_path):
    return load_dataset(str(folder), table, split="train", cache_dir=str(tmp_path / "cache")).to_pandas()


def test_every_score_follows_from_its_predictions(comparison, tmp_path):
    folder = make_results_dataset(comparison, tmp_path / "dataset", name="you/results", license="cc-by-4.0")
    steps, predictions = load(folder, "steps", tmp_path), load(folder, "predictions", tmp_path)
    assert set(steps["step"]) == set(read_json(comparison / "plan.json")["steps"].values())
    assert set(steps.loc[steps["status"] == "failed", "step"].str.partition("-")[0]) == {"varmae"}
    scored = steps[steps["score"].notna()]
    assert {(row.method, row.task, row.seed) for row in scored.itertuples()} == {
        (method, task, seed) for method in ("fine_tune", "dapt") for task in ("animals", "entities") for seed in (1, 2)
    }
    for step in scored[scored["task"] == "animals"].itertuples():
        own = predictions[(predictions["step"] == step.step) & (predictions["split"] == "test")]
        gold, predicted = ([labels[0] for labels in own[name]] for name in ("gold", "predicted"))
        assert step.score == pytest.approx(100 * f1_score(gold, predicted, average="macro"))
    words = predictions[predictions["step"] == scored[scored["task"] == "entities"]["step"].iloc[0]]
    rows = [json.loads(line) for line in (tmp_path / "entities" / "test.jsonl").open()]
    assert [list(tags) for tags in words.loc[words["split"] == "test", "gold"]] == [row["tags"] for row in rows]
    card = (folder / "README.md").read_text()
    assert "license: cc-by-4.0" in card and 'load_dataset("you/results", "steps"' in card and "| DAPT |" in card


def test_no_setting_names_a_file():
    flags = {"mix": "client/general.txt:0.1", "word_counts": ["client/a.txt"], "train_file": "client/b.txt"}
    kept = {"learning_rate": 1e-4, "word_rule": "ratio", "mlm_probability": 0.3}
    assert {name for name in flags | kept if is_setting(name)} == {*kept}


def test_no_text_and_no_path_is_published(comparison, tmp_path):
    folder = make_results_dataset(comparison, tmp_path / "dataset", name="results")
    tables = [load(folder, table, tmp_path).to_json() for table in ("steps", "predictions")]
    published = "".join([*tables, (folder / "README.md").read_text()])
    assert "learning_rate" in published
    for private in (SENTENCES[0], str(tmp_path), "secret", "train.jsonl", "corpus.txt"):
        assert private not in published, private


def test_only_an_earlier_dataset_is_replaced(comparison, tmp_path):
    folder = make_results_dataset(comparison, tmp_path / "dataset", name="results")
    before = (folder / "predictions.parquet").stat().st_mtime_ns
    make_results_dataset(comparison, folder, name="results")
    assert (folder / "predictions.parquet").stat().st_mtime_ns > before
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"must be empty or an earlier dataset of results, but .* contains notes.txt"):
        make_results_dataset(comparison, folder, name="results")
    with pytest.raises(ValueError, match="must lie outside the comparison"):
        make_results_dataset(comparison, comparison / "results", name="results")
    assert (folder / "notes.txt").read_text() == "mine"


def test_command_pushes_the_tables_and_the_card(comparison, tmp_path, monkeypatch, capsys):
    pushed = {}

    class Api:
        def __init__(self, token):
            pass

        def create_repo(self, repo_id, **options):
            pushed.update(options, repo_id=repo_id)
            return SimpleNamespace(repo_id=f"someone/{repo_id}")

        def upload_folder(self, repo_id, folder_path, **options):
            pushed.update(options, commit_to=repo_id, files={file.name for file in folder_path.iterdir()})
            return SimpleNamespace(commit_url="https://hub/commit")

    monkeypatch.setattr(results_dataset, "HfApi", Api)
    arguments = ["--comparison", str(comparison), "--output_dir", str(tmp_path / "dataset"), "--repo_id", "results"]
    monkeypatch.setattr(sys, "argv", ["publish_results.py", *arguments, "--private"])
    publish_results.main()
    assert capsys.readouterr().out.endswith("https://hub/commit\n")
    assert pushed["repo_type"] == "dataset" and pushed["private"] is True and pushed["commit_to"] == "someone/results"
    assert pushed["files"] == set(pushed["allow_patterns"]) == {"README.md", "steps.parquet", "predictions.parquet"}


def test_results_are_needed(content, tmp_path):
    with pytest.raises(FileNotFoundError, match="has no plan"):
        make_results_dataset(tmp_path, tmp_path / "dataset", name="results")

    def fail(step, plan, folder):
        raise IndexError

    content["methods"] = {"fine_tune": None, "dapt": None}
    run_comparison(load_plan(write_plan(content, tmp_path)), tmp_path / "plan", fail)
    with pytest.raises(ValueError, match="must have a score"):
        make_results_dataset(tmp_path / "plan", tmp_path / "dataset", name="results")
    assert not (tmp_path / "dataset").exists()

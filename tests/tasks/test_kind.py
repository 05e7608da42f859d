"""A kind of task that another package adds: `fine_tune`, `predict` and comparisons know it as their own."""

import itertools
import sys

import pytest
from datasets import Dataset
from multiple_choice import MultipleChoice
from pretended_runs import write_plan
from script_runs import save_tiny_bert, write_jsonl

import hf_domain
from hf_domain.cli import import_command
from hf_domain.comparison.prepare import load_plan
from hf_domain.comparison.report import write_report
from hf_domain.comparison.run import run_comparison
from hf_domain.comparison.steps import find_root
from hf_domain.data.files import SPLITS
from hf_domain.tasks import KINDS, find_kind, register_kind
from hf_domain.tasks.kind import PLAN_KINDS
from hf_domain.tasks.scores import MAJORITY

RIGHT, WRONG = ["cell", "gene", "tissue"], ["court", "judge", "stock"]


def make_rows(question="what is alive"):
    return [
        {"question": question, "choices": [wrong, right] if n % 2 else [right, wrong], "label": n % 2}
        for n, (right, wrong) in enumerate([*itertools.product(RIGHT, WRONG)] * 4)
    ]


@pytest.fixture
def registered():
    register_kind(MultipleChoice)
    yield
    for table in (KINDS, PLAN_KINDS):
        del table["multiple_choice"]


def test_a_kind_of_another_package_is_learned_and_predicted(registered, tmp_path):
    rows = make_rows()
    encoder = save_tiny_bert(tmp_path / "encoder", [" ".join([*RIGHT, *WRONG, "what is alive"])])
    options = {"use_cpu": True, "disable_tqdm": True, "learning_rate": 3e-3, "max_steps": 60}
    found = hf_domain.fine_tune(encoder, Dataset.from_list(rows), output_dir=tmp_path / "choices", **options)
    assert found.metrics["eval_accuracy"] == 1 and found.metrics["eval_samples"] == 8
    assert (tmp_path / "choices" / "eval_choices.txt").read_text().split() == [str(row["label"]) for row in rows[::5]]
    asked = [{name: row[name] for name in ("question", "choices")} for row in rows]
    predicted = hf_domain.predict(tmp_path / "choices", asked, progress=False)
    assert predicted["prediction"][:] == [row["label"] for row in rows]
    assert "trained for multiple choice" in (tmp_path / "choices" / "README.md").read_text()


@pytest.mark.parametrize("in_process", [True, pytest.param(False, marks=pytest.mark.commands)])
def test_a_kind_of_another_package_is_compared(registered, tmp_path, monkeypatch, in_process):
    """Its script is a module of that package; the plan names neither the kind nor the metric."""
    monkeypatch.chdir(tmp_path)
    texts = [" ".join([*RIGHT, *WRONG, "what is alive", *SPLITS])] * 20
    save_tiny_bert(tmp_path / "encoder", texts)
    (tmp_path / "corpus.txt").write_text("\n".join(texts))
    (tmp_path / "heldout.txt").write_text("\n".join(texts[:4]))
    (tmp_path / "choices").mkdir()
    for split in SPLITS:
        write_jsonl(tmp_path / "choices" / f"{split}.jsonl", make_rows(f"what is alive {split}"))
    content = {
        "encoder": "encoder",
        "corpora": {"cells": {"train_file": "corpus.txt", "validation_file": "heldout.txt"}},
        "tasks": ["choices"],
        "methods": ["no_adaptation"],
        "seeds": [1],
        "budget": {"tokens": 1000},
        "pretraining": {"max_seq_length": 16, "use_cpu": True},
        "fine_tuning": {"max_steps": 60, "learning_rate": 3e-3, "use_cpu": True},
    }
    plan = load_plan(write_plan(content, tmp_path))

    def execute(step, plan, folder):
        monkeypatch.setattr(sys, "argv", [step.command, *step.list_arguments(find_root(plan, folder.parents[1]))])
        import_command(step.command).main()

    run_comparison(plan, tmp_path / "plan", execute if in_process else None)
    report = write_report(tmp_path / "plan")
    assert report.failed == {} and report.scores == {"no_adaptation": {"choices": {"1": 100}}}
    assert report.floors == {MAJORITY: {"choices": 50}}
    content["tasks"] = {"choices": {"folder": "choices", "metric": "f1"}}
    content["methods"] = ["no_adaptation", "dapt", "vote"]
    with pytest.raises(ValueError, match="nothing was run") as error:
        load_plan(write_plan(content, tmp_path))
    for part in (
        "metric must be one of accuracy for multiple_choice, but is f1",
        "regression, but has multiple_choice.",
    ):
        assert part in str(error.value)


def test_columns_name_the_kind(registered):
    for columns, name in (
        ({"text", "label"}, "classification"),
        ({"tokens", "tags"}, "ner"),
        ({"question", "context", "answers"}, "qa"),
        ({"question", "choices", "label"}, "multiple_choice"),
    ):
        assert find_kind(columns).name == name
    with pytest.raises(ValueError, match="multiple_choice is taken"):
        register_kind(type("Other", (MultipleChoice,), {}))

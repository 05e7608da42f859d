"""Which fine-tuned models a comparison keeps, and where it says they are."""

import shutil

import pytest
from pretended_runs import get_address, pretend, run_comparison

from hf_domain.comparison.report import write_report
from hf_domain.comparison.results import find_best_runs
from hf_domain.safe_io import read_json, write_json
from hf_domain.training.run_folder import METRICS

METHODS = {"no_adaptation": None, "dapt": None}


def list_models(output_dir):
    """Return the addresses of the fine-tunings whose weights are there."""
    return {path.parent.name for path in output_dir.glob("steps/*-seed?-????????/*.safetensors")}


def choose_best(results, task):
    runs = [result for result in results if result.step.kind == "fine_tuning" and result.step.task == task]
    metric = {"animals": "eval_macro_f1", "entities": "eval_f1"}[task]
    return max(runs, key=lambda result: result.metrics[metric])


@pytest.mark.parametrize("num_processes", [1, 3])
def test_best_model_of_each_task_by_validation_is_kept_and_named(content, tmp_path, num_processes, load):
    content["methods"] = METHODS
    output_dir = tmp_path / "plan"
    results = run_comparison(load(), output_dir, pretend, num_processes=num_processes)
    best = {task: choose_best(results, task) for task in ("animals", "entities")}
    assert list_models(output_dir) == {result.step.id for result in best.values()}
    assert any(result.score != max(r.score for r in results if r.step.task == task) for task, result in best.items())
    write_report(output_dir)
    head = (output_dir / "report.md").read_text().partition("## ")[0]
    # The folder of a comparison of two tasks is no model.
    assert f"\nhf-domain predict plan/steps/{best['animals'].step.id} new.jsonl\n" in head
    assert "\nhf-domain publish --comparison plan --task animals --repo_id you/animals\n" in head


def test_runs_that_score_alike_have_one_best_in_whatever_order_they_end(content, tmp_path, load):
    def run(step, plan, folder):
        pretend(step, plan, folder)
        if step.kind == "fine_tuning":
            write_json(folder / METRICS, read_json(folder / METRICS) | {"eval_macro_f1": 0.5, "eval_f1": 0.5})

    content["methods"] = METHODS
    results = run_comparison(load(), tmp_path / "plan", run)
    (first, last) = (find_best_runs(order) for order in (results, results[::-1]))
    assert first == last and {result.step.id for result in first.values()} == list_models(tmp_path / "plan")


def test_other_choices_run_only_what_lost_its_model(content, tmp_path, ran, note, load):
    content |= {"methods": METHODS, "keep_models": "none"}
    output_dir = tmp_path / "plan"
    results = run_comparison(load(), output_dir, pretend)
    assert list_models(output_dir) == set()
    write_report(output_dir)
    assert "best on validation" not in (output_dir / "report.md").read_text()
    for keep_models, expected in (
        ("best", {choose_best(results, task).step.name for task in ("animals", "entities")}),
        ("all", {result.step.name for result in results if result.step.kind == "fine_tuning"}),
    ):
        content["keep_models"] = keep_models
        ran.clear()
        again = run_comparison(load(), output_dir, note)
        assert list_models(output_dir) == {get_address(output_dir, name) for name in expected}
        assert [(r.step, r.score, r.metrics) for r in again] == [(r.step, r.score, r.metrics) for r in results]
    assert len(ran) == 2 * 2 * 2 - 2
    content["keep_models"] = "best"
    ran.clear()
    run_comparison(load(), output_dir, note)
    assert ran == [] and len(list_models(output_dir)) == 2


def test_next_best_model_is_made_where_its_row_is_taken_out(content, tmp_path, ran, note, load):
    content["methods"] = METHODS
    output_dir = tmp_path / "plan"
    results = run_comparison(load(), output_dir, pretend)
    out = choose_best(results, "animals").step.method
    content["methods"] = {name: None for name in METHODS if name != out}
    rest = [result for result in results if result.step.method != out]
    run_comparison(load(), output_dir, note)
    best = [choose_best(rest, task).step for task in ("animals", "entities")]
    assert best[0].name in ran and {*ran} <= {step.name for step in best}
    assert {step.id for step in best} <= list_models(output_dir)


def test_encoder_is_not_trained_again_for_a_model(content, tmp_path, ran, note, load):
    """Somebody who deleted all folders of steps to save room wants no hours of training."""
    content["methods"] = {"dapt": None}
    run_comparison(load(), tmp_path / "plan", pretend)
    shutil.rmtree(tmp_path / "plan" / "steps")
    run_comparison(load(), tmp_path / "plan", note)
    assert ran == []

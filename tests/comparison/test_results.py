"""Which results belong to a plan, and which are foreign."""

import json
import shutil
from dataclasses import replace

import pytest
from pretended_runs import METHODS, SENTENCES, pretend, write_plan
from script_runs import save_tiny_bert

from hf_domain.comparison.plan_loading import load_plan
from hf_domain.comparison.report import write_report
from hf_domain.comparison.results import (
    Result,
    describe_steps,
    find_foreign,
    gather_results,
    read_results,
    write_result,
)
from hf_domain.comparison.runner import run_comparison
from hf_domain.comparison.steps import list_steps
from hf_domain.files import read_json, write_json


def find_foreign_results(plan, output_dir):
    return set(find_foreign(read_results(output_dir), describe_steps(plan, output_dir)))


def test_foreign_results_are_refused(plan, content, tmp_path):
    run_comparison(plan, tmp_path / "output", execute=pretend)
    content["budget"] = {"tokens": 2000}
    other = load_plan(write_plan(content, tmp_path))
    with pytest.raises(ValueError, match=r"not of this comparison; .*\n- another plan, or .*: .*dapt-pets"):
        run_comparison(other, tmp_path / "output", execute=pretend)
    (tmp_path / "corpus.txt").write_text("\n".join(SENTENCES[:-1]))
    with pytest.raises(ValueError, match=r"\n- another plan, or made from other files: .*dapt-pets"):
        run_comparison(plan, tmp_path / "output", execute=pretend)
    (tmp_path / "corpus.txt").write_text("\n".join(SENTENCES))
    path = tmp_path / "output" / "results" / "dapt-pets.json"
    result = read_json(path)
    result["environment"]["versions"]["torch"] = "0.1"
    path.write_text(json.dumps(result))
    with pytest.raises(ValueError, match=r"- other versions of .*: dapt-pets"):
        run_comparison(plan, tmp_path / "output", execute=pretend)


def test_runs_that_failed_do_not_keep_a_corrected_plan_from_running(plan, content, tmp_path, ran, note):
    def fail(step, plan, folder):
        if step.kind == "fine_tuning":
            raise RuntimeError("wrong flag")
        pretend(step, plan, folder)

    run_comparison(plan, tmp_path / "output", execute=fail)
    content["fine_tuning"]["num_train_epochs"] = 2
    corrected = load_plan(write_plan(content, tmp_path))
    run_comparison(corrected, tmp_path / "output", execute=note)
    assert len(ran) == 2 * 2 * len(METHODS)
    assert write_report(tmp_path / "output").failed == {}


def test_what_started_from_a_changed_step_is_foreign_too(plan, content, tmp_path):
    """Only DAPT's own result has other flags: its encoder's scores and losses have those of before."""
    output_dir = tmp_path / "output"
    results = run_comparison(plan, output_dir, execute=pretend)
    content["methods"]["dapt"] = {"pretraining": {"learning_rate": 1e-5}}
    foreign = find_foreign_results(load_plan(write_plan(content, tmp_path)), output_dir)
    started = ("dapt-", "average-", "gmap-", "logits_fusion-")
    assert foreign == {result.step.name for result in results if result.step.name.startswith(started)}


def test_results_of_changed_files_are_foreign(plan, tmp_path):
    """Also where the size is the same: labels or words that are exchanged."""
    output_dir = tmp_path / "output"
    names = {result.step.name for result in run_comparison(plan, output_dir, execute=pretend)}
    assert not find_foreign_results(plan, output_dir)
    of_animals = {name for name in names if "-animals-seed" in name}
    of_tapt = {name for name in names if name.startswith(("tapt-animals", "tuned_after_tapt-animals"))}
    of_control = {name for name in names if "control" in name}
    on_general = {name for name in names if name.endswith("-on-general")}
    for file, expected in (
        ("animals/test.jsonl", of_animals),
        ("animals/train.jsonl", of_animals | of_tapt),
        ("general.txt", of_control),
        ("general_heldout.txt", on_general),
    ):
        text = (tmp_path / file).read_text()
        (tmp_path / file).write_text(text.replace("cat", "\0").replace("dog", "cat").replace("\0", "dog"))
        assert find_foreign_results(plan, output_dir) == expected, file
        (tmp_path / file).write_text(text)


def test_files_of_a_list_and_the_tokenizer_of_an_encoder_are_read(content, tmp_path):
    save_tiny_bert(tmp_path / "encoder", SENTENCES)
    content["methods"] = {
        "dapt": {"pretraining": {"train_file": ["corpus.txt", "more*.txt"]}},
        "average": {"after": "dapt"},
    }
    (tmp_path / "more1.txt").write_text("a cat")
    plan = load_plan(write_plan(content, tmp_path))
    names = {result.step.name for result in run_comparison(plan, tmp_path / "output", execute=pretend)}
    assert not find_foreign_results(plan, tmp_path / "output")
    for file, expected in (
        ("more1.txt", {name for name in names if "encoder" not in name}),
        ("encoder/tokenizer.json", names),
    ):
        text = (tmp_path / file).read_text()
        (tmp_path / file).write_text(text.replace("cat", "cow"))
        assert find_foreign_results(plan, tmp_path / "output") == expected, file
        (tmp_path / file).write_text(text)


def test_vocabulary_and_datastore_of_the_user_are_read(content, tmp_path):
    for name, file in (("mine", "tokenizer.json"), ("passages", "datastore.json")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text("1")
    content["methods"] = {
        "dapt": {"pretraining": {"expanded_vocabulary": "mine"}},
        "fine_tune": {"fine_tuning": {"method": "rada", "datastore": "passages"}},
    }
    plan = load_plan(write_plan(content, tmp_path))
    run_comparison(plan, tmp_path / "output", execute=pretend)
    assert find_foreign_results(plan, tmp_path / "output") == set()
    (tmp_path / "passages" / "datastore.json").write_text("2")
    foreign = find_foreign_results(plan, tmp_path / "output")
    assert foreign == {f"fine_tune-{task}-seed{seed}" for task in ("animals", "entities") for seed in (1, 2)}
    (tmp_path / "mine" / "tokenizer.json").write_text("2")
    assert "dapt-pets" in find_foreign_results(plan, tmp_path / "output")


def test_encoder_of_another_machine_need_not_be_there(content, tmp_path):
    save_tiny_bert(tmp_path / "encoder", SENTENCES)
    plan = load_plan(write_plan(content, tmp_path))
    run_comparison(plan, tmp_path / "output", execute=pretend)
    shutil.rmtree(tmp_path / "encoder")
    assert not find_foreign_results(plan, tmp_path / "output")


def test_metric_belongs_to_a_score(plan, content, tmp_path):
    run_comparison(plan, tmp_path / "output", execute=pretend)
    content["tasks"]["animals"]["metric"] = "micro_f1"
    foreign = find_foreign_results(load_plan(write_plan(content, tmp_path)), tmp_path / "output")
    assert foreign == {f"{method}-animals-seed{seed}" for method in METHODS for seed in (1, 2)}


def test_methods_may_be_put_before_others(content, tmp_path, ran, note):
    """The first of those that train nothing used to name the evaluation that all of them share."""
    content["methods"] = {"dapt": None, "rada": None}
    run_comparison(load_plan(write_plan(content, tmp_path)), tmp_path / "output", execute=pretend)
    content["methods"] = {"fine_tune": None, "rada": None, "dapt": None}
    run_comparison(load_plan(write_plan(content, tmp_path)), tmp_path / "output", execute=note)
    assert set(ran) == {f"fine_tune-{task}-seed{seed}" for task in ("animals", "entities") for seed in (1, 2)}


def test_result_that_another_plan_leaves_meanwhile_is_refused(content, tmp_path):
    content["methods"] = {"dapt": None}
    plan = load_plan(write_plan(content, tmp_path))

    def meddle(step, plan, folder):
        pretend(step, plan, folder)
        if step.name == "dapt-pets":
            other = describe_steps(plan, tmp_path / "output")["dapt-pets-on-pets"]
            write_result(tmp_path / "output", Result(replace(other, flags={"max_eval_samples": 1}), "done"))

    with pytest.raises(ValueError, match=r"not of this comparison; .*\n- another plan, or .*: dapt-pets-on-pets"):
        run_comparison(plan, tmp_path / "output", execute=meddle)


def test_comparison_behind_a_link(content, tmp_path):
    """What a step writes relative to the plan's folder is looked for where the plan is, not where its link stands."""
    (tmp_path / "far" / "plans").mkdir(parents=True)
    write_plan(content, tmp_path)
    (tmp_path / "far" / "plans" / "link").symlink_to(tmp_path, target_is_directory=True)
    linked = load_plan(tmp_path / "far" / "plans" / "link" / "plan.yaml")
    step = list_steps(linked, tmp_path / "output")[0]
    assert step.flags["output_dir"] == f"output/steps/{step.name}"


def test_minutes_belong_to_a_result(content, tmp_path):
    content["budget"], content["methods"] = {"minutes": 0.5}, {"dapt": None}
    run_comparison(load_plan(write_plan(content, tmp_path)), tmp_path / "output", execute=pretend)
    assert read_json(tmp_path / "output" / "results" / "dapt-pets.json")["max_steps"] == 60
    content["budget"] = {"minutes": 30}
    with pytest.raises(ValueError, match="dapt-pets"):
        run_comparison(load_plan(write_plan(content, tmp_path)), tmp_path / "output", execute=pretend)


def test_parts_make_the_same_report(plan, tmp_path):
    run_comparison(plan, tmp_path / "whole", execute=pretend)
    made = []
    for number in (1, 2, 3):
        part = run_comparison(plan, tmp_path / f"part{number}", (number, 3), pretend)
        made.append({result.step.name for result in part if result.step.kind == "fine_tuning"})
        for path in (tmp_path / f"part{number}" / "results").iterdir():
            target = tmp_path / "merged" / "results" / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    assert all(made)
    assert sum(map(len, made)) == len(set.union(*made)) == len(METHODS) * 4
    write_report(tmp_path / "whole")
    gather_results(plan, tmp_path / "merged")
    write_report(tmp_path / "merged")
    assert (tmp_path / "whole" / "report.md").read_text() == (tmp_path / "merged" / "report.md").read_text()
    with pytest.raises(ValueError, match="between 1/3 and 3/3, got 4/3"):
        run_comparison(plan, tmp_path / "output", (4, 3), pretend)
    with pytest.raises(ValueError, match="stay together: there are 11 parts, got 99"):
        run_comparison(plan, tmp_path / "output", (1, 99), pretend)
    with pytest.raises(FileNotFoundError, match=r"there are no results in .*elsewhere; run the comparison first"):
        gather_results(plan, tmp_path / "elsewhere")


def test_result_survives_its_file(plan, tmp_path):
    results = {result.step.name: result for result in run_comparison(plan, tmp_path / "output", execute=pretend)}
    assert read_results(tmp_path / "output") == results
    path = tmp_path / "output" / "results" / "dapt-pets.json"
    write_json(path, read_json(path) | {"points": 3})
    with pytest.raises(ValueError, match=r"dapt-pets.json must be a result of this version of hf-domain, but has"):
        read_results(tmp_path / "output")

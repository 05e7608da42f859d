"""Which results belong to a plan, and what a change of it runs again."""

import json
import shutil
from contextlib import nullcontext

import pytest
from pretended_runs import METHODS, SENTENCES, get_result, pretend, run_comparison, write_plan
from script_runs import save_tiny_bert

from hf_domain.comparison import steps
from hf_domain.comparison.prepare import load_plan
from hf_domain.comparison.report import write_report
from hf_domain.comparison.results import check_output_dir, find_results, read_results
from hf_domain.comparison.run import find_lacking, gather_results
from hf_domain.comparison.steps import find_root, list_steps
from hf_domain.safe_io import read_json, write_json


def find_stale(plan, output_dir):
    """Return the names of the steps that have no result."""
    steps = list_steps(plan, output_dir)
    results = find_results(output_dir, {step.name: step.id for step in steps})
    return find_lacking(plan, steps, results, output_dir)


def read_tree(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_changed_plan_runs_what_it_touches_and_keeps_the_rest(plan, content, tmp_path, ran, note, load):
    output_dir = tmp_path / "output"
    run_comparison(plan, output_dir, execute=pretend)
    write_report(output_dir)
    before = {folder: read_tree(output_dir / folder) for folder in ("results", "steps")}
    old, files = read_json(output_dir / "plan.json")["steps"], {p.name: p.read_bytes() for p in output_dir.glob("*.md")}
    content["methods"]["dapt"] = {"pretraining": {"learning_rate": 1e-5}}
    content["methods"]["gmap_of_slow"] = {"recipe": "gmap", "after": "slow"}
    del content["methods"]["lora"]
    run_comparison(load(), output_dir, execute=note)
    started = ("dapt-", "gmap-", "logits_fusion-")
    touched = {name for name in old if name.startswith(started)}
    added = {f"gmap_of_slow-{task}-seed{seed}" for task in ("animals", "entities") for seed in (1, 2)}
    assert set(ran) == touched | added and len(ran) == len(set(ran))
    for folder, tree in before.items():
        assert tree.items() <= read_tree(output_dir / folder).items()
    report = write_report(output_dir)
    assert "lora" not in report.scores and "LoRA" not in (output_dir / "report.md").read_text()
    assert len(report.scores["gmap_of_slow"]["animals"]) == 2
    # The first plan needs nothing but its results.
    content["methods"] = dict(METHODS)
    ran.clear()
    run_comparison(load(), output_dir, execute=note)
    write_report(output_dir)
    assert ran == [] and read_json(output_dir / "plan.json")["steps"] == old
    assert {p.name: p.read_bytes() for p in output_dir.glob("*.md")} == files


def test_another_training_measures_the_untouched_encoder_no_second_time(plan, content, tmp_path, ran, note, load):
    output_dir = tmp_path / "output"
    run_comparison(plan, output_dir, execute=pretend)
    content["pretraining"] = content.get("pretraining", {}) | {"learning_rate": 1e-5, "warmup_steps": 0.2}
    run_comparison(load(), output_dir, execute=note)
    assert "dapt-pets" in ran and not [name for name in ran if name.startswith("encoder-on-")]
    ran.clear()
    content["pretraining"] |= {"max_eval_samples": 7}
    run_comparison(load(), output_dir, execute=note)
    assert [name for name in ran if name.startswith("encoder-on-")]


def test_half_run_change_leaves_the_old_encoders(plan, content, tmp_path, load):
    output_dir = tmp_path / "output"
    run_comparison(plan, output_dir, execute=pretend)
    before = read_tree(output_dir / "steps")

    def kill(step, plan, folder):
        (folder / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    content["pretraining"]["learning_rate"] = 1e-5
    with pytest.raises(KeyboardInterrupt):
        run_comparison(load(), output_dir, execute=kill)
    assert before.items() <= read_tree(output_dir / "steps").items()


def test_other_versions_run_again(plan, tmp_path, monkeypatch):
    output_dir = tmp_path / "output"
    names = {result.step.name for result in run_comparison(plan, output_dir, execute=pretend)}
    versions = steps.list_versions()
    monkeypatch.setattr(steps, "list_versions", lambda: versions | {"torch": "0.1"})
    assert find_stale(plan, output_dir) == names


def test_runs_that_failed_do_not_keep_a_corrected_plan_from_running(plan, content, tmp_path, ran, note, load):
    def fail(step, plan, folder):
        if step.kind == "fine_tuning":
            raise RuntimeError("wrong flag")
        pretend(step, plan, folder)

    run_comparison(plan, tmp_path / "output", execute=fail)
    content["fine_tuning"]["num_train_epochs"] = 2
    corrected = load()
    run_comparison(corrected, tmp_path / "output", execute=note)
    assert len(ran) == 2 * 2 * len(METHODS)
    assert write_report(tmp_path / "output").failed == {}


def test_results_of_changed_files_are_stale(plan, tmp_path):
    """Also where the size is the same: labels or words that are exchanged."""
    output_dir = tmp_path / "output"
    names = {result.step.name for result in run_comparison(plan, output_dir, execute=pretend)}
    assert not find_stale(plan, output_dir)
    of_animals = {name for name in names if "-animals-seed" in name}
    of_tapt = {name for name in names if name.startswith(("tapt-animals", "tuned_after_tapt-animals"))}
    of_control = {name for name in names if "general_text" in name}
    on_general = {name for name in names if name.endswith("-on-general")}
    for file, expected in (
        ("animals/test.jsonl", of_animals),
        ("animals/train.jsonl", of_animals | of_tapt),
        ("general.txt", of_control),
        ("general_heldout.txt", on_general),
    ):
        text = (tmp_path / file).read_text()
        (tmp_path / file).write_text(text.replace("cat", "\0").replace("dog", "cat").replace("\0", "dog"))
        assert find_stale(plan, output_dir) == expected, file
        (tmp_path / file).write_text(text)


def test_files_of_a_list_and_the_tokenizer_of_an_encoder_are_read(content, tmp_path, load):
    save_tiny_bert(tmp_path / "encoder", SENTENCES)
    content["methods"] = {"dapt": {"pretraining": {"train_file": ["corpus.txt", "more*.txt"]}}}
    (tmp_path / "more1.txt").write_text("a cat")
    plan = load()
    names = {result.step.name for result in run_comparison(plan, tmp_path / "output", execute=pretend)}
    assert not find_stale(plan, tmp_path / "output")
    for file, expected in (
        ("more1.txt", {name for name in names if "encoder" not in name}),
        ("encoder/tokenizer.json", names),
    ):
        text = (tmp_path / file).read_text()
        (tmp_path / file).write_text(text.replace("cat", "cow"))
        assert find_stale(plan, tmp_path / "output") == expected, file
        (tmp_path / file).write_text(text)


def test_vocabulary_and_datastore_of_the_user_are_read(content, tmp_path, load):
    for name, file in (("mine", "tokenizer.json"), ("passages", "datastore.json")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text("1")
    content["methods"] = {
        "dapt": {"pretraining": {"expanded_vocabulary": "mine"}},
        "no_adaptation": {"fine_tuning": {"method": "rada", "datastore": "passages"}},
    }
    plan = load()
    run_comparison(plan, tmp_path / "output", execute=pretend)
    assert find_stale(plan, tmp_path / "output") == set()
    (tmp_path / "passages" / "datastore.json").write_text("2")
    stale = find_stale(plan, tmp_path / "output")
    assert stale == {f"no_adaptation-{task}-seed{seed}" for task in ("animals", "entities") for seed in (1, 2)}
    (tmp_path / "mine" / "tokenizer.json").write_text("2")
    assert "dapt-pets" in find_stale(plan, tmp_path / "output")


def test_metric_belongs_to_a_score(plan, content, tmp_path, load):
    run_comparison(plan, tmp_path / "output", execute=pretend)
    content["tasks"]["animals"]["metric"] = "micro_f1"
    stale = find_stale(load(), tmp_path / "output")
    assert stale == {f"{method}-animals-seed{seed}" for method in METHODS for seed in (1, 2)}


def test_methods_may_be_put_before_others(content, tmp_path, ran, note, load):
    """The first of those that train nothing used to name the evaluation that all of them share."""
    content["methods"] = {"dapt": None, "rada": None}
    run_comparison(load(), tmp_path / "output", execute=pretend)
    content["methods"] = {"no_adaptation": None, "rada": None, "dapt": None}
    run_comparison(load(), tmp_path / "output", execute=note)
    assert set(ran) == {f"no_adaptation-{task}-seed{seed}" for task in ("animals", "entities") for seed in (1, 2)}


def test_comparison_behind_a_link(content, tmp_path):
    """What a step writes relative to the plan's folder is looked for where the plan is, not where its link stands."""
    (tmp_path / "far" / "plans").mkdir(parents=True)
    write_plan(content, tmp_path)
    (tmp_path / "far" / "plans" / "link").symlink_to(tmp_path, target_is_directory=True)
    linked = load_plan(tmp_path / "far" / "plans" / "link" / "plan.yaml")
    step = list_steps(linked, tmp_path / "output")[0]
    assert step.list_arguments(find_root(linked, tmp_path / "output"))[-1] == f"output/steps/{step.id}"


def test_minutes_belong_to_a_result(content, tmp_path, load):
    content["budget"], content["methods"] = {"minutes": 0.5}, {"dapt": None}
    run_comparison(load(), tmp_path / "output", execute=pretend)
    assert read_json(get_result(tmp_path / "output", "dapt-pets"))["max_steps"] == 60
    content["budget"] = {"minutes": 30}
    stale = find_stale(load(), tmp_path / "output")
    assert "dapt-pets" in stale and "dapt-pets-timing" not in stale


def test_results_of_several_machines_make_one_report(plan, tmp_path):
    """A result has the same name wherever it was made; the models stay where they are."""
    plan.keep_models = "none"
    run_comparison(plan, tmp_path / "whole", execute=pretend)
    write_report(tmp_path / "whole")
    copy = tmp_path / "elsewhere" / "copy"
    shutil.copytree(tmp_path / "whole" / "results", copy / "results")
    gather_results(plan, copy)
    write_report(copy)
    assert (tmp_path / "whole" / "report.md").read_text() == (copy / "report.md").read_text()
    with pytest.raises(FileNotFoundError, match=r"nowhere has no results of the plan .*Run the comparison first"):
        gather_results(plan, tmp_path / "nowhere")


def test_result_survives_its_file(plan, tmp_path, ran, note, caplog):
    results = {result.step.name: result for result in run_comparison(plan, tmp_path / "output", execute=pretend)}
    assert read_results(tmp_path / "output") == results
    path = get_result(tmp_path / "output", "dapt-pets-on-pets")
    write_json(path, read_json(path) | {"points": 3})
    get_result(tmp_path / "output", "dapt-pets-on-general").write_text(json.dumps({})[:-1])
    folded = get_result(tmp_path / "output", "dapt-animals-seed1")
    content = read_json(folded)
    write_json(folded, content | {"step": content["step"] | {"fold": 1}})
    run_comparison(plan, tmp_path / "output", execute=note)
    assert sorted(ran) == ["dapt-animals-seed1", "dapt-pets-on-general", "dapt-pets-on-pets"]
    assert f"{folded} is of an earlier version's cross-validation" in caplog.text
    assert f"{path} is not a complete result of this version of hf-domain" in caplog.text
    assert read_results(tmp_path / "output") == results


@pytest.mark.parametrize(
    ("files", "refused"),
    [
        ({}, None),
        ({"texts/topics.txt": "", "data/a.jsonl": ""}, None),
        ({"commands.sh": "", "data/a.jsonl": ""}, None),  # of a dry run of an earlier version
        ({"results/a.json": ""}, None),  # as `publish_results` has them
        ({"plan.json": '{"methods": {}, "steps": {}}', "report.md": "", "notes.txt": ""}, None),
        ({"plan.json": '{"methods": {}}', "results/a.json": ""}, None),  # of an early version
        ({".DS_Store": "", "_run.lock": ""}, None),
        ({"plan.json": '{"methods": {}}', "data/a.jsonl": ""}, "plan.json"),
        ({"plan.json": "[]", "results/a.json": ""}, "plan.json"),
        ({"report.md": "", "results/a.json": ""}, "report.md"),
        ({"config.json": "{}", "model.safetensors": "", "vocab.txt": "", "a": "", "b": ""}, "a, b, config.json and 2"),
    ],
)
def test_folders_that_a_comparison_may_write_to(tmp_path, files, refused):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    with pytest.raises(FileExistsError, match=f"has {refused}") if refused else nullcontext():
        check_output_dir(tmp_path)

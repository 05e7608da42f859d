"""The steps that a plan needs."""

import pytest
from pretended_runs import METHODS, get_result, pretend, run_comparison
from script_runs import write_jsonl

from hf_domain.comparison.checks import check_step_flags
from hf_domain.comparison.prepare import load_plan
from hf_domain.comparison.report import write_report
from hf_domain.comparison.steps import name_steps
from hf_domain.safe_io import read_json


def test_steps_of_a_plan(tmp_path, load):
    plan = load()
    steps = name_steps(plan, tmp_path / "plan")
    names = [step.name for step in steps]
    assert len(set(names)) == len(names)
    for number, step in enumerate(steps):
        assert set(step.needs) <= set(names[:number])
    by_name = {step.name: step for step in steps}
    assert [name for name in names if name.startswith("vocabulary")] == ["vocabulary-pets"]
    assert by_name["dapt-pets"].flags["max_steps"] == 16  # 1000 tokens in steps of 4 x 16
    assert by_name["dapt-pets"].flags["save_strategy"] == "steps"
    assert by_name["dapt-animals-seed1"].flags["save_strategy"] == "no"
    assert by_name["dapt-pets"].flags["train_file"] == "corpus.txt"
    assert by_name["general_text-general"].flags["train_file"] == "general.txt"
    assert by_name["tapt-animals"].flags["train_file"] == "{root}/texts/animals.txt"
    assert by_name["adalm-pets"].flags["expanded_vocabulary"] == "{root}/steps/vocabulary-pets"
    assert by_name["slow-pets"].flags["learning_rate"] == 1e-5
    assert by_name["no_adaptation-animals-seed2"].flags["model_name_or_path"] == "encoder"
    assert by_name["tuned_after_tapt-animals-seed1"].flags["model_name_or_path"] == "{root}/steps/tapt-animals"
    assert by_name["dapt-entities-seed1"].command == "ner"
    gmap = by_name["gmap-animals-seed1"]
    assert gmap.flags["model_name_or_path"] == "{root}/steps/dapt-pets"
    assert (gmap.flags["method"], gmap.flags["memory_name_or_path"]) == ("gmap", "encoder")
    assert by_name["logits_fusion-animals-seed1"].flags["config_overrides"] == "strategy=logits_fusion"
    rada = by_name["rada-animals-seed1"]
    assert rada.needs == ["datastore-pets"]
    assert rada.flags["datastore"] == "{root}/steps/datastore-pets/datastore"
    assert rada.flags["passage_cache"] == by_name["rada-animals-seed2"].flags["passage_cache"]
    assert len([step for step in steps if step.kind == "fine_tuning"]) == len(METHODS) * 2 * 2
    assert {step.corpus for step in steps if step.kind == "held_out_loss"} == {"pets", "general"}


def test_a_published_recipe_is_a_default_of_a_row(content, list_by_name):
    """Flags of the plan win, and blocks keep their length: a budget is a number of tokens."""
    content["methods"] = {"dapt": {"pretraining": {"recipe": "modernbert", "mlm_probability": 0.2}}, "plain": None}
    content["methods"]["plain"] = {"recipe": "dapt"}
    steps = list_by_name()
    flags, plain = steps["dapt-pets"].flags, steps["plain-pets"].flags
    assert (flags["recipe"], flags["mlm_probability"], flags["decay_mlm_probability"]) == ("modernbert", 0.2, 0.15)
    assert flags["lr_scheduler_type"] == "warmup_stable_decay" and "lr_scheduler_type" not in plain
    assert (flags["max_seq_length"], flags["max_steps"]) == (plain["max_seq_length"], plain["max_steps"])


def test_a_row_may_have_seeds_of_its_own(content, tmp_path, load):
    """A row without a pre-training has as many runs as one with several."""
    content |= {"methods": {"no_adaptation": {"seeds": [1, 2, 3, 4]}, "dapt": None}, "seeds": [1, 2]}
    content["pretraining_seeds"] = [7, 8]
    steps = name_steps(load(), tmp_path / "plan")
    names = [step.name for step in steps if step.kind == "fine_tuning" and step.task == "animals"]
    for row in ("no_adaptation", "dapt"):
        assert sum(name.startswith(row) for name in names) == 4, names
    run_comparison(load(), tmp_path / "output", execute=pretend)
    assert write_report(tmp_path / "output").missing == {}
    get_result(tmp_path / "output", "no_adaptation-animals-seed4").unlink()
    assert write_report(tmp_path / "output").missing == {"no_adaptation": ["animals"]}
    with pytest.raises(ValueError, match="--dask_scheduler must be the address"):
        run_comparison(load_plan(tmp_path / "plan.yaml"), tmp_path / "cluster", pretend, dask_scheduler="nowhere.json")
    assert not (tmp_path / "cluster").exists()
    content["methods"]["no_adaptation"]["seeds"] = [1, 1]
    with pytest.raises(ValueError, match="seeds of no_adaptation must be different numbers"):
        load()


def test_passages_are_cached_where_a_frozen_copy_encodes_them(content, list_by_name):
    shared, frozen = {"config_overrides": "passage_encoder=shared"}, {"config_overrides": "passage_encoder=frozen"}
    content["methods"] = {
        "rada": None,
        "as_published": {"recipe": "rada", "fine_tuning": shared},
        "rada_mlm": None,
        "trained": {"recipe": "rada_mlm", "pretraining": shared},
        "goes_on": {"recipe": "rada", "after": "rada_mlm", "fine_tuning": {"config_overrides": "selection=top1"}},
        "half": {"recipe": "rada_mlm", "pretraining": shared, "fine_tuning": frozen},
    }
    steps = list_by_name()
    cached = {name for name, step in steps.items() if "passage_cache" in step.flags}
    readers = ("rada", "rada_mlm", "goes_on", "half")
    expected = {f"{name}-{task}-seed{seed}" for name in readers for task in ("animals", "entities") for seed in (1, 2)}
    assert cached == {"rada_mlm-pets"} | expected


def test_general_text_is_trained_on_once_for_all_corpora(content, list_by_name):
    content["corpora"]["plants"] = content["corpora"]["pets"]
    content["tasks"]["entities"]["corpus"] = "plants"
    content["methods"] = {"general_text": None, "dapt": None, "more": {"recipe": "general_text", "after": "dapt"}}
    steps = list_by_name()
    trained = [name for name, step in steps.items() if step.kind == "pretraining"]
    assert trained == ["general_text-general", "dapt-pets", "dapt-plants", "more-pets", "more-plants"]
    for task in ("animals", "entities"):
        assert steps[f"general_text-{task}-seed1"].needs == ["general_text-general"]
    evaluated = [name for name in steps if name.startswith("general_text-general-on-")]
    assert sorted(evaluated) == [f"general_text-general-on-{text}" for text in ("general", "pets", "plants")]


def test_losses_are_reported_for_each_corpus_of_a_method(content, tmp_path, load):
    content["corpora"]["plants"] = content["corpora"]["pets"]
    content["tasks"]["entities"]["corpus"] = "plants"
    content["methods"] = {"general_text": None, "tapt": None, "gmap": {"after": "dapt"}, "dapt": None}
    output_dir = tmp_path / "plan"
    run_comparison(load(), output_dir, execute=pretend)
    losses = {}
    for path in (output_dir / "results").glob("*-on-*.json"):
        encoder, corpus = path.stem.rpartition("-")[0].split("-on-")
        losses.setdefault(encoder, {})[corpus] = read_json(path)["masked_lm_loss"]
    assert write_report(output_dir).losses == {
        "general text": losses["general_text-general"],
        "TAPT (pets)": losses["tapt-animals"],
        "TAPT (plants)": losses["tapt-entities"],
        "DAPT (pets)": losses["dapt-pets"],
        "DAPT (plants)": losses["dapt-plants"],
    }
    assert losses["dapt-pets"].keys() == {"general", "pets"}


def test_methods_with_their_own_tasks_encoder_and_datastore(content, list_by_name):
    content["methods"] = {
        "dapt": {"tasks": ["entities"]},
        "mine": {"recipe": "no_adaptation", "encoder": "somewhere/mine"},
        "more": {"recipe": "dapt", "encoder": "somewhere/mine"},
        "gmap": {"after": "more"},
        "ensemble": {"recipe": "gmap", "after": "more", "fine_tuning": {"config_overrides": "strategy=ensemble"}},
        "gmap_mlm": {"after": "more"},
        "rada": None,
        "rada_half": {"recipe": "rada", "datastore": {"train_file": "general.txt"}, "tasks": ["animals"]},
        "rada_mlm": {"datastore": {"train_file": "general.txt"}, "pretraining": {"train_file": "heldout.txt"}},
    }
    steps = list_by_name()
    assert "dapt-entities-seed1" in steps
    assert not [name for name in steps if name.startswith(("dapt-animals", "rada_half-entities"))]
    assert steps["mine-animals-seed1"].flags["model_name_or_path"] == "somewhere/mine"
    assert steps["mine-on-pets"].flags["model_name_or_path"] == "somewhere/mine"
    assert steps["encoder-on-pets"].method is None  # rows share it
    assert steps["more-pets"].flags["model_name_or_path"] == "somewhere/mine"
    assert steps["gmap-animals-seed1"].flags["memory_cache"] == "{root}/memories/gmap-animals"
    stage = steps["gmap_mlm-pets"].flags
    assert (stage["model_name_or_path"], stage["memory_name_or_path"]) == ("{root}/steps/more-pets", "encoder")
    assert "memory_name_or_path" not in steps["gmap_mlm-animals-seed1"].flags
    assert "memory_cache" not in steps["ensemble-animals-seed1"].flags
    assert steps["datastore-pets"].flags["train_file"] == "corpus.txt"
    assert steps["datastore-rada_half-pets"].flags["train_file"] == "general.txt"
    assert steps["rada_half-animals-seed1"].needs == ["datastore-rada_half-pets"]
    stage = steps["rada_mlm-pets"]
    assert (stage.flags["method"], stage.flags["train_file"]) == ("rada", "heldout.txt")
    assert stage.flags["datastore"] == steps["rada_mlm-entities-seed1"].flags["datastore"]
    assert stage.needs == ["datastore-rada_mlm-pets"]


def test_masked_lm_reads_no_passages_of_its_own_text(content, list_by_name):
    other = {"train_file": "general.txt"}
    content["methods"] = {
        "rada": None,
        "rada_mlm": None,
        "other_text": {"recipe": "rada_mlm", "pretraining": other},
        "other_passages": {"recipe": "rada_mlm", "datastore": other},
    }
    steps = list_by_name()
    for name, text, passages in (
        ("other_text-pets", "general.txt", ("corpus.txt", None)),
        ("other_passages-pets", "corpus.txt", ("general.txt", None)),
        (
            "rada_mlm-pets",
            "{root}/steps/datastore-rada_mlm-pets/held_out.jsonl",
            ("corpus.txt", "{root}/steps/datastore-rada_mlm-pets/held_out.jsonl"),
        ),
    ):
        read = steps[steps[name].needs[0]].flags
        assert steps[name].flags["train_file"] == text
        assert (read["train_file"], read.get("held_out_file")) == passages
    assert steps["rada_mlm-animals-seed1"].needs == ["rada_mlm-pets", "datastore-rada_mlm-pets"]
    assert "held_out_file" not in steps["datastore-pets"].flags


def test_report_leaves_out_what_a_method_is_not_tested_on(content, tmp_path, run_plan):
    content["methods"] = {"dapt": None, "mine": {"recipe": "no_adaptation", "encoder": "m", "tasks": ["animals"]}}
    report = run_plan()
    assert list(report.differences["mine"]) == ["animals"]
    assert {"DAPT", "no adaptation (mine)"} == set(report.losses)
    lines = (tmp_path / "plan" / "report.md").read_text().splitlines()
    _, mean, row = [line for line in lines if line.startswith("| no adaptation (mine) | ")][:3]
    assert "(1 task)" in mean
    assert row.startswith("| no adaptation (mine) | ") and row.endswith(" |  |")


def test_vocabulary_is_expanded_once_along_a_chain(content, list_by_name):
    content["methods"] = {"adalm": None, "dapt": None, "exbert": {"after": "adalm"}}
    steps = list_by_name()
    assert "expanded_vocabulary" in steps["adalm-pets"].flags
    assert "expanded_vocabulary" not in steps["exbert-pets"].flags
    assert steps["exbert-pets"].flags["model_name_or_path"] == "{root}/steps/adalm-pets"


@pytest.mark.parametrize(
    "budget, vocabulary, limit",
    [
        ({"tokens": 1000}, {}, 1000),
        ({"minutes": 1}, {}, None),
        ({"tokens": 1000}, {"size": 500}, None),
        ({"tokens": 1000}, {"training_tokens": 70}, 70),
        ({"tokens": 1000}, {"training_tokens": None}, None),
    ],
)
def test_vocabulary_holds_what_the_budget_shows_often_enough(content, tmp_path, budget, vocabulary, limit, load):
    content |= {"methods": {"adalm": None}, "budget": budget, "vocabulary": vocabulary}
    step = name_steps(load(), tmp_path / "plan")[0]
    assert (step.kind, step.flags.get("training_tokens")) == ("vocabulary", limit)
    check_step_flags([step])


def test_flags_of_several_labels_and_of_values(content, tmp_path, load):
    for name, labels in (("several", [["x", "y"], []]), ("values", [0.5, 2])):
        (tmp_path / name).mkdir()
        for split in ("train", "validation", "test"):
            write_jsonl(tmp_path / name / f"{split}.jsonl", [{"text": "a", "label": label} for label in labels])
    rows = [{"text": "a", "label": "x", "score": score} for score in (1, 2)]
    (tmp_path / "scores").mkdir()
    for split in ("train", "validation", "test"):
        write_jsonl(tmp_path / "scores" / f"{split}.jsonl", rows)
    content["tasks"] = {"several": "several", "values": "values", "scores": {"folder": "scores", "kind": "regression"}}
    content |= {"methods": ["dapt"], "seeds": [1]}
    plan = load()
    assert [task.metric for task in plan.tasks.values()] == ["macro_f1", "pearson", "pearson"]
    steps = {step.name: step for step in name_steps(plan, tmp_path / "plan")}
    check_step_flags(steps.values())
    assert {steps[f"dapt-{task}-seed1"].command for task in plan.tasks} == {"classification"}
    several, values, scores = (steps[f"dapt-{task}-seed1"].flags for task in plan.tasks)
    assert several["do_eval"] and "do_regression" not in several and "label_column_name" not in several
    assert (values["do_regression"], values["label_column_name"]) == (True, "label")
    assert (scores["do_regression"], scores["label_column_name"]) == (True, "score")

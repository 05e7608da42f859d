"""The rows that a plan may name: how their commands differ from DAPT's, and a tiny plan of them that really runs."""

import json
import sys
from itertools import pairwise

import pytest
from pretended_runs import SENTENCES, write_plan
from script_runs import run_script, save_tiny_bert

from hf_domain.comparison import row_checks
from hf_domain.comparison.descriptions import list_jobs
from hf_domain.comparison.plan_loading import load_plan
from hf_domain.comparison.rows import RECIPES
from hf_domain.comparison.runner import write_step_text
from hf_domain.comparison.step_checks import check_encoders, check_step_flags
from hf_domain.comparison.steps import list_steps
from hf_domain.examples import build_datastore, run_mlm, select_text
from hf_domain.safe_io import read_json

VARIANTS = ["tapt_after_dapt", "mask_30", "random_words", "domain_words", "keywords", "clm_detour", "replay", "average"]


@pytest.fixture
def variants(content):
    content["methods"] = ["fine_tune", "dapt", *VARIANTS]
    del content["tasks"]["entities"]
    return content


def list_by_name(content, folder):
    return {step.name: step for step in list_steps(load_plan(write_plan(content, folder)), folder / "plan")}


def test_commands_differ_from_dapt_as_the_rows_say(variants, tmp_path):
    steps = list_by_name(variants, tmp_path)
    check_step_flags(steps.values())
    dapt = steps["dapt-pets"].flags

    def find_changes(name):
        flags = steps[name].flags
        assert flags["max_steps"] == dapt["max_steps"]
        return {flag: flags.get(flag) for flag in {*flags, *dapt} - {"output_dir"} if flags.get(flag) != dapt.get(flag)}

    words = {"whole_word_mask": True, "word_counts": ["corpus.txt", "general.txt"]}
    assert find_changes("mask_30-pets") == {"mlm_probability": 0.3}
    assert find_changes("replay-pets") == {"mix": "general.txt:0.1"}
    assert find_changes("random_words-pets") == words | {"word_rule": "random"}
    assert find_changes("domain_words-pets") == words | {"word_rule": "ratio"}
    assert find_changes("keywords-pets") == words | {"word_rule": "keyword"}
    changes = find_changes("tapt_after_dapt-animals")
    assert changes == {"model_name_or_path": "plan/steps/dapt-pets", "train_file": "plan/texts/animals.txt"}
    assert steps["average-pets"].flags["model_name_or_path"] == ["plan/steps/dapt-pets", "encoder"]


def test_nearest_text_is_chosen_before_the_training(variants, tmp_path):
    variants["methods"] = {"dapt": None, "tapt": None, "nearest": {"datastore": {"max_length": 64}}}
    steps = list_by_name(variants, tmp_path)
    check_step_flags(steps.values())
    selection, tapt, nearest = (steps[name] for name in ("nearest-text-animals", "tapt-animals", "nearest-animals"))
    assert steps[selection.needs[0]].flags["train_file"] == "corpus.txt"
    assert steps[selection.needs[0]].flags["max_length"] == 64
    assert selection.flags == {
        "datastore": f"plan/steps/{selection.needs[0]}/datastore",
        "text_file": "plan/texts/animals.txt",
        "training_tokens": 1000,
        "output_file": "plan/steps/nearest-text-animals/nearest.jsonl",
    }
    text = {"train_file": selection.flags["output_file"], "output_dir": "plan/steps/nearest-animals"}
    assert nearest.flags == {**tapt.flags, **text} and nearest.needs == [selection.name]
    variants["budget"] = {"tokens": [640, 1280]}
    assert list_by_name(variants, tmp_path)["nearest-text-animals"].flags["training_tokens"] == 1280
    variants["tasks"]["animals"]["folds"] = 2  # every text of it is tested
    with pytest.raises(ValueError, match="nearest trains on the texts of the task, but folds test all of them"):
        load_plan(write_plan(variants, tmp_path))


def test_chosen_text_is_no_input_of_the_training(variants, tmp_path):
    """It is there from the second run on; its own inputs are those of the choice."""
    pytest.importorskip("tantivy")
    variants["methods"] = ["dapt", "nearest"]

    def list_addresses():
        plan = load_plan(write_plan(variants, tmp_path))
        return {job.name: job.address for job in list_jobs(plan, tmp_path / "plan")}

    before = list_addresses()
    file = tmp_path / "plan" / "steps" / before["nearest-text-animals"] / "nearest.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text('{"text": "a cat"}\n')
    assert list_addresses() == before
    texts = tmp_path / "animals" / "train.jsonl"
    texts.write_text(texts.read_text() + texts.read_text().splitlines()[0] + "\n")
    changed = {name for name, address in list_addresses().items() if address != before[name]}
    assert {"nearest-text-animals", "nearest-animals"} <= changed and not any("dapt-pets" in name for name in changed)


def test_new_words_are_left_out_of_tasks_with_entities(content, tmp_path):
    """Also by what starts from such an encoder, but not by the paper's row, nor by an exBERT."""
    content["methods"] = {
        "dapt": None,
        "adalm": None,
        "adalm_paper": None,
        "exbert": None,
        "more": {"recipe": "tapt", "after": "adalm"},
        "own": {"recipe": "adalm", "fine_tuning": {"tokenizer_name": "another"}},
    }
    steps = list_by_name(content, tmp_path)
    check_step_flags(steps.values())
    found = {name: step.flags.get("tokenizer_name") for name, step in steps.items() if name.endswith("-seed1")}
    entities = {name.partition("-")[0]: given for name, given in found.items() if "-entities-" in name}
    assert entities == {**dict.fromkeys(["dapt", "adalm_paper", "exbert"]), "adalm": "encoder", "more": "encoder"} | {
        "own": "another"
    }
    assert {given for name, given in found.items() if "-animals-" in name} == {None, "another"}
    content["evaluation"] = "probe"
    content["methods"] = {"adalm": None}
    probes = [step for step in list_by_name(content, tmp_path).values() if step.command == "probe"]
    assert len(probes) == len(content["tasks"]) and not any("tokenizer_name" in step.flags for step in probes)


def test_a_causal_stage_ends_where_the_rate_begins_to_fall(variants, tmp_path):
    variants["methods"] = ["dapt", "clm_detour"]
    steps = list_by_name(variants, tmp_path)
    first, last = steps["clm_detour-pets-trunk"], steps["clm_detour-pets"]
    assert first.flags["objective"] == "clm" and "objective" not in last.flags
    # Together the steps of DAPT.
    assert (first.flags["max_steps"], last.flags["max_steps"]) == (14, 16)
    assert last.flags["resume_from_checkpoint"] == "plan/steps/clm_detour-pets-trunk/checkpoint-14"
    assert json.loads(last.flags["lr_scheduler_kwargs"])["num_decay_steps"] == 2
    assert steps["dapt-pets"].flags["max_steps"] == 16
    variants["budget"] = {"tokens": [640, 1280]}
    steps = list_by_name(variants, tmp_path)
    trunk = [steps[f"clm_detour-pets-{rung}-trunk"].flags for rung in (640, 1280)]
    assert [flags["objective"] for flags in trunk] == ["clm", "clm"]
    for before, after in pairwise(trunk):
        assert after["resume_from_checkpoint"].startswith(before["output_dir"])
    for rung in (640, 1280):
        assert "objective" not in steps[f"clm_detour-pets-{rung}"].flags
        assert not {"objective"} & steps[f"dapt-pets-{rung}-trunk"].flags.keys()


@pytest.mark.parametrize(
    ("methods", "change", "message"),
    [
        (
            ["clm_detour"],
            {"budget": {"minutes": 1}},
            "clm_detour needs a budget in tokens, which its two stages share",
        ),
        ({"dapt": None, "clm_detour": {"after": "dapt"}}, {}, "that no method of the plan trained. Remove `after`"),
        (
            ["clm_detour"],
            {"pretraining": {"lr_scheduler_type": "cosine"}},
            "lr_scheduler_type must be left out, because clm_detour has its own",
        ),
        (["replay", "dapt"], {"general": None}, "replay needs general text, but `general` is not set"),
        (["domain_words"], {"general": None}, "domain_words needs general text, but `general` is not set"),
        (
            ["average", "tapt"],
            {},
            "average needs a method to start from, but the default, dapt, is not in the plan",
        ),
        (["tapt_after_dapt"], {}, "tapt_after_dapt needs a method to start from, but the default, dapt"),
    ],
)
def test_rows_that_a_plan_cannot_have(variants, tmp_path, methods, change, message):
    with pytest.raises(ValueError) as error:
        load_plan(write_plan(variants | {"methods": methods} | change, tmp_path))
    assert message in str(error.value)


def test_words_are_added_to_no_other_encoder_along_a_chain(variants, tmp_path):
    """The entries of the plan's encoder would read foreign rows of another one."""
    (tmp_path / "other").mkdir()
    variants["methods"] = {"theirs": {"recipe": "dapt", "encoder": "other"}, "adalm": {"after": "theirs"}}
    with pytest.raises(
        ValueError, match=r"methods: adalm: after must be left out, because adalm expands .* from other"
    ):
        load_plan(write_plan(variants, tmp_path))
    variants["methods"]["theirs"] = {"recipe": "dapt"}
    assert load_plan(write_plan(variants, tmp_path)).methods["adalm"].after == "theirs"


def test_encoders_that_cannot_be_averaged_are_refused_before_the_first_run(variants, tmp_path):
    for name, sentences in (("encoder", SENTENCES), ("same", SENTENCES), ("other", ["other words", *SENTENCES])):
        save_tiny_bert(tmp_path / name, sentences)
    for name in ("same", "other"):
        variants["methods"] = {"theirs": {"recipe": "dapt", "encoder": name}, "average": {"after": "theirs"}}
        plan = load_plan(write_plan(variants, tmp_path))
        if name == "same":
            check_encoders(plan, list_steps(plan, tmp_path / "plan"))
            continue
        with pytest.raises(ValueError, match="other: a row that averages needs an encoder with the vocabulary and the"):
            check_encoders(plan, list_steps(plan, tmp_path / "plan"))


def test_a_row_names_another_one_to_start_from(variants, tmp_path):
    variants["methods"] = {"dapt": None, "control": None, "average": {"after": "control"}, "gmap": None}
    plan = load_plan(write_plan(variants, tmp_path))
    assert {name: method.after for name, method in plan.methods.items() if method.after} == {
        "average": "control", "gmap": "dapt"
    }  # fmt: skip


def test_words_have_the_random_ones_as_counterpart(variants, tmp_path):
    plan = load_plan(write_plan(variants, tmp_path))
    pairs = {("domain_words", "random_words"), ("keywords", "random_words"), ("random_words", "dapt")}
    assert pairs <= {*plan.list_pairs()} and ("domain_words", "dapt") in plan.list_pairs()
    assert all(RECIPES[row].counterpart in RECIPES for row in VARIANTS)


def test_a_change_of_the_general_text_is_noticed(variants, tmp_path):
    def list_addresses():
        plan = load_plan(write_plan(variants, tmp_path))
        return {job.name: job.address for job in list_jobs(plan, tmp_path / "plan") if "-on-" not in job.name}

    before = list_addresses()
    (tmp_path / "general.txt").write_text("\n".join(SENTENCES[5:]))
    after = list_addresses()
    changed = {name.partition("-")[0] for name in before if before[name] != after[name]}
    assert changed == {"replay", "domain_words", "keywords", "random_words"}


def test_a_family_without_causal_attention_is_refused_before_the_first_run(variants, tmp_path):
    variants["methods"] = ["clm_detour"]
    (tmp_path / "encoder").mkdir()
    save_tiny_bert(tmp_path / "encoder", SENTENCES)
    config = tmp_path / "encoder" / "config.json"
    config.write_text(json.dumps(read_json(config) | {"model_type": "deberta-v2"}))
    plan = load_plan(write_plan(variants, tmp_path))
    with pytest.raises(ValueError, match="an encoder whose attention can be made causal"):
        check_encoders(plan, list_steps(plan, tmp_path / "plan"))


def test_a_vote_fine_tunes_the_encoder_of_another_row(variants, tmp_path, monkeypatch):
    pytest.importorskip("tantivy")
    variants["methods"] = {"dapt": None, "vote": None, "plain_vote": {"recipe": "fine_tune"}}
    variants["methods"]["plain_vote"]["fine_tuning"] = {"nearest_vote": True}
    steps = list_by_name(variants, tmp_path)
    seed = load_plan(write_plan(variants, tmp_path)).seeds[0]
    dapt, vote, plain = (steps[name] for name in steps if name.endswith(f"seed{seed}"))
    assert vote.needs == dapt.needs and vote.flags == {
        **dapt.flags,
        "nearest_vote": True,
        "output_dir": vote.flags["output_dir"],
    }
    assert plain.flags["nearest_vote"] and plain.flags["model_name_or_path"] == "encoder"
    monkeypatch.setattr(row_checks, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="nearest_vote needs tantivy, which is not installed"):
        load_plan(write_plan(variants, tmp_path))


def test_the_nearest_text_of_a_tiny_plan_trains(variants, tmp_path, monkeypatch):
    pytest.importorskip("tantivy")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    save_tiny_bert(tmp_path / "encoder", SENTENCES)
    variants["methods"] = {"nearest": {"datastore": {"max_length": 32}}}
    plan = load_plan(write_plan(variants | {"budget": {"tokens": 640}}, tmp_path))
    monkeypatch.chdir(tmp_path)
    mains = {"build_datastore": build_datastore.main, "select_text": select_text.main, "mlm": run_mlm.main}
    for step in list_steps(plan, tmp_path / "plan"):
        if step.kind in ("datastore", "selection", "pretraining"):
            write_step_text(step, plan, tmp_path / "plan")
            monkeypatch.setattr(sys, "argv", [step.command, *step.list_arguments()])
            mains[step.command]()
    lines = (tmp_path / "plan/steps/nearest-text-animals/nearest.jsonl").read_text().splitlines()
    own = (tmp_path / "plan/texts/animals.txt").read_text().splitlines()
    assert [json.loads(line)["text"] for line in lines][: len(set(own))] == list(dict.fromkeys(own))
    assert read_json(tmp_path / "plan/steps/nearest-animals/trainer_state.json")["global_step"] == 10


def test_a_tiny_plan_of_the_rows_trains(variants, tmp_path, monkeypatch):
    save_tiny_bert(tmp_path / "encoder", SENTENCES)
    # More than 5 of each word, some of them rarer in general text.
    (tmp_path / "general.txt").write_text("\n".join([*SENTENCES[:40], *["the mat sat on the mat on the hill"] * 40]))
    variants["methods"] = ["dapt", "mask_30", "domain_words", "clm_detour", "replay"]
    monkeypatch.chdir(tmp_path)
    losses = {}
    for step in list_by_name(variants | {"budget": {"tokens": 640}}, tmp_path).values():
        if step.kind in ("trunk", "pretraining"):
            flags = {**step.flags}
            losses[step.name] = run_script(run_mlm.main, monkeypatch, flags.pop("output_dir"), **flags)["train_loss"]
    assert len(losses) == 6 and len({*losses.values()}) == 6
    assert json.loads((tmp_path / "plan/steps/clm_detour-pets/trainer_state.json").read_text())["global_step"] == 10

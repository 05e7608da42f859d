"""The rows that a plan may name: how their commands differ from DAPT's, and a tiny plan of them that really runs."""

import pytest
from pretended_runs import SENTENCES, write_plan
from script_runs import run_script, save_tiny_bert

from hf_domain.comparison.checks import check_step_flags
from hf_domain.comparison.prepare import load_plan
from hf_domain.comparison.rows import INSTEAD, RECIPES
from hf_domain.comparison.steps import name_steps
from hf_domain.examples import run_mlm

VARIANTS = {
    "tapt_after_dapt": None,
    "masked": {"recipe": "dapt", "pretraining": {"mlm_probability": 0.3}},
    "replay": {"recipe": "dapt", "pretraining": {"mix": "general.txt:0.1"}},
    "own_warmup": {"recipe": "dapt", "pretraining": {"warmup_steps": None}},
}


@pytest.fixture
def variants(content):
    content["methods"] = {"no_adaptation": None, "dapt": None, **VARIANTS}
    del content["tasks"]["entities"]
    return content


def list_by_name(content, folder):
    return {step.name: step for step in name_steps(load_plan(write_plan(content, folder)), folder / "plan")}


def test_commands_differ_from_dapt_as_the_rows_say(variants, tmp_path):
    steps = list_by_name(variants, tmp_path)
    check_step_flags(steps.values())
    dapt = steps["dapt-pets"].flags

    def find_changes(name):
        flags = steps[name].flags
        assert flags["max_steps"] == dapt["max_steps"]
        return {flag: flags.get(flag) for flag in {*flags, *dapt} if flags.get(flag) != dapt.get(flag)}

    assert find_changes("masked-pets") == {"mlm_probability": 0.3}
    assert find_changes("replay-pets") == {"mix": "general.txt:0.1"}
    assert find_changes("own_warmup-pets") == {"warmup_steps": None}  # null leaves the command its default
    changes = find_changes("tapt_after_dapt-animals")
    assert changes == {"model_name_or_path": "{root}/steps/dapt-pets", "train_file": "{root}/texts/animals.txt"}


def test_new_words_are_left_out_of_tasks_with_entities(content, tmp_path):
    """Also by what starts from such an encoder, but not by an exBERT, nor where the plan says otherwise."""
    content["methods"] = {
        "dapt": None,
        "adalm": None,
        "adalm_paper": {"recipe": "adalm", "fine_tuning": {"tokenizer_name": None}},
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


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        (["tapt_after_dapt"], "tapt_after_dapt needs a method to start from, but the default, dapt"),
        (["mask_30"], "mask_30 is none any more. Use {recipe: dapt, pretraining: {mlm_probability: 0.3}}"),
    ],
)
def test_rows_that_a_plan_cannot_have(variants, tmp_path, methods, message):
    with pytest.raises(ValueError) as error:
        load_plan(write_plan(variants | {"methods": methods}, tmp_path))
    assert message in str(error.value)


def test_rows_of_earlier_versions_are_explained_or_renamed(variants, tmp_path, caplog):
    assert not {*INSTEAD} & {*RECIPES} and {row for row, _ in INSTEAD.values()} <= {*RECIPES}
    variants["methods"] = {"fine_tune": None, "dapt": {"counterpart": "control"}, "control": None}
    variants["methods"]["own"] = {"recipe": "fine_tune", "after": "control"}
    plan = load_plan(write_plan(variants, tmp_path))
    assert [*plan.methods] == ["no_adaptation", "dapt", "general_text", "own"]
    assert plan.methods["dapt"].control == "general_text" and plan.methods["own"].after == "general_text"
    assert "counterpart of a plan is now called control" in caplog.text


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


def test_a_row_names_another_one_to_start_from(variants, tmp_path):
    variants["methods"] = {"dapt": None, "general_text": None, "gmap": None, "vote": {"after": "general_text"}}
    plan = load_plan(write_plan(variants, tmp_path))
    assert {name: row.after for name, row in plan.methods.items() if row.after} == {
        "gmap": "dapt", "vote": "general_text"
    }  # fmt: skip


def test_a_vote_fine_tunes_the_encoder_of_another_row(variants, tmp_path):
    pytest.importorskip("tantivy")
    variants["methods"] = {"dapt": None, "vote": None, "plain_vote": {"recipe": "no_adaptation"}}
    variants["methods"]["plain_vote"]["fine_tuning"] = {"nearest_vote": True}
    steps = list_by_name(variants, tmp_path)
    seed = load_plan(write_plan(variants, tmp_path)).seeds[0]
    dapt, vote, plain = (steps[name] for name in steps if name.endswith(f"seed{seed}"))
    assert vote.needs == dapt.needs and vote.flags == {**dapt.flags, "nearest_vote": True}
    assert plain.flags["nearest_vote"] and plain.flags["model_name_or_path"] == "encoder"


def test_a_tiny_plan_of_the_rows_trains(variants, tmp_path, monkeypatch):
    save_tiny_bert(tmp_path / "encoder", SENTENCES)
    (tmp_path / "general.txt").write_text("\n".join([*SENTENCES[:40], *["the mat sat on the mat on the hill"] * 40]))
    variants["methods"] = {"dapt": None, "masked": VARIANTS["masked"], "replay": VARIANTS["replay"]}
    monkeypatch.chdir(tmp_path)
    losses = {}
    for step in list_by_name(variants | {"budget": {"tokens": 640}}, tmp_path).values():
        if step.kind == "pretraining":
            losses[step.name] = run_script(run_mlm.main, monkeypatch, f"{step.name}-model", **step.flags)["train_loss"]
    assert len(losses) == 3 and len({*losses.values()}) == 3

"""The four strategies as lists of steps, and what counts as done."""

import json
from pathlib import Path

import pytest
from tiny_models import make_masked_lm

from hf_domain.training.orders import (
    begin_step,
    describe_strategy,
    fingerprint_checkpoint,
    finish_step,
    make_plan,
)

STEPS = {"teacher_steps": 50, "student_steps": 31}


def plan(strategy, **options):
    return make_plan(strategy, **({"teacher": "large", "output_dir": "out"} | STEPS | options))


def list_runs(steps):
    """(kind, what it starts from, what teaches it, where it ends, corpus, steps)."""
    return [(s.kind, s.model, s.teacher, s.output_dir, s.corpus, s.steps) for s in steps]


def test_the_four_strategies():
    assert list_runs(plan("from_scratch")) == [
        ("make", None, "large", "out/from_scratch/student", None, 0),
        ("adapt", "out/from_scratch/student", None, "out/from_scratch/adapted", "domain", 31),
    ]
    folder = "out/distill_then_adapt"
    assert list_runs(plan("distill_then_adapt")) == [
        ("make", None, "large", f"{folder}/student", None, 0),
        ("distill", f"{folder}/student", "large", f"{folder}/distilled", "general", 16),
        ("adapt", f"{folder}/distilled", None, f"{folder}/adapted", "domain", 15),
    ]
    folder = "out/adapt_then_distill"
    assert list_runs(plan("adapt_then_distill")) == [
        ("adapt", "large", None, "out/adapted-teacher", "domain", 50),
        ("make", None, "out/adapted-teacher", f"{folder}/student", None, 0),
        ("distill", f"{folder}/student", "out/adapted-teacher", f"{folder}/adapted-distilled", "domain", 31),
    ]
    folder = "out/adapt_and_distill"
    assert list_runs(plan("adapt_and_distill", masked_lm_steps=7)) == [
        ("adapt", "large", None, "out/adapted-teacher", "domain", 50),
        ("make", None, "large", f"{folder}/student", None, 0),
        ("distill", f"{folder}/student", "large", f"{folder}/distilled", "general", 11),
        ("adapt", f"{folder}/distilled", None, f"{folder}/adapted", "domain", 10),
        ("distill", f"{folder}/adapted", "out/adapted-teacher", f"{folder}/adapted-distilled", "domain", 10),
        ("adapt", f"{folder}/adapted-distilled", None, f"{folder}/masked-lm", "domain", 7),
    ]


@pytest.mark.parametrize("strategy", ["from_scratch", "distill_then_adapt", "adapt_then_distill", "adapt_and_distill"])
def test_student_steps_are_the_same_in_every_strategy(strategy):
    steps = plan(strategy)
    assert sum(step.steps for step in steps if "student" in (step.model or "") or strategy in step.output_dir) == 31


@pytest.mark.parametrize("student", [None, "small"])
@pytest.mark.parametrize("strategy", ["from_scratch", "distill_then_adapt", "adapt_then_distill", "adapt_and_distill"])
def test_every_model_gets_the_new_rows_once(strategy, student):
    """Along each chain of checkpoints exactly one step expands; a student made of an adapted teacher has the rows."""
    steps = plan(strategy, expand=True, student=student, masked_lm_steps=3)
    expanded = {"large": 0, "small": 0}
    for step in steps:
        expanded[step.output_dir] = expanded[step.model or step.teacher] + step.expand
        if step.kind == "distill":
            assert expanded[step.model] == expanded[step.teacher]
    assert expanded[steps[-1].output_dir] == 1


def test_bad_plans():
    with pytest.raises(ValueError, match=r"must be one of from_scratch, .*, but is 'distill'"):
        plan("distill")
    with pytest.raises(ValueError, match="divides them among 3 steps, but is 2"):
        plan("adapt_and_distill", student_steps=2)
    with pytest.raises(ValueError, match="adapts the teacher, but is 0"):
        plan("adapt_then_distill", teacher_steps=0)


@pytest.fixture
def steps(tmp_path):
    """A plan whose teacher is a checkpoint on disk."""
    make_masked_lm("bert").save_pretrained(tmp_path / "large")
    return plan("adapt_then_distill", teacher=str(tmp_path / "large"), output_dir=str(tmp_path / "out"))


def run(step, **settings):
    """A step as a script runs it; what it trains does not matter here."""
    if begin_step(step, settings):
        make_masked_lm("bert").save_pretrained(step.output_dir)
        finish_step(step)
        return True
    return False


def test_done_steps_are_skipped(steps):
    assert [run(step, seed=1) for step in steps] == [True] * 3
    assert [run(step, seed=1) for step in steps] == [False] * 3
    assert describe_strategy(steps).count("[done]") == 3


def test_killed_step_runs_again(steps):
    assert begin_step(steps[0], {"seed": 1})
    assert "[done]" not in describe_strategy(steps)
    assert run(steps[0], seed=1)
    with pytest.raises(
        ValueError, match=r"adapted-teacher must have been made with the same options, but has seed 1, now 2"
    ):
        begin_step(steps[0], {"seed": 2})


def test_step_from_another_base(steps):
    for step in steps:
        run(step)
    weights = Path(steps[0].output_dir, "model.safetensors").read_bytes()
    make_masked_lm("bert").save_pretrained(steps[0].output_dir)  # another adapted teacher under the same name
    assert weights != Path(steps[0].output_dir, "model.safetensors").read_bytes()
    assert not run(steps[0])
    with pytest.raises(ValueError, match=r"must start from .*adapted-teacher as it is now"):
        run(steps[1])


def test_missing_output(steps):
    for step in steps[:2]:
        run(step)
    Path(steps[0].output_dir, "model.safetensors").unlink()
    with pytest.raises(ValueError, match="adapted-teacher lacks them"):
        run(steps[0])
    with pytest.raises(ValueError, match=r"adapted-teacher lacks them\. Delete the folder"):
        run(steps[2])


def test_no_error_advises_deleting_a_teacher(tmp_path):
    """A folder that no step made may hold weights of another format."""
    make_masked_lm("bert").config.save_pretrained(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(ValueError, match=r"lacks them\. Save it by save_pretrained\.$"):
        fingerprint_checkpoint(str(tmp_path))


def test_fingerprint(tmp_path):
    assert fingerprint_checkpoint("org/name") == "org/name"
    model = make_masked_lm("bert")
    for name in ("one", "two"):
        model.save_pretrained(tmp_path / name)
    assert fingerprint_checkpoint(tmp_path / "one") == fingerprint_checkpoint(tmp_path / "two")
    config = json.loads((tmp_path / "two" / "config.json").read_text())
    (tmp_path / "two" / "config.json").write_text(json.dumps(config | {"layer_norm_eps": 1e-5}))
    assert fingerprint_checkpoint(tmp_path / "one") != fingerprint_checkpoint(tmp_path / "two")

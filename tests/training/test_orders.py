"""The four strategies as lists of steps."""

import pytest

from hf_domain.training.orders import make_plan

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
    with pytest.raises(ValueError, match="but is -4"):
        plan("from_scratch", student_steps=-4)
    with pytest.raises(ValueError, match="adapts the teacher, but is 0"):
        plan("adapt_then_distill", teacher_steps=0)

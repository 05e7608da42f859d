"""What a dry run says."""

from hf_domain.comparison.run import describe_work


def test_missing_steps_are_counted_by_row_and_kind(load, run_plan, tmp_path):
    methods = {"no_adaptation": None, "dapt": None}
    told = describe_work(load(methods=methods), tmp_path / "plan")
    lines = [line.split() for line in told.splitlines()]
    assert told.startswith("13 steps are missing:") and "This plan can see differences of about" in told
    # Held-out losses, fine-tunings, pre-trainings.
    assert ["DAPT", "4", "1"] in lines and ["no", "adaptation", "4"] in lines and ["shared", "4"] in lines
    assert ["steps", "4", "8", "1"] in lines
    run_plan(methods=methods)
    told = describe_work(load(methods=methods), tmp_path / "plan")
    assert told == f"No step is missing: hf-domain compare {tmp_path / 'plan.yaml'} writes the report."


def test_a_plan_that_compares_nothing_tells_no_difference(content, tmp_path, load):
    content["methods"] = {"tapt": None}
    told = describe_work(load(), tmp_path / "plan")
    assert "steps" in told and "This plan can" not in told

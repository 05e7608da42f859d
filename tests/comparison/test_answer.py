"""What a report begins with."""

import json
import random
import shlex

import pytest
from pretended_runs import SENTENCES, pretend, run_comparison, write_plan
from script_runs import write_jsonl

from hf_domain.comparison.plan_loading import load_plan
from hf_domain.comparison.report import write_report
from hf_domain.examples import compare
from hf_domain.training.run_files import LABELS, format_labels

ROWS = {"fine_tune": None, "control": None, "dapt": None, "varmae": None, "gmap": {"after": "dapt"}}


@pytest.fixture
def answer(content, tmp_path):
    """Run a plan of three tasks whose rows are right as often as is said, and return its report and its text."""
    texts = [{"text": f"{text} {i}", "label": text.split()[1]} for i, text in enumerate(SENTENCES * 3)]
    for task in ("a", "b", "c"):
        (tmp_path / task).mkdir()
        for split in ("train", "validation", "test"):
            write_jsonl(tmp_path / task / f"{split}.jsonl", texts)
    content["tasks"] = {task: {"kind": "classification", "folder": task, "corpus": "pets"} for task in "abc"}

    def answer(seeds=(1, 2, 3), **rates):
        def run(step, plan, folder):
            pretend(step, plan, folder)
            if step.kind == "fine_tuning":
                rows = [json.loads(line) for line in (plan.folder / step.flags["test_file"]).open()]
                numbers, rate = random.Random(step.name), rates.get(step.method, 0.6)
                right = [numbers.random() < rate for _ in rows]
                labels = [
                    row["label"] if r else numbers.choice(["cat", "dog"]) for row, r in zip(rows, right, strict=True)
                ]
                (folder / LABELS).write_text(format_labels(labels))

        content["methods"], content["seeds"] = dict(ROWS), list(seeds)
        run_comparison(load_plan(write_plan(content, tmp_path)), tmp_path / "plan", execute=run)
        report = write_report(tmp_path / "plan")
        return report, (tmp_path / "plan" / "report.md").read_text().split("\n\n")

    return answer


def test_a_row_that_is_surely_better_is_recommended(answer):
    report, (_, first, costs, command, models, limit, *_) = answer(varmae=0.85)
    difference = report.decisions["varmae", "dapt"]
    assert len(report.decisions) == 5  # the counterpart of G-MAP and of VarMAE is DAPT, that of DAPT is general text
    assert first == (
        f"**Use VarMAE: {difference.mean:+.1f} points (mean of 3 tasks, 95 % interval {difference.low:+.1f} to "
        f"{difference.high:+.1f}, p &lt; 0.001 corrected for 5 comparisons) over DAPT.**"
    )
    losses = report.losses["VarMAE"]["general"], report.losses["the encoder as it was"]["general"]
    assert "It costs 1,024 tokens" in costs and f"from {losses[1]:.3f} to {losses[0]:.3f}" in costs
    assert command.startswith("The command: hf-domain mlm --method varmae --model_name_or_path encoder")
    assert models.startswith("Best fine-tuned model by validation: plan/steps/")
    assert limit.startswith("This plan shows a true difference of ")


def test_dapt_is_recommended_where_nothing_is_surely_better(answer):
    report, (_, first, *_) = answer(fine_tune=0.4, dapt=0.75, varmae=0.75, gmap=0.75, control=0.4)
    difference = report.decisions["fine_tune", "dapt"]
    assert first.startswith(f"**Use DAPT: {-difference.mean:+.1f} points (mean of 3 tasks, 95 % interval")
    assert first.endswith("over fine-tuning only. No other method is surely better than it.**")


def test_where_nothing_decides_it_says_how_many_seeds_would(answer):
    _, (_, first, largest, *_) = answer(seeds=(1, 2), varmae=0.63)
    assert first == ("**Nothing is decided. Use fine-tuning only: no row is surely better, and it costs the least.**")
    assert " differs most from DAPT: " in largest
    assert "seeds instead of 2 a true difference of this size would show." in largest or "larger test sets" in largest


def test_single_tasks_decide_nothing(answer):
    """No p stands beside a task, and no sentence counts where a row is better."""
    _, paragraphs = answer(varmae=0.85)
    (scores,) = [text for number, text in enumerate(paragraphs) if paragraphs[number - 1] == "## Scores"]
    (means,) = [text for number, text in enumerate(paragraphs) if paragraphs[number - 1] == "## Means over the tasks"]
    assert " p " not in scores and " p " in means
    assert "better on" not in "".join(paragraphs)


def test_command_of_the_answer_is_one(answer, monkeypatch):
    """It parses: what made an encoder is in the folder of the comparison."""
    from hf_domain.comparison.step_checks import check_flags
    from hf_domain.comparison.steps import Step

    report, _ = answer(varmae=0.85)
    for command in report.commands.values():
        _, name, *arguments = shlex.split(shlex.join(command))
        flags = {flag.removeprefix("--"): value for flag, value in zip(arguments[::2], arguments[1::2], strict=True)}
        check_flags([Step("it", "pretraining", name, flags)])


def test_terminal_ends_with_the_answer(answer, tmp_path, monkeypatch, capsys):
    answer(varmae=0.85)
    monkeypatch.setattr("sys.argv", ["compare.py", str(tmp_path / "plan.yaml"), "--report_only"])
    compare.main()
    *_, first, _, _, _, _ = capsys.readouterr().out.splitlines()
    assert first.startswith("Use VarMAE: ")


def test_dry_run_prints_what_the_plan_can_see(content, tmp_path, monkeypatch, capsys):
    path = write_plan(content, tmp_path)
    monkeypatch.setattr("sys.argv", ["compare.py", str(path), "--dry_run"])
    compare.main()
    assert capsys.readouterr().out.splitlines()[-1].startswith("This plan can see differences of about ")

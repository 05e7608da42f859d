"""What a report begins with."""

import json
import random
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from pretended_runs import SENTENCES, pretend, run_comparison, write_plan
from script_runs import write_jsonl

from hf_domain.comparison import answer as module
from hf_domain.comparison.answer import rank_validation
from hf_domain.comparison.plan_loading import load_plan
from hf_domain.comparison.report import write_report
from hf_domain.comparison.results import write_result
from hf_domain.comparison.statistics import Difference
from hf_domain.comparison.summary import find_unjudged
from hf_domain.examples import compare
from hf_domain.tasks.outputs import LABELS, format_labels
from hf_domain.tasks.scores import Predictions

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


def test_a_significantly_better_row_is_recommended(answer, tmp_path, monkeypatch, capsys):
    report, paragraphs = answer(varmae=0.85)
    _, first, floors, costs, folder, command, models, limit, *_ = paragraphs
    difference = report.decisions["varmae", "dapt"]
    assert len(report.decisions) == 5  # the counterpart of G-MAP and of VarMAE is DAPT, that of DAPT is general text
    assert first == (
        f"**Use VarMAE: {difference.mean:+.1f} points (mean of 3 tasks, 95 % interval {difference.low:+.1f} to "
        f"{difference.high:+.1f}, p &lt; 0.001 corrected for 5 comparisons) over DAPT.**"
    )
    assert floors.startswith("Without any training, on a the vote of the nearest texts scores 100.0 and VarMAE ")
    losses = report.losses["VarMAE"]["general"], report.losses["the encoder as it was"]["general"]
    assert "It costs 1,024 tokens" in costs and f"from {losses[1]:.3f} to {losses[0]:.3f}" in costs
    assert folder == "To train it from the plan's encoder, run in the folder of plan.yaml:"
    assert command.startswith("```bash\nhf-domain mlm --method varmae --model_name_or_path encoder")
    assert models.startswith("Best fine-tuned model by validation: plan/steps/")
    assert limit.startswith("This plan shows a true difference of ")
    assert limit.endswith("trained once; another seed may change the order: `pretraining_seeds: [1, 2, 3]`.")
    several = replace(report, plan=report.plan | {"pretraining_seeds": [1, 2]})
    assert "trained once" not in module.describe_power(several)
    # No p stands beside a task, and no sentence counts where a row is better.
    (scores,) = [text for number, text in enumerate(paragraphs) if paragraphs[number - 1] == "## Scores"]
    (means,) = [text for number, text in enumerate(paragraphs) if paragraphs[number - 1] == "## Means over the tasks"]
    assert " p " not in scores and " p " in means
    assert "better on" not in "".join(paragraphs)
    # The terminal ends with the same answer.
    monkeypatch.setattr("sys.argv", ["compare.py", str(tmp_path / "plan.yaml"), "--report_only"])
    compare.main()
    *_, first, _, _, _, _, _, _ = capsys.readouterr().out.splitlines()
    assert first.startswith("Use VarMAE: ")


def test_what_a_row_forgets_is_no_mean_with_a_row_of_its_recipe(content, tmp_path):
    content["methods"] = {"fine_tune": None, "dapt": None, "slow": {"recipe": "dapt"}}
    content["corpora"]["plants"] = content["corpora"]["pets"]
    for corpora in (("pets", "pets"), ("pets", "plants")):
        for task, corpus in zip(("animals", "entities"), corpora, strict=True):
            content["tasks"][task]["corpus"] = corpus
        run_comparison(load_plan(write_plan(content, tmp_path)), tmp_path / "plan", execute=pretend)
        report = write_report(tmp_path / "plan")
        losses = [report.losses[f"DAPT ({corpus})"]["general"] for corpus in {*corpora}]
        text = module.describe_costs("dapt", report)
        assert text.endswith(f"from {report.losses['the encoder as it was']['general']:.3f} to {np.mean(losses):.3f}.")


def test_dapt_is_recommended_where_nothing_is_significantly_better(answer):
    report, (_, first, *_) = answer(fine_tune=0.4, dapt=0.75, varmae=0.75, gmap=0.75, control=0.4)
    difference = report.decisions["fine_tune", "dapt"]
    assert first.startswith(f"**Use DAPT: {-difference.mean:+.1f} points (mean of 3 tasks, 95 % interval")
    assert first.endswith("over fine-tuning only. No other method is significantly better.**")


def test_without_dapt_nothing_is_called_significant(content, tmp_path):
    content["methods"] = {"fine_tune": None, "varmae": None}
    run_comparison(load_plan(write_plan(content, tmp_path)), tmp_path / "plan", pretend)
    write_report(tmp_path / "plan")
    text = (tmp_path / "plan" / "report.md").read_text()
    assert "Nothing is decided." in text and "without the row dapt no difference is tested" in text
    assert "significantly better" not in text.partition("## ")[0]


def test_where_nothing_decides_it_says_how_many_seeds_would(answer):
    _, (_, first, largest, *_) = answer(seeds=(1, 2), varmae=0.63)
    assert first == (
        "**Nothing is decided. Use fine-tuning only: no row is significantly better, and it is the cheapest.**"
    )
    assert " scores highest against DAPT: " in largest
    assert (
        "seeds instead of 2, the plan could detect a difference of this size." in largest
        or "larger test sets" in largest
    )


def test_a_cheaper_row_that_scores_lower_is_not_recommended():
    def choose(mean, **seconds):
        unsure = Difference(("a",), mean, mean - 2.0, mean + 2.0, p=0.3, freedom=np.inf)
        report = SimpleNamespace(
            titles={"dapt": "DAPT", "adalm": "AdaLM"},
            scores={"dapt": {"a": [50.0]}, "adalm": {"a": [50.0 + mean]}},
            unlearned={"dapt": 0, "adalm": 0},
            unjudged={},
            decisions={("adalm", "dapt"): unsure},
            costs={method: {"pre-training s": each} for method, each in seconds.items()},
            plan={"budget": {"tokens": 1000}, "evaluation": "fine_tuning", "seeds": [1, 2], "pretraining_seeds": [1]},
            draws={},
            smaller=[],
        )
        return module.choose(report)

    chosen, lines = choose(-0.9, adalm=1.0, dapt=2.0)
    assert chosen == "dapt" and lines[0] == (
        "Nothing is decided. Use DAPT: no row is significantly better, and of those that score as high as DAPT, it is "
        "the cheapest."
    )
    chosen, lines = choose(0.1, adalm=1.0, dapt=2.0)
    assert chosen == "adalm" and lines[0].endswith("no row is significantly better, and it is the cheapest.")


def test_an_unfinished_comparison_says_so_first(answer, tmp_path):
    answer(varmae=0.85)
    for file in tmp_path.glob("plan/results/gmap-*-seed*.json"):
        file.unlink()
    for file in tmp_path.glob("plan/results/varmae-c-*.json"):
        file.unlink()
    report = write_report(tmp_path / "plan")
    _, first, second, *_ = (tmp_path / "plan" / "report.md").read_text().split("\n\n")
    missing = "results are missing for 1 of 5 rows; VarMAE on c. The answer may change."
    assert first == f"**This comparison is not finished: {missing}**" and second.startswith("Use VarMAE: ")
    text = (tmp_path / "plan" / "report.md").read_text()
    assert "| G-MAP" not in text and "Without results so far, and left out: G-MAP after DAPT." in text
    assert report.costs["gmap"] == {}


def test_a_probe_does_not_judge_a_row_that_has_the_states_of_another(content, tmp_path):
    content |= {"evaluation": "probe", "methods": {"fine_tune": None, "dapt": None, "varmae": None}}

    def run(step, plan, folder):
        pretend(replace(step, name=step.name.replace("varmae-", "fine_tune-")), plan, folder)

    run_comparison(load_plan(write_plan(content, tmp_path)), tmp_path / "plan", execute=run)
    report = write_report(tmp_path / "plan")
    text = (tmp_path / "plan" / "report.md").read_text()
    assert report.unjudged == {"varmae": "fine_tune"} and report.decisions["varmae", "dapt"] is None
    assert report.decisions["fine_tune", "dapt"].corrected == pytest.approx(
        min(1, 2 * report.decisions["fine_tune", "dapt"].p)  # Holm's family has it all the same
    )
    assert ", not judged: the states of fine-tuning only |" in text and "A probe cannot judge VarMAE (" in text
    assert "varmae" not in [method for method, _ in rank_validation(report)]


@pytest.mark.parametrize(("share", "is_judged"), [(1.0, False), (0.99, False), (0.95, True)])
def test_rounding_does_not_make_a_row_judged(share, is_judged):
    def predict(count):
        rows = [[0]] * count + [[1]] * (1000 - count)
        return SimpleNamespace(predictions=Predictions("macro_f1", ["cat", "dog"], [[0]] * 1000, rows))

    rows = {name: {"recipe": name, "after": None} for name in ("fine_tune", "varmae", "dapt")}
    runs = {("fine_tune", "a", "1"): predict(1000), ("varmae", "a", "1"): predict(int(1000 * share))}
    found = find_unjudged({"methods": rows, "evaluation": "probe"}, runs)
    assert found == ({} if is_judged else {"varmae": "fine_tune"})


def test_rows_are_ranked_by_validation_alone(content, tmp_path):
    content |= {"evaluation": "probe", "methods": {"fine_tune": None, "dapt": None, "tapt": None}}
    results = run_comparison(load_plan(write_plan(content, tmp_path)), tmp_path / "plan", execute=pretend)
    scores = {}
    for result in results:
        if result.step.kind == "fine_tuning":
            scores.setdefault(result.step.method, []).append(result.validation.score().compute())
            write_result(tmp_path / "plan", replace(result, predictions=results[-1].predictions, score=50.0))
    report = write_report(tmp_path / "plan")
    ranked = rank_validation(report)
    assert ranked == sorted(ranked, key=lambda item: -item[1])
    assert dict(ranked) == pytest.approx({method: sum(own) / 2 for method, own in scores.items()})
    method, mean = ranked[0]
    _, _, table = (tmp_path / "plan" / "report.md").read_text().partition("## Validation scores\n\n")
    assert table.splitlines()[2].startswith(f"| {report.titles[method]} | {mean:.1f} | ")
    assert f"On the validation sets these rows lead: {report.titles[method]} {mean:.1f}, " in "\n".join(
        module.answer(report)
    )


def make_curve(slope, noise):
    """Pretend three budgets, at each of which a row is some points better than DAPT."""
    numbers, reports = np.random.default_rng(0), []
    for number, tokens in enumerate((1000, 2000, 4000)):
        own = 50 + slope * number + noise * numbers.normal(size=2001)
        draws = {"varmae": {"a": {(1, None): own}}, "dapt": {"a": {(1, None): np.full(2001, 50.0)}}}
        plan = {"tasks": {"a": {}}, "budget": {"tokens": tokens}}
        reports.append(
            SimpleNamespace(plan=plan, draws=draws, titles={"dapt": "DAPT"}, smaller=[], decisions={0: None})
        )
    reports[-1].smaller = reports[:-1]
    return reports[-1]


def test_where_nothing_decides_it_says_how_many_tokens_would():
    difference = Difference(("a",), 2.0, 2.0 - 1.96, 2.0 + 1.96, p=0.05, freedom=np.inf)
    rivals = {"varmae": difference}
    threshold = module.find_threshold(difference, 1)
    assert threshold == pytest.approx(1.96 + 1.2816, abs=0.01)
    text = module.describe_tokens(rivals, make_curve(slope=1.0, noise=0.01))
    needed = int(re.search(r"at this rate about ([\d,]+) tokens would decide", text)[1].replace(",", ""))
    assert "by +1.0 points with each doubling" in text and needed == pytest.approx(
        4000 * 2 ** (threshold - 2), rel=0.01
    )
    assert "that more tokens would decide is not shown" in module.describe_tokens(rivals, make_curve(0.1, 1.0))
    assert "16 times the tokens would not decide" in module.describe_tokens(rivals, make_curve(0.1, 0.001))
    single = make_curve(1.0, 0.01)
    single.smaller = []
    assert "`budget: {tokens: [4000, 8000, 20000]}`" in module.describe_tokens(rivals, single)


def test_dry_run_prints_what_the_plan_can_see(content, tmp_path, monkeypatch, capsys):
    path = write_plan(content, tmp_path)
    monkeypatch.setattr("sys.argv", ["compare.py", str(path), "--dry_run"])
    compare.main()
    assert capsys.readouterr().out.splitlines()[-1].startswith("This plan can see differences of about ")

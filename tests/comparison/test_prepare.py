"""What a comparison makes of the files of a task."""

import json

import pytest
from pretended_runs import pretend, run_comparison
from script_runs import write_jsonl

from hf_domain.comparison.checks import check_step_flags
from hf_domain.comparison.prepare import drop_repeated, load_plan, split_table
from hf_domain.comparison.report import write_report
from hf_domain.comparison.steps import name_steps, put_root
from hf_domain.tasks.kind import PLAN_KINDS
from hf_domain.tasks.outputs import LABELS, format_labels
from hf_domain.training.run_folder import METRICS


@pytest.mark.parametrize("kind", ["classification", "pairs", "ner", "qa"])
def test_a_table_is_split_without_texts_that_are_in_two_parts(tmp_path, kind, caplog):
    """One row of a repeated text is left, and none if its labels differ."""

    def make(text, label):
        return {
            "classification": {"text": text, "label": label},
            "pairs": {"premise": "the same", "hypothesis": text, "label": label},
            "ner": {"tokens": text.split(), "tags": ["O", label]},
            "qa": {"context": text, "question": "which?", "answers": {"text": [label], "answer_start": [0]}},
        }[kind]

    rows = [make(f"{name} {number}", name) for number in range(20) for name in ("cat", "dog")]
    rows += [make(f"cat {number}", "cat") for number in range(10)] + [make("dog 3", "cat")]
    write_jsonl(tmp_path / "table.jsonl", rows)
    folder = split_table(tmp_path / "table.jsonl", tmp_path / "task")
    parts = [(folder / f"{split}.jsonl").read_text().splitlines() for split in ("train", "validation", "test")]
    left = [json.dumps(json.loads(line), sort_keys=True) for part in parts for line in part]
    assert sorted(left) == sorted({json.dumps(row, sort_keys=True) for row in rows[:40] if row != make("dog 3", "dog")})
    assert all(parts) and len(left) == 39
    assert "12 of 51 rows of" in caplog.text
    write_jsonl(tmp_path / "doubtful.jsonl", [make("cat 3", label) for label in ("cat", "dog")])
    with pytest.raises(ValueError, match=r"each text of .* has several"):
        split_table(tmp_path / "doubtful.jsonl", tmp_path / "never")


@pytest.mark.parametrize(
    ("kind", "rows", "kept"),
    [
        ("multi_label", [{"text": "a", "label": ["x", "y"]}, {"text": "a", "label": ["y", "x"]}], 1),
        ("multi_label", [{"text": "a", "label": ["x"]}, {"text": "a", "label": []}], 0),
        ("regression", [{"text": "a", "score": 1, "label": "x"}, {"text": "a", "score": 1, "label": "y"}], 1),
        ("regression", [{"text": "a", "score": 1}, {"text": "a", "score": 2}], 0),
        ("ner", [{"text": ["a"], "tags": ["O"]}, {"text": ["a"], "tags": ["B-x"]}, {"text": ["b"], "tags": ["O"]}], 1),
    ],
)
def test_repeated_texts_are_one_item_and_none_where_labels_differ(kind, rows, kept):
    assert len(drop_repeated(rows, PLAN_KINDS[kind], ["text"])) == kept


@pytest.mark.parametrize("names", [None, ["x", "y", "z"]])
def test_lists_of_zeros_and_ones_become_lists_of_names(content, tmp_path, names, load):
    """A plan reads them as `fine_tune` does; each step then reads names."""
    (tmp_path / "several").mkdir()
    for split in ("train", "validation", "test"):
        lists = [[number % 2, 1 - number % 2, int(number % 3 > 0)] for number in range(12)]
        rows = [{"text": f"{split} {number}", "label": label} for number, label in enumerate(lists)]
        write_jsonl(tmp_path / "several" / f"{split}.jsonl", rows)
    options = {} if names is None else {"class_names": names}
    content["tasks"] = {"several": {"folder": "several", "options": options}}
    content |= {"methods": ["no_adaptation"], "general": None, "seeds": [1]}
    del content["corpora"]["general"]
    plan = load()
    check_step_flags(name_steps(plan, tmp_path / "plan"))
    train = plan.folder / plan.tasks["several"].get_file("train")
    for row in map(json.loads, train.read_text().splitlines()):
        number = int(row["text"].split()[1])
        expected = [name for name, is_set in zip("012", lists[number], strict=True) if is_set]
        assert row["label"] == [names[int(name)] for name in expected] if names else row["label"] == expected
    assert load_plan(tmp_path / "plan.yaml").tasks == plan.tasks

    def run(step, plan, folder):
        if step.kind != "fine_tuning":
            return pretend(step, plan, folder)
        (folder / METRICS).write_text('{"predict_runtime": 1.0}')
        rows = (plan.folder / put_root(step.flags["test_file"], "plan")).read_text().splitlines()
        (folder / LABELS).write_text(format_labels(json.dumps(json.loads(row)["label"]) for row in rows))

    run_comparison(plan, tmp_path / "plan", run)
    report = write_report(tmp_path / "plan")
    assert report.failed == {} and report.scores["no_adaptation"]["several"] == {"1": 100}
    content["tasks"]["several"]["options"] = {"class_names": ["x"]}
    with pytest.raises(ValueError, match="a name for each of the 3 values of label, but has 1: x"):
        load()

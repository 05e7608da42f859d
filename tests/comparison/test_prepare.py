"""Cross-validation: each item is tested once, by a model that has not seen it, and counts once."""

import json
from collections import Counter

import numpy as np
import pytest
from pretended_runs import get_result, pretend, run_comparison, write_plan
from script_runs import write_jsonl
from sklearn.metrics import f1_score

from hf_domain.comparison.checks import check_step_flags
from hf_domain.comparison.prepare import drop_repeated, load_plan, split_folds, split_table
from hf_domain.comparison.report import write_report
from hf_domain.comparison.results import read_results
from hf_domain.comparison.steps import name_steps, put_root
from hf_domain.tasks.outputs import LABELS, format_labels
from hf_domain.tasks.scores import count_examples
from hf_domain.tasks.trivial_baselines import MAJORITY
from hf_domain.training.run_files import METRICS

ITEM = "one two three four five six seven eight nine ten"


@pytest.fixture
def folded(content, tmp_path):
    """A plan of a task with three folds, whose files repeat each other, and one without."""
    texts = [f"{text} {number}" for number, text in enumerate(["a cat", "a dog", "a bird"] * 12)]
    rows = [{"text": text, "label": text.split()[1]} for text in texts]
    rows += [{"text": ITEM, "label": "cat"}, {"text": "two labels", "label": "cat"}]
    rows += [{"text": "two labels", "label": "dog"}, rows[0]]
    for split, part in (("train", rows[:30]), ("validation", rows[30:35]), ("test", rows[35:])):
        write_jsonl(tmp_path / "animals" / f"{split}.jsonl", part)
    content["tasks"]["animals"]["folds"] = 3
    content["methods"] = {"no_adaptation": None, "dapt": None, "tapt": None}
    return content


def read_fold(plan, task, split, fold):
    file = plan.folder / plan.tasks[task].get_file(split, fold)
    return [json.loads(line)["text"] for line in file.read_text().splitlines()]


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


def test_each_item_is_tested_once_and_not_trained_on(folded, tmp_path):
    plan = load_plan(write_plan(folded, tmp_path))
    tested = []
    for fold in (1, 2, 3):
        train, validation, test = (
            set(read_fold(plan, "animals", split, fold)) for split in ("train", "validation", "test")
        )
        assert validation and not train & validation and not (train | validation) & test
        assert len(train | validation | test) == 37
        tested += test
    assert sorted(tested) == sorted({f"a {name} {n}" for n, name in enumerate(["cat", "dog", "bird"] * 12)} | {ITEM})
    assert count_examples(plan.tasks["animals"], plan.fine_tuning, plan.folder) == 37
    times = {file: file.stat().st_mtime_ns for file in (tmp_path / "plan" / "data").rglob("*")}
    assert load_plan(tmp_path / "plan.yaml").tasks == plan.tasks
    assert times == {file: file.stat().st_mtime_ns for file in (tmp_path / "plan" / "data").rglob("*")}


def test_labels_are_spread_evenly_and_contexts_stay_together():
    labels = ["a"] * 60 + ["b"] * 25 + ["c"] * 10
    rows = [{"text": str(number), "label": label} for number, label in enumerate(labels)]
    for parts in split_folds(rows, "classification", 5):
        assert Counter(row["label"] for row in parts["test"]) == {"a": 12, "b": 5, "c": 2}
        assert Counter(row["label"] for row in parts["validation"]) == {"a": 5, "b": 2, "c": 1}
    several = [{"text": str(n), "label": ["often", *["rare"] * (n % 10 == 0)]} for n in range(100)]
    for parts in split_folds(several, "multi_label", 5):
        assert Counter(label for row in parts["test"] for label in row["label"]) == {"often": 20, "rare": 2}
    questions = [{"context": f"c{n // 3}", "question": str(n)} for n in range(90)]
    for parts in split_folds(questions, "qa", 3):
        contexts = [{row["context"] for row in parts[split]} for split in ("train", "validation", "test")]
        assert all(contexts) and len(set.union(*contexts)) == sum(map(len, contexts)) == 30


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
    assert len(drop_repeated(rows, kind, ["text"])) == kept


@pytest.mark.parametrize(("folds", "names"), [(None, None), (None, ["x", "y", "z"]), (2, None)])
def test_lists_of_zeros_and_ones_become_lists_of_names(content, tmp_path, folds, names, load):
    """A plan reads them as `fine_tune` does; each step then reads names."""
    (tmp_path / "several").mkdir()
    for split in ("train", "validation", "test"):
        lists = [[number % 2, 1 - number % 2, int(number % 3 > 0)] for number in range(12)]
        rows = [{"text": f"{split} {number}", "label": label} for number, label in enumerate(lists)]
        write_jsonl(tmp_path / "several" / f"{split}.jsonl", rows)
    options = {} if names is None else {"class_names": names}
    content["tasks"] = {"several": {"folder": "several", "folds": folds, "options": options}}
    content |= {"methods": ["no_adaptation"], "general": None, "seeds": [1]}
    del content["corpora"]["general"]
    plan = load()
    check_step_flags(name_steps(plan, tmp_path / "plan"))
    train = plan.folder / plan.tasks["several"].get_file("train", plan.tasks["several"].list_folds()[0])
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


def test_out_of_fold_predictions_are_scored_as_one_test_set(folded, tmp_path):
    run_comparison(load_plan(write_plan(folded, tmp_path)), tmp_path / "plan", execute=pretend)
    report = write_report(tmp_path / "plan")
    assert report.failed == {}
    assert report.scores["dapt"]["animals"].keys() == {"42-1", "42-2"}
    results = read_results(tmp_path / "plan")
    gold, predicted = [], []
    for fold in (1, 2, 3):
        part = results[f"dapt-animals-fold{fold}-seed2"].predictions
        gold += [part.labels[row[0]] for row in part.gold]
        predicted += [part.labels[row[0]] for row in part.predicted]
    assert len(gold) == 37
    joined = 100 * f1_score(gold, predicted, average="macro")
    assert report.scores["dapt"]["animals"]["42-2"] == pytest.approx(joined)
    parts = [results[f"dapt-animals-fold{fold}-seed2"].score for fold in (1, 2, 3)]
    assert abs(joined - np.mean(parts)) > 0.01  # the mean of the folds is another number
    # No class is the most frequent of every training part, and the majority is joined over the folds as well.
    constant = 100 * f1_score(gold, ["cat"] * 37, average="macro", zero_division=0)
    assert report.floors[MAJORITY]["animals"] == pytest.approx(constant)
    get_result(tmp_path / "plan", "dapt-animals-fold2-seed2").unlink()
    report = write_report(tmp_path / "plan")
    assert report.scores["dapt"]["animals"].keys() == {"42-1"}  # a fold is missing: no score of all items


def test_a_row_made_of_the_task_is_not_tested_on_its_folds(folded, tmp_path):
    folded["methods"]["more"] = {"recipe": "dapt", "after": "tapt"}
    plan = load_plan(write_plan(folded, tmp_path))
    steps = name_steps(plan, tmp_path / "plan")
    check_step_flags(steps)
    tested = {step.method for step in steps if step.task == "animals" and step.kind == "fine_tuning"}
    assert tested == {"no_adaptation", "dapt"}
    assert {step.method for step in steps if step.task == "entities" and step.kind == "fine_tuning"} == {*plan.methods}
    assert not [step.name for step in steps if step.name == "tapt-animals"]
    folded["methods"] = {"tapt": {"tasks": ["animals"]}, "dapt": None}
    with pytest.raises(
        ValueError, match=r"tapt trains on the texts of the task, but folds test all of them. Remove it from animals"
    ):
        load_plan(write_plan(folded, tmp_path))


def test_corpus_is_without_the_items(folded, tmp_path):
    """Ten running words are too many, nine are not; case and punctuation do not hide them."""
    documents = [
        f"Before. {ITEM.title()}, after!",
        f"before {ITEM[:-4]}",
        "something else of some more words than ten it has",
    ]
    (tmp_path / "corpus.txt").write_text("\n".join(documents))
    (tmp_path / "general.txt").write_text("\n".join(documents[::-1]))
    plan = load_plan(write_plan(folded, tmp_path))
    for name, kept in (("pets", documents[1:]), ("general", documents[:0:-1])):
        lines = (tmp_path / plan.corpora[name].train_file).read_text().splitlines()
        assert [json.loads(line)["text"] for line in lines] == kept
    (tmp_path / "corpus.txt").write_text(documents[0])
    with pytest.raises(ValueError, match=r"corpora: pets: .* but all 1 share some"):
        load_plan(tmp_path / "plan.yaml")
    folded["tasks"]["animals"]["folds"] = None
    assert load_plan(write_plan(folded, tmp_path)).corpora["pets"].train_file == "corpus.txt"


def test_steps_of_folds_have_files_and_caches_of_their_own(folded, tmp_path):
    folded["methods"] = {"dapt": None, "gmap": {"after": "dapt"}}
    folded |= {"learning_rates": [1e-4, 2e-4], "seeds": [1]}
    plan = load_plan(write_plan(folded, tmp_path))
    steps = {step.name: step for step in name_steps(plan, tmp_path / "plan")}
    second = steps["gmap-animals-fold2-seed1"]
    assert (second.fold, second.task) == (2, "animals")
    assert put_root(second.flags["train_file"], "plan") == plan.tasks["animals"].get_file("train", 2)
    assert second.flags["memory_cache"] == "{root}/memories/gmap-animals-fold2"
    assert {"gmap-animals-fold2-rate0.0001", "gmap-animals-fold2-rate0.0002"} <= {*second.needs}


@pytest.mark.parametrize(
    ("folds", "rows", "message"),
    [
        (1, [], "folds must be at least 2, but is 1"),
        (2.5, [], "folds must be a valid integer, but is 2.5"),
        (
            3,
            [{"text": "rare", "label": "cow"}],
            "each of 3 folds must have what .* testing need, but .* but cow does not",
        ),
    ],
)
def test_what_folds_need(folded, tmp_path, folds, rows, message):
    with (tmp_path / "animals" / "train.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    folded["tasks"]["animals"]["folds"] = folds
    with pytest.raises(ValueError, match=message):
        load_plan(write_plan(folded, tmp_path))


def test_one_file_is_enough(folded, tmp_path):
    for split in ("validation", "test"):
        (tmp_path / "animals" / f"{split}.jsonl").unlink()
    assert count_examples((plan := load_plan(write_plan(folded, tmp_path))).tasks["animals"], {}, plan.folder) == 30

"""Tasks of sentence embeddings in a comparison."""

import sys

import numpy as np
import pytest
from pretended_runs import get_result, pretend, run_comparison, write_plan
from script_runs import save_tiny_bert
from sentence_tasks import make_texts, write_pairs, write_search

from hf_domain.comparison import checks
from hf_domain.comparison.checks import check_step_flags
from hf_domain.comparison.prepare import load_plan
from hf_domain.comparison.report import write_report
from hf_domain.comparison.steps import name_steps
from hf_domain.examples import run_sentences
from hf_domain.safe_io import read_json
from hf_domain.tasks.files import Task, write_task_text
from hf_domain.tasks.outputs import LABELS, VALIDATED, format_labels
from hf_domain.tasks.scores import Predictions
from hf_domain.tasks.trivial_baselines import MAJORITY, SEARCH, score_floors, search_words
from hf_domain.training.run_files import METRICS


@pytest.fixture
def content(content, tmp_path):
    """A plan of a similarity and a retrieval, which are found beside it."""
    write_pairs(tmp_path / "pairs"), write_search(tmp_path / "search")
    content["tasks"] = {
        "pairs": {"kind": "similarity", "folder": "pairs", "corpus": "pets"},
        "search": {"folder": "search", "corpus": "pets"},
    }
    content["methods"] = {"no_adaptation": None, "dapt": None}
    content["fine_tuning"] |= {"max_seq_length": 32, "early_stopping_patience": 2}
    return content


def list_scored(content, tmp_path):
    steps = name_steps(load_plan(write_plan(content, tmp_path)), tmp_path / "plan")
    check_step_flags(steps)
    return {step.name: step for step in steps if step.kind == "fine_tuning"}


def test_kinds_metrics_and_flags_of_training(content, tmp_path, load):
    plan = load()
    assert {name: (task.kind, task.metric) for name, task in plan.tasks.items()} == {
        "pairs": ("similarity", "spearman"),
        "search": ("retrieval", "ndcg_at_10"),
    }
    steps = list_scored(content, tmp_path)
    assert {(step.command, step.seed) for step in steps.values()} == {("sentences", 1), ("sentences", 2)}
    pairs, search = steps["dapt-pairs-seed1"].flags, steps["dapt-search-seed2"].flags
    assert pairs["do_train"] and pairs["label_column_name"] == "score" and "do_regression" not in pairs
    assert [search[f"{name}_file"] for name in ("train", "validation", "test", "corpus", "queries")] == [
        *(f"search/qrels/{name}.tsv" for name in ("train", "dev", "test")),
        *(f"search/{name}.jsonl" for name in ("corpus", "queries")),
    ]


def test_what_tasks_of_sentences_cannot_have(content, tmp_path, monkeypatch, refuse):
    monkeypatch.setattr(checks, "explain_missing", lambda: "sentence embeddings need sentence-transformers")
    content["tasks"]["search"]["folds"] = 3
    content["methods"] |= {"rada": None, "vote": None}
    rows = (tmp_path / "pairs" / "test.jsonl").read_text()
    (tmp_path / "pairs" / "test.jsonl").write_text(rows + '{"sentence1": "a", "sentence2": "b", "score": "high"}\n')
    error = refuse()
    for part in (
        "tasks: pairs: sentence embeddings need sentence-transformers",
        "tasks: pairs: a column must have values of one type, but score is 'high' in line 13 of pairs/test.jsonl",
        "tasks: search: folds must be left out, because a retrieval task is tested on the queries of qrels/test.tsv",
        "methods: rada: rada needs tasks of the kinds classification, multi_label, regression, ner, qa, but has "
        "retrieval",
        "methods: vote: vote needs tasks of the kinds classification, multi_label, regression, but",
    ):
        assert part in error, part


def test_a_retrieval_needs_training_data(tmp_path, refuse):
    (tmp_path / "search" / "qrels" / "train.tsv").unlink()
    assert "tasks: search: there is no file train.tsv" in refuse()


def test_problems_of_the_files_of_a_retrieval(tmp_path, load):
    table = tmp_path / "search" / "qrels" / "test.tsv"
    for text, problem in (
        (None, "there is no file test.tsv"),
        (
            "query-id\tcorpus-id\tscore\n3\tlost\t1\n",
            "passage of test.tsv must be in corpus.jsonl, but lost is not",
        ),
        ("3\td3\t1\n", "the first line of test.tsv must name the columns"),
    ):
        table.unlink() if text is None else table.write_text(text)
        with pytest.raises(ValueError, match="nothing was run") as error:
            load()
        assert problem in str(error.value)


def test_scores_of_queries_are_resampled_as_their_mean():
    predictions = Predictions("ndcg_at_10", [], [], [], scores=[1.0, 0.5, 0.0])
    again = Predictions.from_json(predictions.to_json())
    assert again == predictions and again.score().compute() == pytest.approx(50)
    weights = np.array([[2, 1, 0], [0, 0, 3]])
    np.testing.assert_allclose(again.score().compute(weights), [100 * 2.5 / 3, 0])


def test_floor_of_a_retrieval_is_a_search_by_words(tmp_path):
    passages = {"a": "red cat", "b": "blue dog", "c": "old tree"}
    queries = [
        {"id": "1", "query": "dog", "relevant": ["b"]},  # found first
        {"id": "2", "query": "milk", "relevant": ["c"]},  # not found
        {"id": "3", "query": "red cat tree", "relevant": ["c"]},  # found second
    ]
    assert search_words(queries, passages, "mrr_at_10") == pytest.approx(100 * (1 + 0 + 1 / 2) / 3)
    assert search_words(queries, passages, "ndcg_at_10") == pytest.approx(100 * (1 + 0 + 1 / np.log2(3)) / 3)
    write_search(tmp_path)
    floors = score_floors(Task(str(tmp_path), "retrieval", "", "ndcg_at_10"), {}, tmp_path)
    assert floors[MAJORITY] == 0 and 20 < floors[SEARCH] <= 100


def test_adapting_to_a_retrieval_reads_queries_and_their_passages(tmp_path):
    write_search(tmp_path / "search")
    write_task_text("retrieval", tmp_path / "search" / "qrels" / "train.tsv", tmp_path / "text.txt")
    texts = make_texts(40, seed=9)
    lines = (tmp_path / "text.txt").read_text().splitlines()
    assert lines[:2] == [" ".join(texts[0].split()[:3]), f"a title {texts[0]} {texts[39]}"] and len(lines) == 18


def test_comparison_of_real_scores(content, tmp_path, monkeypatch, load):
    """The scores of the report are those of the evaluators; pre-training is pretended by a second encoder."""
    save_tiny_bert(tmp_path / "encoder", make_texts(80))
    content |= {"general": None, "seeds": [1]}
    content["methods"] = {"no_adaptation": None}
    plan = load()

    def run(step, plan, folder):
        if step.kind != "fine_tuning":
            return pretend(step, plan, folder)
        monkeypatch.chdir(tmp_path)
        flags = step.list_arguments("plan")
        monkeypatch.setattr(sys, "argv", ["run_sentences.py", *flags])
        run_sentences.main()

    run_comparison(plan, tmp_path / "plan", run)
    report = write_report(tmp_path / "plan")
    assert report.failed == {}
    for task, metric in (("pairs", "spearman"), ("search", "ndcg_at_10")):
        result = read_json(get_result(tmp_path / "plan", f"no_adaptation-{task}-seed1"))
        assert result["score"] == pytest.approx(100 * result["metrics"][f"predict_{metric}"], abs=1e-3)
        assert result["floors"][MAJORITY] == 0 and {"predictions", "validation"} <= result.keys()
        models = list((tmp_path / "plan" / "steps").glob(f"no_adaptation-{task}*/model.safetensors"))
        assert len(models) == 1  # the best, of one
    text = (tmp_path / "plan" / "report.md").read_text()
    assert "search (ndcg at 10)" in text and "cosine of their mean states" in text and SEARCH in text


def test_report_pairs_rows_query_by_query(content, run_plan):
    """Rows that differ by the same on every query differ for sure."""
    better = {"no_adaptation": 0.2, "dapt": 0.3}

    def run(step, plan, folder):
        if step.kind != "fine_tuning":
            return pretend(step, plan, folder)
        (folder / METRICS).write_text('{"predict_runtime": 1.0, "trainable_parameters": 1}')
        scores = [better[step.method] + number / 20 for number in range(9)]
        lines = [json_line(score) if step.task == "search" else str(score) for score in scores]
        count = {"pairs": 12, "search": 9}[step.task]
        (folder / LABELS).write_text(format_labels((lines * 2)[:count]))
        (folder / VALIDATED).write_text(format_labels((lines * 2)[: {"pairs": 10, "search": 9}[step.task]]))

    content["general"] = None
    content["tasks"] = {"search": content["tasks"]["search"]}
    report = run_plan(run)
    difference = report.decisions["no_adaptation", "dapt"]
    assert difference.mean == pytest.approx(-10) and difference.high == pytest.approx(-10)


def json_line(score):
    return f'{{"passages": [], "ndcg_at_10": {score}, "mrr_at_10": {score}}}'

"""Tasks of sentence embeddings: pairs to train on; tests/training/test_sentences.py has the scores."""

from sentence_tasks import write_search

from hf_domain.tasks import sentences
from hf_domain.tasks.retrieval import read_queries


def test_a_pair_trains_by_its_score_and_a_query_by_the_others(tmp_path):
    task = sentences.SimilarityTask(["one", "two"], "score")
    rows = [
        {"one": "a", "two": "b", "score": 1},
        {"one": "c", "two": None, "score": 3},
        {"one": "", "two": "d", "score": 5},
    ]
    assert task.make_pairs(rows).to_dict() == {
        "text1": ["a", "c", ""],
        "text2": ["b", "", "d"],
        "score": [0.0, 0.5, 1.0],
    }
    rows = [row for _, row in read_queries(write_search(tmp_path) / "qrels" / "train.tsv")]
    pairs = sentences.RetrievalTask({}).make_pairs(rows)
    assert len(pairs) == 9 + 3 and pairs[1] == {"query": rows[0]["query"], "passage": rows[0]["passages"][1]}

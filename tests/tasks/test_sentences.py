"""Tasks of sentence embeddings: pairs to train on; tests/training/test_sentences.py has the scores."""

from hf_domain.tasks import sentences


def test_a_pair_trains_by_its_score_and_a_query_by_the_others():
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
    rows = [{"query": "a", "passages": ["b", "c"]}, {"query": "d", "passages": ["e"]}]
    assert sentences.RetrievalTask({}).make_pairs(rows).to_dict() == {
        "query": ["a", "a", "d"],
        "passage": ["b", "c", "e"],
    }

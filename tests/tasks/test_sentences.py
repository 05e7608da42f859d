"""Tasks of sentence embeddings: pairs to train on; tests/training/test_sentences.py has the scores."""

from datasets import Dataset
from sentence_tasks import make_texts, write_search

from hf_domain.data.files import load_files
from hf_domain.tasks.sentences import Search, Similarity, load_texts


def test_a_pair_may_have_an_empty_text():
    rows = Dataset.from_dict({"one": ["a", "c", ""], "two": ["b", None, "d"], "score": [1, 3, 5]})
    assert Similarity(["one", "two"], "score").make_pairs(rows).to_dict() == {
        "text1": ["a", "c", ""],
        "text2": ["b", "", "d"],
        "score": [1.0, 3.0, 5.0],
    }


def test_a_title_stands_before_its_text_and_a_query_with_each_of_its_passages(tmp_path):
    folder, texts = write_search(tmp_path), make_texts(40, seed=9)
    corpus, queries = (load_texts(str(folder / f"{name}.jsonl")) for name in ("corpus", "queries"))
    assert (corpus["d0"], corpus["d1"]) == (f"a title {texts[0]}", texts[1])
    pairs = Search(corpus, queries).make_pairs(load_files(str(folder / "qrels" / "test.tsv")))
    query = " ".join(texts[18].split()[:3])
    assert pairs[0] == {"query": query, "passage": texts[18]} and pairs[1] == {"query": query, "passage": texts[21]}
    assert pairs[2]["query"] != query != pairs[3]["query"] != pairs[2]["query"]  # the other passage has a score of 0

"""Retrieval tasks in the layout of BEIR."""

from sentence_tasks import make_texts, write_search

from hf_domain.tasks.retrieval import load_texts, read_judgments, read_queries


def test_queries_with_their_passages(tmp_path):
    folder, texts = write_search(tmp_path / "search"), make_texts(40, seed=9)
    passages, queries = (load_texts(folder / f"{name}.jsonl") for name in ("corpus", "queries"))
    rows = read_queries(folder / "qrels" / "test.tsv", passages, queries)
    assert [row["id"] for row in rows] == [str(number) for number in range(18, 27)]
    assert rows[0] == {
        "id": "18",
        "query": " ".join(texts[18].split()[:3]),
        "relevant": ["d18", "d21"],
        "passages": [texts[18], texts[21]],
    }
    assert rows[1]["relevant"] == ["d19"]  # the other has a score of 0


def test_a_title_stands_before_its_text(tmp_path):
    corpus = load_texts(write_search(tmp_path) / "corpus.jsonl")
    texts = make_texts(40, seed=9)
    assert (corpus["d0"], corpus["d1"]) == (f"a title {texts[0]}", texts[1])


def test_judgments_as_windows_writes_them_and_repeated_ones(tmp_path):
    table = tmp_path / "test.tsv"
    lines = ["\ufeffquery-id\tcorpus-id\tscore", "q\ta\t1", "q\ta\t2", "q\tb\t0", "r\tb\t-1", "", "s\tb\t0.5"]
    table.write_text("\r\n".join(lines), encoding="utf-8", newline="")
    assert read_judgments(table) == {"q": ["a"], "s": ["b"]}

"""Equal to Lucene: terms, and the ten best passages with their scores.

lucene/, beside this file, has the program that made the golden files. The English passages are the corpus of the demo,
the queries are citation contexts of ACL-ARC (examples/quickstart_data/NOTICE.md), and the Chinese texts are our own.
"""

import gzip
from pathlib import Path

import pytest

from hf_domain.datastore.analysis import ANALYZERS, Analyzer
from hf_domain.datastore.tantivy_index import TantivyIndex, write_index

FOLDER = Path(__file__).parent / "lucene"
CORPUS = Path(__file__).parents[2] / "examples/quickstart_data/corpus.txt.gz"


def read_lines(name):
    return (FOLDER / name).read_text(encoding="utf-8").split("\n")[:-1]


def read_reference(name):
    """Terms and the hits, as pairs of number and score, for each query."""
    for line in read_lines(name):
        terms, _, hits = line.partition("\t")
        pairs = [hit.split(":") for hit in hits.split()]
        yield terms.split(), [int(number) for number, _ in pairs], [float(score) for _, score in pairs]


def read_passages(language):
    if language == "chinese":
        return read_lines("chinese_passages.txt")
    with gzip.open(CORPUS, "rt", encoding="utf-8") as lines:
        return [line.rstrip("\n") for line in lines]


@pytest.mark.parametrize("analyzer", ANALYZERS)
def test_terms_of_odd_texts(analyzer):
    for text, (terms, _, _) in zip(read_lines("odd_texts.txt"), read_reference(f"odd_{analyzer}.tsv"), strict=True):
        assert Analyzer(analyzer)(text) == terms


@pytest.mark.parametrize(
    ("language", "analyzer", "name", "least_overlap"),
    [
        ("english", "english", "english.tsv", 0.99),
        ("english", "standard", "standard.tsv", 0.99),
        ("chinese", "cjk", "chinese.tsv", 1.0),
    ],
)
def test_terms_and_ten_best(tmp_path, language, analyzer, name, least_overlap):
    pytest.importorskip("tantivy")
    write_index(tmp_path / "index", Analyzer(analyzer), enumerate(read_passages(language)))
    index = TantivyIndex(tmp_path / "index", Analyzer(analyzer))
    queries, references = read_lines(f"{language}_queries.txt"), list(read_reference(name))
    assert len(queries) == len(references) >= 80
    assert [index.analyzer(query) for query in queries] == [terms for terms, _, _ in references]

    overlaps = []
    for (ids, scores), (_, best, best_scores) in zip(index.search(queries, 10), references, strict=True):
        assert len(ids) == len(best)
        overlaps.append(len(set(ids) & set(best)) / len(best) if best else 1.0)
        # Lucene leaves out the factor k1 + 1, which changes no order; Elasticsearch has it.
        assert [score / 2.2 for score in scores] == pytest.approx(best_scores, rel=1e-3)
    assert sum(overlaps) / len(overlaps) >= least_overlap

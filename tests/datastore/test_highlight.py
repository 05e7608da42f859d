import re

import pytest
from datasets import Dataset
from tiny_tokenizers import SENTENCES, make_bert_tokenizer

from hf_domain.datastore import build_datastore
from hf_domain.datastore.highlight import BOLD, RESET, format_text, read_passages

pytest.importorskip("tantivy")

TEXTS = [
    "The methodologies of small models, and their limits.",
    "A model of the lungs.",
    "Unrelated words\x1b[31m\nhere",
    "合同应当采用书面形式。",
]


@pytest.fixture
def datastore(tmp_path):
    documents = Dataset.from_dict({"text": TEXTS, "name": ["a", "b", "c", "d"]})
    tokenizer = make_bert_tokenizer([*SENTENCES, *TEXTS])
    return build_datastore(documents, tmp_path / "store", tokenizer, id_column="name")


def cut(passage):
    return [passage.text[start:end] for start, end in passage.spans]


def test_words_in_common_are_marked(datastore):
    reading = read_passages(datastore, "the Methodology of modeling limits")
    ((ids, scores),) = datastore.search(["the Methodology of modeling limits"])
    assert [passage.id for passage in reading.passages] == ids == [0, 1]
    assert [passage.score for passage in reading.passages] == scores
    assert [passage.document_id for passage in reading.passages] == ["a", "b"]
    assert [cut(passage) for passage in reading.passages] == [["methodologies", "models", "limits"], ["model"]]
    assert read_passages(datastore, "models", k=1).passages[0].id == 1


def test_pairs_of_characters_are_marked_as_one(tmp_path):
    tokenizer = make_bert_tokenizer([*SENTENCES, *TEXTS])
    documents = Dataset.from_dict({"text": TEXTS})
    datastore = build_datastore(documents, tmp_path / "store", tokenizer, analyzer="cjk")
    (passage,) = read_passages(datastore, "采用书面合同").passages
    assert cut(passage) == ["合同", "采用书面"]


def test_weights_above_the_average_take_the_place_of_words(datastore):
    weights = {0: [(24, 30, 0.2), (0, 3, 1.0), (1, 5, 0.8), (31, 33, 0.0)]}
    first, second = read_passages(datastore, "methodology models", weights=weights).passages
    assert first.spans == [(0, 5)] and cut(second) == ["model"]


def test_terminal(datastore):
    weights = {0: [(0, 3, 1.0), (4, 17, 0.5), (24, 30, 0.4)]}
    reading = read_passages(datastore, "methodology models", weights=weights)
    marked = format_text(reading)
    # The second passage is not the chosen one.
    assert re.findall(rf"{re.escape(BOLD)}(.*?){re.escape(RESET)}", marked) == ["The", "model"]
    plain = format_text(reading, use_bold=False)
    assert marked.replace(BOLD, "").replace(RESET, "") == plain and TEXTS[0] in plain
    score = reading.passages[0].score
    assert plain.splitlines()[2] == f"1. passage 0, document a, score {score:.2f}, chosen by the model"
    assert "chosen by the model" not in format_text(read_passages(datastore, "methodology models"))
    # A passage cannot command the terminal.
    harmless = format_text(read_passages(datastore, "unrelated\x1b"), use_bold=False)
    assert "Unrelated words [31m here" in harmless and "\x1b" not in harmless


def test_uniform_reading_marks_nothing(datastore):
    weights = {0: [(0, 3, 0.01), (4, 17, 0.01), (24, 30, 0.01)]}
    chosen, other = format_text(read_passages(datastore, "methodology models", weights=weights)).split("2. passage")
    assert BOLD not in chosen and BOLD in other
    assert BOLD in format_text(read_passages(datastore, "methodology models"))

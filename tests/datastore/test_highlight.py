import html
import re

import pytest
from datasets import Dataset
from tiny_tokenizers import SENTENCES, make_bert_tokenizer

from hf_domain.datastore import build_datastore
from hf_domain.datastore.highlight import BOLD, RESET, Span, format_section, format_text, read_passages

pytest.importorskip("tantivy")

TEXTS = [
    'The methodologies of small models, and <b>their</b> "limits" & uses.',
    "A model of the lungs.",
    "Unrelated words\x1b[31m\nhere",
    "合同应当采用书面形式。",
]
EVIL = "</title><script>alert('x')</script> models &amp;"


@pytest.fixture
def datastore(tmp_path):
    documents = Dataset.from_dict({"text": TEXTS, "name": ["a", "<i>b</i>", "c", "d"]})
    tokenizer = make_bert_tokenizer([*SENTENCES, *TEXTS])
    return build_datastore(documents, tmp_path / "store", tokenizer, id_column="name")


def cut(passage):
    return [passage.text[span.start : span.end] for span in passage.spans]


def test_words_in_common_are_marked(datastore):
    reading = read_passages(datastore, "the Methodology of modeling limits")
    ((ids, scores),) = datastore.search(["the Methodology of modeling limits"])
    assert [passage.id for passage in reading.passages] == ids == [0, 1]
    assert [passage.score for passage in reading.passages] == scores
    assert [passage.document_id for passage in reading.passages] == ["a", "<i>b</i>"]
    assert [cut(passage) for passage in reading.passages] == [["methodologies", "models", "limits"], ["model"]]
    assert read_passages(datastore, "models", k=1).passages[0].id == 1


def test_pairs_of_characters_are_marked_as_one(tmp_path):
    tokenizer = make_bert_tokenizer([*SENTENCES, *TEXTS])
    documents = Dataset.from_dict({"text": TEXTS})
    datastore = build_datastore(documents, tmp_path / "store", tokenizer, analyzer="cjk")
    (passage,) = read_passages(datastore, "采用书面合同").passages
    assert cut(passage) == ["合同", "采用书面"]


def test_weights_take_the_place_of_words(datastore):
    weights = {0: [(24, 30, 0.2), (0, 3, 1.0), (1, 5, 0.4)]}
    first, second = read_passages(datastore, "methodology models", weights=weights).passages
    assert first.spans == [Span(0, 5, 1.0), Span(24, 30, 0.2)] and cut(second) == ["model"]


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


def test_page_escapes_all_text(datastore):
    page = format_section(read_passages(datastore, EVIL))
    assert "<script" not in page and "<b>" not in page and "<i>" not in page
    assert html.escape(EVIL) in page and "passage 1, document &lt;i&gt;b&lt;/i&gt;" in page
    texts = [html.unescape(re.sub("<[^>]+>", "", item)) for item in re.findall(r"</div>(.*?)</li>", page, re.S)]
    assert texts == [passage.text for passage in read_passages(datastore, EVIL).passages]
    assert "No passage has a word in common" in format_section(read_passages(datastore, "nothing"))


def test_page_shades_by_weight_above_the_average(datastore):
    def shade(weights):
        spans = [(0, 1, weights[0]), (2, 7, weights[1]), (8, 10, weights[2])]
        page = format_section(read_passages(datastore, "lungs", weights={1: spans}))
        return re.findall(r'rgba\(255, 200, 0, ([\d.]+)\)">(.*?)<', page)

    assert shade([5.0, 0.5, 0.5]) == [("1.00", "A")]
    assert shade([0.2, 0.5, 0.3]) == [("0.50", "model")]
    assert shade([0.3, 0.3, 0.3]) == []


def test_uniform_reading_marks_nothing(datastore):
    weights = {0: [(0, 3, 0.01), (4, 17, 0.01), (24, 30, 0.01)]}
    chosen, other = format_text(read_passages(datastore, "methodology models", weights=weights)).split("2. passage")
    assert BOLD not in chosen and BOLD in other
    assert BOLD in format_text(read_passages(datastore, "methodology models"))

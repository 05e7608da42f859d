"""Question answering: windows over long contexts, and answers from hand-made logits."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from datasets import Dataset, DatasetDict
from tiny_tokenizers import MAKERS, make_bert_tokenizer, make_tokenizer
from transformers import EvalPrediction

from hf_domain.data.files import load_files, locate_row
from hf_domain.tasks import find_kind
from hf_domain.tasks.question_answering import (
    QuestionAnswering,
    QuestionAnsweringArguments,
    check_questions,
    cut_windows,
    find_answers,
    tokenize_questions,
)

QUESTION = "which words are masked?"
CONTEXT = (
    "Masked language modeling predicts the hidden words. Continued pretraining helps when domain corpora are small, "
    "and the decoder is left out. The encoder reads domain text."
)


def make_examples(*answers):
    """One question for each answer; None has no answer."""
    found = [
        {"text": [], "answer_start": []}
        if answer is None
        else {"text": [answer], "answer_start": [CONTEXT.index(answer)]}
        for answer in answers
    ]
    return {
        "id": [f"q{number}" for number in range(len(answers))],
        "question": [f"  {QUESTION}"] * len(answers),
        "context": [CONTEXT] * len(answers),
        "answers": found,
    }


@pytest.mark.parametrize("kind", MAKERS)
def test_windows_are_cut_out_for_another_tokenizer(kind):
    examples = make_examples("hidden words", None)
    features = tokenize_questions(examples, make_tokenizer(kind), max_seq_length=48, doc_stride=12)
    questions, contexts = cut_windows(examples, features)
    assert questions == [QUESTION] * len(features["example_id"])
    assert len(set(contexts)) == len(contexts) / 2 > 1  # two questions about one text
    assert contexts[0] == CONTEXT[: len(contexts[0])] and CONTEXT.endswith(contexts[-1])
    for context, offsets in zip(contexts, features["offset_mapping"], strict=True):
        covered = [CONTEXT[slice(*offset)] for offset in offsets if offset is not None]
        assert context in CONTEXT
        assert "".join(context.split()) == "".join("".join(covered).split())


@pytest.mark.parametrize("kind", MAKERS)
def test_windows_cover_the_context_and_point_to_the_answer(kind):
    tokenizer = make_tokenizer(kind)
    answers = ["hidden words", "domain corpora ", "left out", None]
    features = tokenize_questions(make_examples(*answers), tokenizer, max_seq_length=48, doc_stride=12)
    seen = {f"q{number}": 0 for number in range(4)}
    covered = {question: set() for question in seen}
    for index, question in enumerate(features["example_id"]):
        offsets = features["offset_mapping"][index]
        assert len(features["input_ids"][index]) == len(offsets) <= 48
        covered[question] |= {position for offset in offsets if offset for position in range(*offset)}
        first, last = features["start_positions"][index], features["end_positions"][index]
        if first == 0:
            assert last == 0
            continue
        seen[question] += 1
        text = CONTEXT[offsets[first][0] : offsets[last][1]]
        # A token of a Unigram tokenizer may hold a full stop as well.
        assert text.strip(" .") == answers[int(question[1])].strip()
    assert all(seen[question] >= 1 for question in ("q0", "q1", "q2")) and seen["q3"] == 0
    letters = {position for position, character in enumerate(CONTEXT) if character != " "}
    assert all(positions >= letters for positions in covered.values())
    assert len(features["example_id"]) > 4


def test_windows_without_the_whole_answer_have_none():
    tokenizer = make_bert_tokenizer()
    features = tokenize_questions(make_examples(CONTEXT[:60]), tokenizer, max_seq_length=24, doc_stride=4)
    assert set(features["start_positions"]) == set(features["end_positions"]) == {0}


def test_questions_without_answers_have_no_labels():
    examples = make_examples(None)
    del examples["answers"]
    features = tokenize_questions(
        examples, make_bert_tokenizer(), max_seq_length=40, doc_stride=8, pad_to_max_length=True
    )
    assert "start_positions" not in features and {len(ids) for ids in features["input_ids"]} == {40}


def test_tokenizer_that_moves_the_start_token_is_refused():
    tokenizer = make_bert_tokenizer()
    tokenizer.padding_side = "left"
    with pytest.raises(
        ValueError, match="pads on the right, but the encoder's is BertTokenizer with padding_side=left"
    ):
        tokenize_questions(make_examples(None), tokenizer)


def test_a_question_that_leaves_no_room_is_left_out_and_named(caplog):
    tokenizer, kind = make_bert_tokenizer(), QuestionAnswering(QuestionAnsweringArguments())
    assert tokenize_questions(make_examples(None), tokenizer, max_seq_length=39, doc_stride=26)["input_ids"] == []
    examples = make_examples("hidden words", "left out", None)
    examples["question"][1] = "why " * 40
    rows = kind.read(DatasetDict(train=Dataset.from_dict(examples)))["train"]
    kind.args.max_seq_length, kind.args.doc_stride = 39, 8
    kind.use(tokenizer)
    windows = Dataset.from_dict(kind.tokenize(rows[:], does_train=True))
    assert {*windows["example_id"]} == {"q0", "q2"}
    kind.check_examples("train", rows, windows)
    assert caplog.messages[-1].startswith("1 of 3 questions of train are left out, because a question must leave room")
    assert caplog.messages[-1].endswith(": q1")
    logits = np.zeros((len(windows), 39))
    output, config = EvalPrediction((logits, logits), None), SimpleNamespace()
    assert [row["prediction"] != "" for row in kind.decode(output, rows, windows, config)] == [True, False, True]
    with pytest.raises(ValueError, match="but none of test does: q1"):
        kind.check_examples("test", rows.select([1]), windows.select([]))


# A zero-width space, a mark that turns the direction, a soft hyphen, a variation selector, a mark of byte order.
@pytest.mark.parametrize("mark", ["\u200b", "\u200f", "\xad", "\ufe0f", "\ufeff"])
@pytest.mark.parametrize("ends", [True, False])
def test_an_answer_may_begin_or_end_in_a_character_without_a_token(mark, ends):
    answer = f"hidden words{mark}" if ends else f"{mark}hidden words"
    context = CONTEXT.replace("hidden words", answer)
    examples = make_examples("hidden words") | {"context": [context]}
    examples["answers"] = [{"text": [answer], "answer_start": [context.index(answer)]}]
    features = tokenize_questions(examples, make_bert_tokenizer(), max_seq_length=48, doc_stride=12, drops_lost=True)
    shown = [index for index, first in enumerate(features["start_positions"]) if first]
    assert shown
    for index in shown:
        offsets = features["offset_mapping"][index]
        first, last = features["start_positions"][index], features["end_positions"][index]
        assert context[offsets[first][0] : offsets[last][1]] == "hidden words"


def test_an_answer_that_no_window_shows_is_not_learned_as_none():
    tokenizer, options = make_bert_tokenizer(), {"max_seq_length": 24, "doc_stride": 4}
    examples = make_examples(CONTEXT[:60], None, "hidden words")
    assert {*tokenize_questions(examples, tokenizer, **options)["example_id"]} == {"q0", "q1", "q2"}
    assert {*tokenize_questions(examples, tokenizer, drops_lost=True, **options)["example_id"]} == {"q1", "q2"}


CONTEXTS, ASKED = ["a cat sat", "the dog ran"], {"question": "who ?"}
SQUAD = {
    "version": "1.1",
    "data": [
        {
            "title": "Animals",
            "paragraphs": [
                {
                    "context": "a cat sat",
                    "qas": [{"id": "1", "question": "who ?", "answers": [{"text": "cat", "answer_start": 2}]}],
                },
                {"context": "the dog ran", "qas": [{"id": "2", "question": "who ?", "answers": []}]},
            ],
        }
    ],
}


@pytest.mark.parametrize("form", ["nested", "articles", "dictionaries", "texts", "text", "lists"])
def test_answers_are_read_in_every_form(tmp_path, form):
    if form == "nested":
        file = tmp_path / "train-v1.1.json"
        file.write_text(json.dumps(SQUAD, indent=1))
        rows = load_files(str(file))
        assert locate_row(str(file), 1) == f"question 2 of {file}"
    elif form == "articles":
        rows = Dataset.from_list(SQUAD["data"])
    else:
        answers = {
            "dictionaries": [[{"text": "cat", "answer_start": 2}], []],
            "texts": [["cat"], []],
            "text": ["cat", "dog"],
            "lists": [{"text": ["cat"], "answer_start": [2]}, {"text": [], "answer_start": []}],
        }[form]
        rows = Dataset.from_dict({"question": ["who ?"] * 2, "context": CONTEXTS, "answers": answers})
    assert find_kind({*rows.column_names}) is QuestionAnswering
    read = QuestionAnswering(QuestionAnsweringArguments()).read(DatasetDict(train=rows))["train"]
    second = {"text": ["dog"], "answer_start": [4]} if form == "text" else {"text": [], "answer_start": []}
    assert read["answers"][:] == [{"text": ["cat"], "answer_start": [2]}, second]
    assert (read["context"][:], read["question"][:]) == (CONTEXTS, ["who ?"] * 2)


def test_an_answer_that_the_context_lacks_is_named():
    rows = Dataset.from_dict({"question": ["who ?"], "context": ["a cat"], "answers": [["dog"]]})
    with pytest.raises(ValueError, match=r"the answer 'dog' .* does not, in example 0 of train"):
        QuestionAnswering(QuestionAnsweringArguments()).read(DatasetDict(train=rows))


def test_wrong_questions_are_reported():
    rows = [
        {"id": "x", "context": "one two", "answers": {"text": ["two"], "answer_start": [4]}},
        {"id": "y", "context": ""},
    ]
    check_questions({"train": rows})
    with pytest.raises(ValueError, match="x occurs twice in train"):
        check_questions({"train": [rows[0], rows[0]]})
    rows[0]["answers"]["answer_start"] = [3]
    with pytest.raises(ValueError, match=r"the answer 'two' .* has ' tw' there, in example 0 of train"):
        check_questions({"train": rows})


# Two windows over "one two three four", with a start token and a question token before and a separator after.
EXAMPLES = [{"id": "x", "context": "one two three four"}]
ONE, TWO, THREE, FOUR = (0, 3), (4, 7), (8, 13), (14, 18)
FEATURES = [
    {"example_id": "x", "offset_mapping": [None, None, ONE, TWO, THREE, None]},
    {"example_id": "x", "offset_mapping": [None, None, THREE, FOUR, None]},
]
START = np.array([[1.0, 9.0, 2.0, 0.0, 3.0, 9.0, 9.0], [0.5, 9.0, 1.0, 4.0, 9.0, 9.0, 9.0]])
END = np.array([[1.0, 9.0, 0.0, 3.0, 1.0, 9.0, 9.0], [2.0, 9.0, 0.0, 2.0, 9.0, 9.0, 9.0]])


def test_best_spans_by_hand():
    (answer,) = find_answers(EXAMPLES, FEATURES, START, END, n_best_size=3, max_answer_length=2)
    # One token: 2, 3, 4 and 1, 6; two tokens: 5, 1 and 3. Questions, ends before starts and three tokens do not count.
    scores = {candidate["text"]: candidate["score"] for candidate in answer["n_best"]}
    assert scores == {"four": 6.0, "one two": 5.0, "three": 4.0} and list(scores) == ["four", "one two", "three"]
    weights = np.exp([candidate["score"] for candidate in answer["n_best"]])
    assert [candidate["probability"] for candidate in answer["n_best"]] == pytest.approx(weights / weights.sum())
    assert answer["id"] == "x" and answer["text"] == "four" and "null_score_diff" not in answer


def test_answers_agree_with_trying_every_span():
    generator = np.random.default_rng(0)
    context = "abcdefghijklmnopqrstuvwxyz"
    offsets = [None] * 3 + [(position, position + 1) for position in range(20)] + [None]
    start, end = generator.normal(size=(2, 1, 30))
    spans = {
        context[first - 3 : last - 2]: start[0, first] + end[0, last]
        for first in range(3, 23)
        for last in range(first, min(first + 7, 23))
    }
    (answer,) = find_answers(
        [{"id": 1, "context": context}],
        [{"example_id": 1, "offset_mapping": offsets}],
        start,
        end,
        n_best_size=10,
        max_answer_length=7,
    )
    expected = sorted(spans.items(), key=lambda item: -item[1])[:10]
    assert [candidate["text"] for candidate in answer["n_best"]] == [text for text, _ in expected]
    assert [candidate["score"] for candidate in answer["n_best"]] == pytest.approx([score for _, score in expected])


def test_a_span_of_two_windows_is_one_answer():
    """It counts once, with its best score; otherwise a certain answer would have a probability of one half."""
    windows = [[None, (0, 2), (3, 5), None], [None, (3, 5), (6, 8), None]]
    features = [{"example_id": 1, "offset_mapping": offsets} for offsets in windows]
    start = np.array([[-9.0, 0, 4, -9], [-9, 5, 1, -9]])
    (answer,) = find_answers([{"id": 1, "context": "aa bb cc"}], features, start, start, max_answer_length=1)
    assert {each["text"]: each["score"] for each in answer["n_best"]} == {"bb": 10.0, "cc": 2.0, "aa": 0.0}
    assert len(answer["n_best"]) == 3
    assert answer["n_best"][0]["probability"] == pytest.approx(np.exp(10) / np.exp([10, 2, 0]).sum())


@pytest.mark.parametrize(("threshold", "text"), [(-4.1, ""), (-4.0, "four"), (0.0, "four")])
def test_no_answer_is_chosen_above_the_threshold(threshold, text):
    # The least score of a start token is 2, of the first window; the best answer has 6.
    (answer,) = find_answers(
        EXAMPLES, FEATURES, START, END, n_best_size=2, with_no_answer=True, null_score_diff_threshold=threshold
    )
    assert answer["null_score_diff"] == -4
    assert answer["text"] == ("" if threshold < -4 else "four")
    assert [candidate["text"] for candidate in answer["n_best"]] == ["four", ""]


def test_question_without_any_span_has_no_answer():
    features = [{"example_id": "x", "offset_mapping": [None, None]}]
    logits = np.zeros((1, 2))
    (answer,) = find_answers(EXAMPLES, features, logits, logits)
    assert answer == {"id": "x", "text": "", "n_best": []}
    (answer,) = find_answers(EXAMPLES, features, logits, logits, with_no_answer=True)
    assert answer["text"] == "" and answer["n_best"] == [{"text": "", "score": 0.0, "probability": 1.0}]

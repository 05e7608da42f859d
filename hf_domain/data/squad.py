"""Read the nested JSON of SQuAD, articles with paragraphs and their questions, as rows: a question each."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

MARKS = (b'"paragraphs"', b'"data"')


def read_squad(text: bytes) -> list[dict[str, Any]] | None:
    """Return the rows of a JSON file in SQuAD's form; None if it has another."""
    if not text.lstrip().startswith(b"{") or not all(mark in text for mark in MARKS):
        return None
    try:
        content = json.loads(text)
    except ValueError:
        return None
    data = content.get("data")
    is_nested = isinstance(data, list) and all(isinstance(each, dict) and "paragraphs" in each for each in data)
    return list_questions(data) if is_nested else None


def list_questions(articles: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each question: id, title, question, context and, if any has them, answers."""
    rows = [*_walk(articles)]
    if any("answers" in row for row in rows):
        return [{**row, "answers": row.get("answers") or {"text": [], "answer_start": []}} for row in rows]
    return rows


def _walk(articles: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for article in articles:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                row = {"id": str(question["id"]), "title": article.get("title") or "", "context": paragraph["context"]}
                row["question"] = question["question"]
                if (answers := question.get("answers")) is not None:
                    row["answers"] = list_answers(answers, paragraph["context"])
                yield row


def list_answers(answers: Any, context: str) -> dict[str, list[Any]] | None:
    """Return answers in SQuAD's form: two lists, `text` and `answer_start`.

    Args:
        answers: In that form; or one or several dictionaries with `text` and `answer_start`; or one or several texts,
            whose first place in the context counts, -1 if there is none.
        context: Text of the question.

    Returns:
        None for any other form.
    """
    if isinstance(answers, dict) and isinstance(answers.get("text"), list):
        return answers if isinstance(answers.get("answer_start"), list) else None
    each = answers if isinstance(answers, list) else [answers]
    if all(isinstance(answer, str) for answer in each):
        each = [{"text": answer, "answer_start": (context or "").find(answer)} for answer in each]
    if not all(isinstance(answer, dict) and {"text", "answer_start"} <= answer.keys() for answer in each):
        return None
    return {name: [answer[name] for answer in each] for name in ("text", "answer_start")}

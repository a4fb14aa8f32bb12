"""Flatten the nested JSON of SQuAD to rows: one per question, with the columns of the hub's `squad`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bertkit.errors import DataError

_TYPE_NAMES = {str: "text", list: "a list", dict: "an object", int: "a whole number", bool: "true or false"}


def questions(article: Any, article_number: int, number: int) -> Iterator[dict[str, Any]]:
    """Yield the questions of an article, as ``id, title, context, question`` and ``answers`` where there are any.

    An impossible question (SQuAD 2.0) has no answers; its plausible answers are left out. The title is empty where an
    article has none, and an id may be a number.

    Args:
        article: an object of the list ``data``.
        article_number: counts the articles of the file from 1.
        number: questions of the file before this article.

    Raises:
        DataError: a key is missing or its value is of another type than in SQuAD; the error lacks the file.
    """
    where = f"article {article_number}"
    _check_type(article, dict, where, "the article")
    title = _get_value(article, "title", str, where) if "title" in article else ""
    for paragraph_number, paragraph in enumerate(_get_value(article, "paragraphs", list, where), 1):
        inside = f"{where}, paragraph {paragraph_number}"
        _check_type(paragraph, dict, inside, "the paragraph")
        context = _get_value(paragraph, "context", str, inside)
        for nth, question in enumerate(_get_value(paragraph, "qas", list, inside), 1):
            number += 1
            try:
                yield _as_row(question, title, context, f"{inside}, question {nth}")
            except DataError as error:
                error.row = number
                raise


def _as_row(question: Any, title: str, context: str, where: str) -> dict[str, Any]:
    _check_type(question, dict, where, "the question")
    if type(question.get("id")) is int:
        question = {**question, "id": str(question["id"])}
    name = _get_value(question, "id", str, where)
    where = f"{where} (id {name[:40]!r})"
    text = _get_value(question, "question", str, where)
    row = {"id": name, "title": title, "context": context, "question": text}
    if "is_impossible" in question and _get_value(question, "is_impossible", bool, where):
        return {**row, "answers": {"text": [], "answer_start": []}}
    if "answers" not in question:
        return row
    return {**row, "answers": _as_lists(_get_value(question, "answers", list, where), where)}


def _as_lists(answers: list[Any], where: str) -> dict[str, list[Any]]:
    texts, starts = [], []
    for answer_number, answer in enumerate(answers, 1):
        inside = f"{where}, answer {answer_number}"
        _check_type(answer, dict, inside, "the answer")
        texts.append(_get_value(answer, "text", str, inside))
        starts.append(_get_value(answer, "answer_start", int, inside))
    return {"text": texts, "answer_start": starts}


def _get_value(container: dict[str, Any], key: str, expected: type, where: str) -> Any:
    if key not in container:
        raise DataError(f"no {key!r} in {where}", "add it")
    _check_type(container[key], expected, where, repr(key))
    return container[key]


def _check_type(value: object, expected: type, where: str, what: str) -> None:
    """Refuse a value of another type; true and false are integers to Python, but not here."""
    if not isinstance(value, expected) or (expected is int and isinstance(value, bool)):
        raise DataError(f"{what} must be {_TYPE_NAMES[expected]}, in {where}", "write it as in SQuAD")

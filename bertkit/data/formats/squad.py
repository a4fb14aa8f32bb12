"""The articles of SQuAD: a JSON object each, with paragraphs, questions and answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, StrictBool, StrictInt, StrictStr, ValidationError

from bertkit.data.text import JsonItem
from bertkit.errors import DataError
from bertkit.storage.cache import log_once

_TYPES = {
    "string_type": "text",
    "list_type": "a list",
    "model_type": "an object",
    "int_type": "a whole number",
    "bool_type": "true or false",
}
"""Type of a fault in pydantic -> the type that the value must have."""
_PARTS = {"paragraphs": "paragraph", "qas": "question", "answers": "answer"}


def flatten_squad(items: Iterator[JsonItem], name: str) -> Iterator[JsonItem]:
    """Yield the questions of articles or paragraphs of SQuAD.

    An answer counts even if its question is marked impossible, as in the official evaluation.
    """
    count, contradictory = 0, list[str]()
    for article_number, is_suspect, article in items:
        # A file of paragraphs has no articles around them.
        article = {"paragraphs": [article]} if isinstance(article, dict) and "qas" in article else article
        try:
            for question in read_questions(article, article_number, count):
                count += 1
                if question.pop("is_impossible", False) and question.get("answers", {"text": ()})["text"]:
                    contradictory.append(question["id"])
                yield count, is_suspect, question
        except DataError as error:
            error.file = name
            raise
    if contradictory:
        message = f"{len(contradictory):,} of {count:,} questions are marked impossible and have answers"
        log_once(f"warning: {message}, which are read ({name}, the first is {contradictory[0]!r})")


# The types are strict, because pydantic would otherwise accept the text "3" as an offset.
class SquadAnswer(BaseModel):
    """An answer with the offset of its first character in the context."""

    text: StrictStr
    answer_start: StrictInt


class SquadQuestion(BaseModel):
    """A question with its answers; an impossible question (SQuAD 2.0) need not have any."""

    id: Annotated[StrictStr, BeforeValidator(lambda value: str(value) if type(value) is int else value)]
    question: StrictStr
    is_impossible: StrictBool = False
    answers: list[SquadAnswer] = []


class SquadParagraph(BaseModel):
    """A context with the questions about it."""

    context: StrictStr
    qas: list[SquadQuestion]


class SquadArticle(BaseModel):
    """An article of SQuAD; keys that are not named here, such as plausible answers, are ignored."""

    title: StrictStr = ""
    paragraphs: list[SquadParagraph]


def read_questions(article: Any, article_number: int, earlier: int) -> Iterator[dict[str, Any]]:
    """Yield the questions of an article, as ``id, title, context, question`` and, if it has any, ``answers``.

    Args:
        article: Object of the list ``data``.
        article_number: Number of the article in the file, from 1.
        earlier: Number of questions in the file before this article.

    Raises:
        DataError: If a key is missing or has a value of another type than in SQuAD; the error lacks the file.
    """
    try:
        checked = SquadArticle.model_validate(article)
    except ValidationError as error:
        raise _place_fault(error, article, article_number, earlier) from None
    for paragraph in checked.paragraphs:
        for question in paragraph.qas:
            row: dict[str, Any] = {"id": question.id, "title": checked.title, "context": paragraph.context}
            row["question"] = question.question
            if question.is_impossible:
                row["is_impossible"] = True
            if question.is_impossible or "answers" in question.model_fields_set:
                answers = question.answers
                starts = [answer.answer_start for answer in answers]
                row["answers"] = {"text": [answer.text for answer in answers], "answer_start": starts}
            yield row


def _place_fault(error: ValidationError, article: Any, article_number: int, earlier: int) -> DataError:
    """Describe the first fault in an article by its place, such as `article 1, paragraph 2, question 3 (id 'q7')`."""
    fault = error.errors()[0]
    keys, subject, key, value = fault["loc"], "the article", "", article
    places, row = [f"article {article_number}"], earlier
    # The path alternates keys and indices, such as paragraphs, 1, qas, 2, answers. Each index adds a part to the place.
    for step in keys:
        value = value.get(step) if isinstance(step, str) else value[step]
        if isinstance(step, str):
            key, subject = step, repr(step)
            continue
        subject = f"the {_PARTS[key]}"
        places.append(f"{_PARTS[key]} {step + 1}")
        if key == "paragraphs":
            row += sum(len(paragraph["qas"]) for paragraph in article["paragraphs"][:step])
        if key == "qas":
            row += step + 1
            if len(keys) > 4 and keys[4] != "id":
                places[-1] += f" (id {str(value['id'])[:40]!r})"
    at_row = row if "qas" in keys[:-1] else None
    if fault["type"] == "missing":
        return DataError(f"no {key!r} in {', '.join(places)}", "add it", row=at_row)
    message = f"{subject} must be {_TYPES[fault['type']]}, in {', '.join(places)}"
    return DataError(message, "write it as in SQuAD", row=at_row)

"""Reader of SQuAD: articles with paragraphs, questions and answers."""

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
    "int_type": "an integer",
    "bool_type": "true or false",
}
"""Type of an error in pydantic -> required type of the value."""
_PARTS = {"paragraphs": "paragraph", "qas": "question", "answers": "answer"}


def flatten_squad(items: Iterator[JsonItem], name: str) -> Iterator[JsonItem]:
    """Yield the questions of articles or paragraphs of SQuAD.

    Answers of a question that is marked impossible are read, as in the official evaluation.
    """
    count, contradictory_ids = 0, list[str]()
    for article_number, is_suspect, article in items:
        # A file can have paragraphs without articles.
        article = {"paragraphs": [article]} if isinstance(article, dict) and "qas" in article else article
        try:
            for question in read_questions(article, article_number, count):
                count += 1
                if question.pop("is_impossible", False) and question.get("answers", {"text": ()})["text"]:
                    contradictory_ids.append(question["id"])
                yield count, is_suspect, question
        except DataError as error:
            error.file = name
            raise
    if contradictory_ids:
        message = f"{len(contradictory_ids):,} of {count:,} questions are marked impossible and have answers"
        log_once(f"warning: {message}, which are read ({name}, the first is {contradictory_ids[0]!r})")


# Without strict types, pydantic would accept the text "3" as an offset.
class SquadAnswer(BaseModel):
    """Answer with the offset of its first character in the context."""

    text: StrictStr
    answer_start: StrictInt


class SquadQuestion(BaseModel):
    """Question with its answers; an impossible question (SQuAD 2.0) can have none."""

    id: Annotated[StrictStr, BeforeValidator(lambda value: str(value) if type(value) is int else value)]
    question: StrictStr
    is_impossible: StrictBool = False
    answers: list[SquadAnswer] = []


class SquadParagraph(BaseModel):
    """Context with questions about it."""

    context: StrictStr
    qas: list[SquadQuestion]


class SquadArticle(BaseModel):
    """Article of SQuAD; unknown keys, such as plausible answers, are ignored."""

    title: StrictStr = ""
    paragraphs: list[SquadParagraph]


def read_questions(article: Any, article_number: int, num_earlier: int) -> Iterator[dict[str, Any]]:
    """Yield a row per question of an article: ``id, title, context, question`` and, if present, ``answers``.

    Args:
        article: Item of the list ``data``.
        article_number: Number of the article in the file, from 1.
        num_earlier: Number of questions in the file before this article.

    Raises:
        DataError: If a key is missing or has a value of another type than in SQuAD. The caller adds the file.
    """
    try:
        checked = SquadArticle.model_validate(article)
    except ValidationError as error:
        raise _locate_error(error, article, article_number, num_earlier) from None
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


def _locate_error(error: ValidationError, article: Any, article_number: int, num_earlier: int) -> DataError:
    """Return the first error with its location, such as `article 1, paragraph 2, question 3 (id 'q7')`."""
    details = error.errors()[0]
    location, description, key, value = details["loc"], "the article", "", article
    parts, row = [f"article {article_number}"], num_earlier
    # `location` alternates keys and indices: paragraphs, 1, qas, 2, answers. Each index adds a part to the message.
    for step in location:
        value = value.get(step) if isinstance(step, str) else value[step]
        if isinstance(step, str):
            key, description = step, repr(step)
            continue
        description = f"the {_PARTS[key]}"
        parts.append(f"{_PARTS[key]} {step + 1}")
        if key == "paragraphs":
            row += sum(len(paragraph["qas"]) for paragraph in article["paragraphs"][:step])
        if key == "qas":
            row += step + 1
            if len(location) > 4 and location[4] != "id":
                parts[-1] += f" (id {str(value['id'])[:40]!r})"
    question_row = row if "qas" in location[:-1] else None
    if details["type"] == "missing":
        return DataError(f"no {key!r} in {', '.join(parts)}", "add the key", row=question_row)
    message = f"{description} must be {_TYPES[details['type']]} in {', '.join(parts)}"
    return DataError(message, "write it as in SQuAD", row=question_row)

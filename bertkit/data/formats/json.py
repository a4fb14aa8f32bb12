"""JSON and JSON Lines, read strictly: objects with the same keys, the articles of SQuAD, or texts with spans."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import chain
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, StrictBool, StrictInt, StrictStr, ValidationError

from bertkit.data.json_objects import DECODER, TYPE_NAMES, Item, as_data_error, check_objects, has_suspect_escape
from bertkit.data.spans import flatten_exports
from bertkit.data.text import Record, Source, excerpt, nul_remedy, read_lines, read_text
from bertkit.errors import DataError
from bertkit.recipe.records import Data
from bertkit.storage.cache import say_once

_WHITE_SPACE = re.compile(r"[ \t\r\n]*")
_SQUAD_TYPES = {
    "string_type": "text",
    "list_type": "a list",
    "model_type": "an object",
    "int_type": "a whole number",
    "bool_type": "true or false",
}
"""Type of a fault in pydantic -> the type that the value must have."""
_SQUAD_PARTS = {"paragraphs": "paragraph", "qas": "question", "answers": "answer"}
_LIST = re.compile(r"[ \t\r\n]*\[[ \t\r\n]*(?=[^] \t\r\n])")


def read(source: Source, data: Data, name: str) -> Iterator[Record]:
    """Yield the objects of a list, or of one under the key ``data``; the questions of SQuAD.

    Rows are counted in the list, not in lines: such a file is often a single line. Its text stays in memory.
    """
    items = flatten_exports(flatten_squad(_parse_items(source, data, name), name), name, data)
    return check_objects(items, name)


def _parse_items(source: Source, data: Data, name: str) -> Iterator[Item]:
    text = "".join(read_text(source, data.encoding, name))
    if not text.strip():
        return
    row = 0
    try:
        for row, (is_suspect, value) in enumerate(_elements(text), 1):
            yield row, is_suspect, value
    except json.JSONDecodeError as error:
        raise DataError(*_describe_fault(error, text), file=name) from None
    except (DataError, RecursionError) as error:
        raise as_data_error(error, name, row + 1 if _LIST.match(text) else None) from None


def flatten_squad(items: Iterator[Item], name: str) -> Iterator[Item]:
    """Yield rows unchanged, but the questions of rows that are articles or paragraphs of SQuAD.

    An answer counts even if its question is marked impossible, as in the official evaluation.
    """
    first = next(items, None)
    items = chain([] if first is None else [first], items)
    if first is None or not isinstance(first[2], dict) or not first[2].keys() & {"paragraphs", "qas"}:
        yield from items
        return
    number, contradictory = 0, list[str]()
    for article_number, is_suspect, article in items:
        article = {"paragraphs": [article]} if isinstance(article, dict) and "qas" in article else article
        try:
            for question in read_questions(article, article_number, number):
                number += 1
                if question.pop("is_impossible", False) and question.get("answers", {"text": ()})["text"]:
                    contradictory.append(question["id"])
                yield number, is_suspect, question
        except DataError as error:
            error.file = name
            raise
    if contradictory:
        message = f"{len(contradictory):,} of {number:,} questions are marked impossible and have answers"
        say_once(f"warning: {message}, which are read ({name}, the first is {contradictory[0]!r})")


def _elements(text: str) -> Iterator[tuple[bool, Any]]:
    """Yield the values of a JSON list one by one, each with whether its text has a suspect escape.

    One value is decoded at a time, so that the objects of a large file are not in memory at once.
    """
    start = _LIST.match(text)
    if not start:
        is_suspect = has_suspect_escape(text)
        yield from ((is_suspect, row) for row in _unwrap_rows(DECODER.decode(text)))
        return
    offset, mark = start.end(), ","
    while mark == ",":
        value, end = DECODER.raw_decode(text, offset)
        yield has_suspect_escape(text, offset, end), value
        end = _skip_white_space(text, end)
        mark, offset = text[end : end + 1], _skip_white_space(text, end + 1)
    if mark != "]":
        raise json.JSONDecodeError("Expecting ',' delimiter", text, end)
    if offset < len(text):
        raise json.JSONDecodeError("Extra data", text, offset)


def _skip_white_space(text: str, offset: int) -> int:
    space = _WHITE_SPACE.match(text, offset)
    return space.end() if space else offset


def _unwrap_rows(whole: object) -> list[Any]:
    """Return the rows of a json file that does not begin with a list of them.

    Raises:
        DataError: it holds no list of objects.
    """
    rows = whole.get("data") if isinstance(whole, dict) else whole
    if isinstance(rows, list) and all(isinstance(row, dict) for row in rows):
        return rows
    what = f"an object with the keys {list(whole)}" if isinstance(whole, dict) else TYPE_NAMES[type(whole)]
    raise DataError(f"{what}, not a list of rows", 'write [{"text": ...}, ...], or one object per line as .jsonl')


def _describe_fault(error: json.JSONDecodeError, text: str) -> tuple[str, str]:
    """Describe a text that is not JSON, and its remedy."""
    if "\0" in text:
        return "a NUL character", nul_remedy(text)
    if error.msg == "Extra data" and text.lstrip().startswith("{"):
        return "one object per line, not a list", "rename the file to .jsonl"
    if not text.rstrip().endswith(("]", "}")):
        return f"the end is missing: {excerpt(text[-40:])}", "get the file again"
    reason = error.msg.removesuffix(" starting at")
    near = excerpt(text[max(0, error.pos - 20) : error.pos + 40])
    return f"not JSON, line {error.lineno}, character {error.colno}: {reason}: {near}", "repair it"


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


def read_questions(article: Any, article_number: int, number: int) -> Iterator[dict[str, Any]]:
    """Yield the questions of an article, as ``id, title, context, question`` and, if it has any, ``answers``.

    Args:
        article: Object of the list ``data``.
        article_number: Number of the article in the file, from 1.
        number: Number of questions in the file before this article.

    Raises:
        DataError: If a key is missing or has a value of another type than in SQuAD; the error lacks the file.
    """
    try:
        checked = SquadArticle.model_validate(article)
    except ValidationError as error:
        raise _place_fault(error, article, article_number, number) from None
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


def _place_fault(error: ValidationError, article: Any, article_number: int, number: int) -> DataError:
    """Describe the first fault in an article by its place, such as `article 1, paragraph 2, question 3 (id 'q7')`."""
    fault = error.errors()[0]
    keys, subject, key, value = fault["loc"], "the article", "", article
    places, row = [f"article {article_number}"], number
    for step in keys:
        value = value.get(step) if isinstance(step, str) else value[step]
        if isinstance(step, str):
            key, subject = step, repr(step)
            continue
        subject = f"the {_SQUAD_PARTS[key]}"
        places.append(f"{_SQUAD_PARTS[key]} {step + 1}")
        if key == "paragraphs":
            row += sum(len(paragraph["qas"]) for paragraph in article["paragraphs"][:step])
        if key == "qas":
            row += step + 1
            if len(keys) > 4 and keys[4] != "id":
                places[-1] += f" (id {str(value['id'])[:40]!r})"
    at_row = row if "qas" in keys[:-1] else None
    if fault["type"] == "missing":
        return DataError(f"no {key!r} in {', '.join(places)}", "add it", row=at_row)
    message = f"{subject} must be {_SQUAD_TYPES[fault['type']]}, in {', '.join(places)}"
    return DataError(message, "write it as in SQuAD", row=at_row)


def read_jsonl(source: Source, data: Data, name: str) -> Iterator[Record]:
    """Yield the objects of a jsonl file, one per line; blank lines are skipped."""
    items = flatten_squad(flatten_exports(_parse_lines(source, data, name), name, data), name)
    return check_objects(items, name, same_keys=data._same_keys)


def _parse_lines(source: Source, data: Data, name: str) -> Iterator[Item]:
    for row, line in enumerate(read_lines(source, data.encoding, name), 1):
        if line.isspace():
            continue
        try:
            value = DECODER.decode(line)
        except json.JSONDecodeError as error:
            raise DataError(*_describe_line_fault(error, line, row), file=name, row=row) from None
        except (DataError, RecursionError) as error:
            raise as_data_error(error, name, row) from None
        yield row, has_suspect_escape(line), value


def _describe_line_fault(error: json.JSONDecodeError, line: str, row: int) -> tuple[str, str]:
    """Describe a line that is not JSON, and its remedy."""
    if "\0" in line:
        return "a NUL character", nul_remedy(line)
    if row == 1 and line.startswith("["):
        return f"a list, not one object per line: {excerpt(line)}", "rename the file to .json"
    if not line.endswith(("\n", "\r")) and (error.pos >= len(line) or not line.rstrip().endswith("}")):
        return f"the last line is truncated: {excerpt(line)}", "delete it, or get the file again"
    reason = error.msg.removesuffix(" starting at")
    return f"not JSON, character {error.pos + 1}: {reason}: {excerpt(line)}", "write one JSON object per line"

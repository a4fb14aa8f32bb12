"""JSON, read strictly: a list of objects with the same keys, or the articles of SQuAD."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

from bertkit.data.formats import Format
from bertkit.data.json_objects import DECODER, TYPE_NAMES, Item, as_data_error, check_objects, has_suspect_escape
from bertkit.data.squad import questions
from bertkit.data.text import Record, Source, excerpt, nul_remedy, read_text
from bertkit.errors import DataError
from bertkit.recipe.records import Data

_WHITE_SPACE = re.compile(r"[ \t\r\n]*")
_LIST = re.compile(r"[ \t\r\n]*\[[ \t\r\n]*(?=[^] \t\r\n])")


def read(source: Source, data: Data, name: str) -> Iterator[Record]:
    """Yield the objects of a list, or of a list under the key ``data``; of SQuAD, its questions.

    Rows are counted in the list, not in lines: such a file is often a single line. Its text stays in memory.
    """
    return check_objects(_flatten_squad(_parse_items(source, data, name), name), name)


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


def _flatten_squad(items: Iterator[Item], name: str) -> Iterator[Item]:
    """Yield rows as they are; where they are the articles of SQuAD, yield their questions instead."""
    first = next(items, None)
    if first is None:
        return
    if not isinstance(first[2], dict) or "paragraphs" not in first[2]:
        yield first
        yield from items
        return
    number = 0
    for article_number, is_suspect, article in chain([first], items):
        try:
            for question in questions(article, article_number, number):
                number += 1
                yield number, is_suspect, question
        except DataError as error:
            error.file = name
            raise


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


FORMAT = Format("json", read, endings=(".json",))

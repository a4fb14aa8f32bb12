"""Read jsonl and json strictly: objects with the same keys in every row, and values of one kind per key."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

from bertkit.data.formats.csv import Record, Source, excerpt, nul_remedy, read_lines, read_text
from bertkit.data.squad import questions
from bertkit.errors import DataError
from bertkit.recipe.records import Data

_Item = tuple[int, bool, Any]
"""A row's number, whether its JSON has escapes to look into, and its value."""

_BLANKS = re.compile(r"[ \t\r\n]*")
_LIST = re.compile(r"[ \t\r\n]*\[[ \t\r\n]*(?=[^] \t\r\n])")
_SUSPECT_ESCAPE = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")
_SURROGATE = re.compile("[\ud800-\udfff]")
_KINDS = {
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


def read_jsonl(source: Source, data: Data, name: str) -> Iterator[Record]:
    """Yield the objects of a jsonl file, one per line; blank lines are skipped."""
    return _check_items(_parse_lines(source, data, name), name)


def read_json(source: Source, data: Data, name: str) -> Iterator[Record]:
    """Yield the objects of a json file: a list of them, or one under the key ``data``; of SQuAD, its questions.

    Rows are counted in the list, not in lines: such a file is often a single line. Its text stays in memory.
    """
    return _check_items(_lay_out(_parse_list(source, data, name), name), name)


def _parse_lines(source: Source, data: Data, name: str) -> Iterator[_Item]:
    for row, line in enumerate(read_lines(source, data.encoding, name), 1):
        if line.isspace():
            continue
        try:
            value = _DECODER.decode(line)
        except json.JSONDecodeError as error:
            raise DataError(*_bad_line(error, line, row), file=name, row=row) from None
        except (DataError, RecursionError) as error:
            raise _placed(error, name, row) from None
        yield row, bool(_SUSPECT_ESCAPE.search(line)), value


def _parse_list(source: Source, data: Data, name: str) -> Iterator[_Item]:
    text = "".join(read_text(source, data.encoding, name))
    if not text.strip():
        return
    row = 0
    try:
        for row, (is_suspect, value) in enumerate(_elements(text), 1):
            yield row, is_suspect, value
    except json.JSONDecodeError as error:
        raise DataError(*_bad_text(error, text), file=name) from None
    except (DataError, RecursionError) as error:
        raise _placed(error, name, row + 1 if _LIST.match(text) else None) from None


def _lay_out(items: Iterator[_Item], name: str) -> Iterator[_Item]:
    """Pass rows on; where they are the articles of SQuAD, give their questions instead."""
    first = next(items, None)
    if first is None:
        return
    if not isinstance(first[2], dict) or "paragraphs" not in first[2]:
        yield first
        yield from items
        return
    number = 0
    for place, is_suspect, article in chain([first], items):
        try:
            for question in questions(article, place, number):
                number += 1
                yield number, is_suspect, question
        except DataError as error:
            error.file = name
            raise


def _elements(text: str) -> Iterator[tuple[bool, Any]]:
    """Yield the values of a JSON list one by one, each with whether it has escapes to look into."""
    start = _LIST.match(text)
    if not start:
        is_suspect = bool(_SUSPECT_ESCAPE.search(text))
        yield from ((is_suspect, row) for row in _unwrap(_DECODER.decode(text)))
        return
    place, mark = start.end(), ","
    while mark == ",":
        value, end = _DECODER.raw_decode(text, place)
        yield bool(_SUSPECT_ESCAPE.search(text, place, end)), value
        end = _skip_blanks(text, end)
        mark, place = text[end : end + 1], _skip_blanks(text, end + 1)
    if mark != "]":
        raise json.JSONDecodeError("Expecting ',' delimiter", text, end)
    if place < len(text):
        raise json.JSONDecodeError("Extra data", text, place)


def _skip_blanks(text: str, place: int) -> int:
    blanks = _BLANKS.match(text, place)
    return blanks.end() if blanks else place


def _unwrap(whole: Any) -> list[Any]:
    """Give the rows of a json file that does not begin with one."""
    rows = whole.get("data") if isinstance(whole, dict) else whole
    if isinstance(rows, list) and all(isinstance(row, dict) for row in rows):
        return rows
    kind = f"an object with the keys {list(whole)}" if isinstance(whole, dict) else _KINDS[type(whole)]
    raise DataError(f"{kind}, not a list of rows", 'write [{"text": ...}, ...], or one object per line as .jsonl')


def _check_items(items: Iterator[_Item], name: str) -> Iterator[Record]:
    """Pass the objects on as records; refuse what is no object or unlike the ones before."""
    kinds: dict[str, tuple[str, int] | None] = {}
    shape = None
    for row, is_suspect, value in items:
        if not isinstance(value, dict):
            what = f"{_KINDS[type(value)]} where an object belongs: {excerpt(json.dumps(value))}"
            raise DataError(what, 'write rows as {"text": ..., "label": ...}', file=name, row=row)
        if is_suspect:
            _check_strings(value, name, row)
        if shape is None:
            kinds = dict.fromkeys(value)
        same = (*value, *map(type, value.values()))
        if same != shape:
            _check_shape(value, kinds, name, row)
            shape = same
        yield row, value
    if shape is None:
        raise DataError("the file is empty", "give it rows", file=name)


def _check_shape(value: dict[str, Any], kinds: dict[str, tuple[str, int] | None], name: str, row: int) -> None:
    """Compare keys and kinds with those of the rows before, and note a kind where it is seen first."""
    missing = [key for key in kinds if key not in value]
    new = [key for key in value if key not in kinds]
    if missing or new:
        changes = [f"no {key!r}" for key in missing[:5]] + [f"a new {key!r}" for key in new[:5]]
        hint = "give every row the same keys, with null where there is no value"
        raise DataError(f"the keys change: {', '.join(changes)}", hint, file=name, row=row)
    for key, item in value.items():
        if item is not None:
            kind = _KINDS[type(item)]
            before, first = kinds[key] = kinds[key] or (kind, row)
            if kind != before:
                what = f"{kind} here, {before} in row {first}"
                raise DataError(what, "give the column values of one kind", file=name, row=row, column=key)


def _check_strings(value: dict[str, Any], name: str, row: int) -> None:
    """Refuse strings that no tokenizer could take."""
    for column, item in value.items():
        for text in _strings([column, item]):
            if "\0" in text:
                raise DataError("a NUL character", "remove it", file=name, row=row, column=column)
            if half := _SURROGATE.search(text):
                what, hint = f"half of a surrogate pair: {half[0]!r}", "write the whole character"
                raise DataError(what, hint, file=name, row=row, column=column)


def _strings(value: Any) -> Iterator[str]:
    """Yield every string in a JSON value; a loop, since values may nest deeper than calls may."""
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            left += [*item, *item.values()]
        elif isinstance(item, list):
            left += item


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise DataError(f"the key {twice!r} is there twice", "keep one")
    return record


def _integer(digits: str) -> int:
    if len(digits) > 20 or not -(2**63) <= int(digits) < 2**63:
        raise DataError(f"the integer {digits[:40]} does not fit in 64 bits", "write it as text, in quotes")
    return int(digits)


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_int=_integer)


def _placed(error: DataError | RecursionError, name: str, row: int | None) -> DataError:
    if not isinstance(error, DataError):
        error = DataError("lists or objects nest too deep", "flatten them")
    error.file, error.row = name, row
    return error


def _bad_line(error: json.JSONDecodeError, line: str, row: int) -> tuple[str, str]:
    if "\0" in line:
        return "a NUL character", nul_remedy(line)
    if row == 1 and line.startswith("["):
        return f"a list, not one object per line: {excerpt(line)}", "rename the file to .json"
    if not line.endswith(("\n", "\r")) and (error.pos >= len(line) or not line.rstrip().endswith("}")):
        return f"the last line is cut: {excerpt(line)}", "delete it, or get the file anew"
    reason = error.msg.removesuffix(" starting at")
    return f"not JSON, character {error.pos + 1}: {reason}: {excerpt(line)}", "write one JSON object per line"


def _bad_text(error: json.JSONDecodeError, text: str) -> tuple[str, str]:
    if "\0" in text:
        return "a NUL character", nul_remedy(text)
    if error.msg == "Extra data" and text.lstrip().startswith("{"):
        return "one object per line, not a list", "rename the file to .jsonl"
    if not text.rstrip().endswith(("]", "}")):
        return f"the end is cut: {excerpt(text[-40:])}", "get the file anew"
    reason = error.msg.removesuffix(" starting at")
    near = excerpt(text[max(0, error.pos - 20) : error.pos + 40])
    return f"not JSON, line {error.lineno}, character {error.colno}: {reason}: {near}", "repair it"

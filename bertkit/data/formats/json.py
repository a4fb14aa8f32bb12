"""Readers of JSON and JSON Lines: objects with the same keys, articles of SQuAD, or exports of annotation tools."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any

from bertkit.data.text import (
    SURROGATE,
    JsonItem,
    Record,
    Source,
    empty_file_error,
    excerpt,
    nul_remedy,
    read_lines,
    read_text,
)
from bertkit.errors import DataError
from bertkit.recipe.records import DataConfig

_WHITE_SPACE = re.compile(r"[ \t\r\n]*")
_LIST_START = re.compile(r"[ \t\r\n]*\[[ \t\r\n]*(?=[^] \t\r\n])")
_SQUAD_KEYS = {"paragraphs", "qas"}
_TOOL_KEYS = {"annotations", "completions", "_task_hash", "answer", "tokens"}
"""Every object from Label Studio or Prodigy has one of these keys."""


def read(source: Source, data: DataConfig, name: str) -> Iterator[Record]:
    """Yield the objects of a list, of a list under the key ``data``, or the questions of SQuAD.

    Row numbers count objects, because such a file is often a single line. The text of the file stays in memory.
    """
    return check_objects(_flatten(_parse_items(source, data, name), name, data), name)


def _flatten(items: Iterator[JsonItem], name: str, data: DataConfig) -> Iterator[JsonItem]:
    """Turn objects of SQuAD and of annotation tools into a row per question or text; yield others unchanged."""
    first = next(items, None)
    items = chain([] if first is None else [first], items)
    keys = set(first[2]) if first is not None and isinstance(first[2], dict) else set()
    # The keys of the first object identify the format.
    if keys & _SQUAD_KEYS:
        from bertkit.data.formats.squad import flatten_squad

        items = flatten_squad(items, name)
    elif keys & _TOOL_KEYS:
        from bertkit.data.formats.annotations import flatten_exports

        items = flatten_exports(items, name, data)
    yield from items


def _parse_items(source: Source, data: DataConfig, name: str) -> Iterator[JsonItem]:
    text = "".join(read_text(source, data.encoding, name))
    if not text.strip():
        return
    row = 0
    try:
        for row, (is_suspect, value) in enumerate(_iter_values(text), 1):
            yield row, is_suspect, value
    except json.JSONDecodeError as error:
        raise DataError(*_describe_json_error(error, text), file=name) from None
    except (DataError, RecursionError) as error:
        raise as_data_error(error, name, row + 1 if _LIST_START.match(text) else None) from None


def _iter_values(text: str) -> Iterator[tuple[bool, Any]]:
    """Yield (has_suspect_escape, value) for each item of a JSON list.

    Items are decoded one at a time, so that the objects of a large file are not all in memory.
    """
    list_start = _LIST_START.match(text)
    if not list_start:
        is_suspect = has_suspect_escape(text)
        yield from ((is_suspect, row) for row in _unwrap_rows(DECODER.decode(text)))
        return
    offset, separator = list_start.end(), ","
    while separator == ",":
        value, end = DECODER.raw_decode(text, offset)
        yield has_suspect_escape(text, offset, end), value
        end = _skip_white_space(text, end)
        separator, offset = text[end : end + 1], _skip_white_space(text, end + 1)
    if separator != "]":
        raise json.JSONDecodeError("Expecting ',' delimiter", text, end)
    if offset < len(text):
        raise json.JSONDecodeError("Extra data", text, offset)


def _skip_white_space(text: str, offset: int) -> int:
    space = _WHITE_SPACE.match(text, offset)
    return space.end() if space else offset


def _unwrap_rows(content: object) -> list[Any]:
    """Return the rows of a json file that does not start with a non-empty list.

    Raises:
        DataError: If the file contains no list of objects.
    """
    rows = content.get("data") if isinstance(content, dict) else content
    if isinstance(rows, list) and all(isinstance(row, dict) for row in rows):
        return rows
    kind = f"an object with the keys {list(content)}" if isinstance(content, dict) else TYPE_NAMES[type(content)]
    raise DataError(f"{kind}, not a list of rows", 'write [{"text": ...}, ...], or one object per line as .jsonl')


def _describe_json_error(error: json.JSONDecodeError, text: str) -> tuple[str, str]:
    """Return the message and the remedy for a file that is not JSON."""
    if "\0" in text:
        return "a NUL character", nul_remedy(text)
    if error.msg == "Extra data" and text.lstrip().startswith("{"):
        return "one object per line, not a list", "rename the file to .jsonl"
    if not text.rstrip().endswith(("]", "}")):
        return f"the file is truncated, and ends in {excerpt(text[-40:])}", "download the file again"
    reason = error.msg.removesuffix(" starting at")
    # Show only the text around the error, because the file is often a single line.
    context = excerpt(text[max(0, error.pos - 20) : error.pos + 40])
    return f"not JSON, line {error.lineno}, character {error.colno}: {reason}: {context}", "correct the file"


def read_jsonl(source: Source, data: DataConfig, name: str) -> Iterator[Record]:
    """Yield the objects of a jsonl file, one per line; blank lines are skipped."""
    return check_objects(_flatten(_parse_lines(source, data, name), name, data), name, same_keys=data._same_keys)


def _parse_lines(source: Source, data: DataConfig, name: str) -> Iterator[JsonItem]:
    for row, line in enumerate(read_lines(source, data.encoding, name), 1):
        if line.isspace():
            continue
        try:
            value = DECODER.decode(line)
        except json.JSONDecodeError as error:
            raise DataError(*_describe_line_error(error, line, row), file=name, row=row) from None
        except (DataError, RecursionError) as error:
            raise as_data_error(error, name, row) from None
        yield row, has_suspect_escape(line), value


def _describe_line_error(error: json.JSONDecodeError, line: str, row: int) -> tuple[str, str]:
    """Return the message and the remedy for a line that is not JSON."""
    if "\0" in line:
        return "a NUL character", nul_remedy(line)
    if row == 1 and line.startswith("["):
        return f"a list, not one object per line: {excerpt(line)}", "rename the file to .json"
    if not line.endswith(("\n", "\r")) and (error.pos >= len(line) or not line.rstrip().endswith("}")):
        return f"the last line is truncated: {excerpt(line)}", "delete it, or download the file again"
    reason = error.msg.removesuffix(" starting at")
    return f"not JSON, character {error.pos + 1}: {reason}: {excerpt(line)}", "write one JSON object per line"


# --- Objects as rows ---


TYPE_NAMES = {
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "an object",
    type(None): "null",
}
"""Type of a decoded value -> description in messages."""

_SUSPECT_ESCAPE = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")


def has_suspect_escape(text: str, start: int = 0, end: int = sys.maxsize) -> bool:
    """Return whether JSON text has an escape of NUL or a surrogate, so that `check_strings` must check its value."""
    return bool(_SUSPECT_ESCAPE.search(text, start, end))


def check_objects(items: Iterator[JsonItem], name: str, *, same_keys: bool = True) -> Iterator[Record]:
    """Yield objects as records, and check that all have the same keys and types.

    Raises:
        DataError: If a value is not an object, its keys or types differ from earlier rows, or a string cannot be
            tokenized.
    """
    first_types: dict[str, tuple[str, int] | None] = {}
    last_shape = None
    for row, is_suspect, record in items:
        if not isinstance(record, dict):
            message = f"{TYPE_NAMES[type(record)]} instead of an object: {excerpt(json.dumps(record))}"
            raise DataError(message, 'write rows as {"text": ..., "label": ...}', file=name, row=row)
        if is_suspect:
            check_strings(record, name, row)
        if last_shape is None:
            first_types = dict.fromkeys(record)
        # Rows usually have the same keys and types, and comparing one tuple is faster than comparing key by key.
        row_shape = (*record, *map(type, record.values()))
        if row_shape != last_shape:
            if same_keys:
                _check_shape(record, first_types, name, row)
            last_shape = row_shape
        yield row, record
    if last_shape is None:
        raise empty_file_error(name)


def _check_shape(record: dict[str, Any], first_types: dict[str, tuple[str, int] | None], name: str, row: int) -> None:
    """Compare keys and types with earlier rows, and add new types to `first_types`.

    `first_types` maps each key to its type and the first row with a value, or to None before that row.
    """
    missing_keys = [key for key in first_types if key not in record]
    new_keys = [key for key in record if key not in first_types]
    # Without this check, a misspelled key would be read as a missing value.
    if missing_keys or new_keys:
        changes = [f"no {key!r}" for key in missing_keys[:5]] + [f"a new {key!r}" for key in new_keys[:5]]
        hint = "give every row the same keys, with null for a missing value"
        raise DataError(f"the keys change: {', '.join(changes)}", hint, file=name, row=row)
    for key, item in record.items():
        if item is not None:
            type_name = TYPE_NAMES[type(item)]
            first_type, first_row = first_types[key] = first_types[key] or (type_name, row)
            if type_name != first_type:
                message = f"{type_name}, but {first_type} in row {first_row}"
                raise DataError(message, "give the column values of one type", file=name, row=row, column=key)


def check_strings(value: Mapping[str, Any], name: str, row: int) -> None:
    """Check that all strings in a row can be tokenized.

    Raises:
        DataError: If a string has a NUL or half of a surrogate pair.
    """
    for column, item in value.items():
        for text in _iter_strings([column, item]):
            if "\0" in text:
                raise DataError("a NUL character", "remove it", file=name, row=row, column=column)
            if match := SURROGATE.search(text):
                message, hint = f"half of a surrogate pair: {match[0]!r}", "write the whole character"
                raise DataError(message, hint, file=name, row=row, column=column)


def _iter_strings(value: object) -> Iterator[str]:
    """Yield every string in a JSON value, which can nest deeper than Python's recursion limit."""
    remaining = [value]
    while remaining:
        item = remaining.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            remaining += [*item, *item.values()]
        elif isinstance(item, list):
            remaining += item


def _parse_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        keys = [key for key, _ in pairs]
        duplicate = next(key for key in keys if keys.count(key) > 1)
        raise DataError(f"the key {duplicate!r} occurs twice", "keep one")
    return record


def _parse_integer(digits: str) -> int:
    # Arrow and numpy have no larger integers. Check the length first, because Python converts at most 4,300 digits.
    if len(digits) > 20 or not -(2**63) <= int(digits) < 2**63:
        raise DataError(f"the integer {digits[:40]} does not fit in 64 bits", "write it as text, in quotes")
    return int(digits)


DECODER = json.JSONDecoder(object_pairs_hook=_parse_object, parse_int=_parse_integer)
"""JSON decoder that rejects duplicate keys, and integers of more than 64 bits."""


# In Python, the adjacent strings of a printed numpy array ('a' 'b') would be joined into one.
_ADJACENT_STRINGS = re.compile(r"""['"]\s+['"]""")


def parse_json(value: object) -> Any:
    """Parse a list or an object that is written as JSON, or as Python by pandas; return other values unchanged.

    >>> parse_json('["a", null]'), parse_json("['a', 'b']"), parse_json("['a' 'b']"), parse_json("[sic]")
    (['a', None], ['a', 'b'], "['a' 'b']", '[sic]')
    """
    if not isinstance(value, str) or value.strip()[:1] not in ("{", "["):
        return value
    with suppress(ValueError, RecursionError):
        return json.loads(value)
    with suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        parsed = None if _ADJACENT_STRINGS.search(value) else ast.literal_eval(value.strip())
        return parsed if isinstance(parsed, (list, dict)) else value
    return value


def as_data_error(error: DataError | RecursionError, name: str, row: int | None) -> DataError:
    """Return an error of the decoder as a DataError with the file and the row."""
    if not isinstance(error, DataError):
        error = DataError("lists or objects nest too deep", "flatten them")
    error.file, error.row = name, row
    return error

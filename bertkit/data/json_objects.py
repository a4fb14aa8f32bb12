"""JSON objects as rows: the same keys in every row, one type of value per key, and text that a tokenizer takes."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from bertkit.data.text import SURROGATE, Record, empty_file, excerpt
from bertkit.errors import DataError

Item = tuple[int, bool, Any]
"""A row's number, whether its JSON has a suspect escape, and its value."""

TYPE_NAMES = {
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "an object",
    type(None): "null",
}
"""Type of a decoded value -> its name in messages."""

_SUSPECT_ESCAPE = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")


def has_suspect_escape(text: str, start: int = 0, end: int = sys.maxsize) -> bool:
    """Tell whether JSON text has an escape of NUL or of a surrogate; only then are its strings checked one by one."""
    return bool(_SUSPECT_ESCAPE.search(text, start, end))


def check_objects(items: Iterator[Item], name: str, *, same_keys: bool = True) -> Iterator[Record]:
    """Yield the objects as records.

    Raises:
        DataError: a value is not an object, its keys or types differ from those of the rows before, or it has text
            that no tokenizer could take.
    """
    types: dict[str, tuple[str, int] | None] = {}
    shape = None
    for row, is_suspect, value in items:
        if not isinstance(value, dict):
            what = f"{TYPE_NAMES[type(value)]} where an object belongs: {excerpt(json.dumps(value))}"
            raise DataError(what, 'write rows as {"text": ..., "label": ...}', file=name, row=row)
        if is_suspect:
            check_strings(value, name, row)
        if shape is None:
            types = dict.fromkeys(value)
        # keys and types as one tuple: rows of the same shape, almost all of them, are not compared key by key
        row_shape = (*value, *map(type, value.values()))
        if row_shape != shape:
            if same_keys:
                _check_shape(value, types, name, row)
            shape = row_shape
        yield row, value
    if shape is None:
        raise empty_file(name)


def _check_shape(value: dict[str, Any], types: dict[str, tuple[str, int] | None], name: str, row: int) -> None:
    """Compare keys and types with those of the rows before, and note a type with the row where it is first seen."""
    missing = [key for key in types if key not in value]
    new = [key for key in value if key not in types]
    if missing or new:
        changes = [f"no {key!r}" for key in missing[:5]] + [f"a new {key!r}" for key in new[:5]]
        hint = "give every row the same keys, with null where there is no value"
        raise DataError(f"the keys change: {', '.join(changes)}", hint, file=name, row=row)
    for key, item in value.items():
        if item is not None:
            type_name = TYPE_NAMES[type(item)]
            before, first = types[key] = types[key] or (type_name, row)
            if type_name != before:
                what = f"{type_name} here, {before} in row {first}"
                raise DataError(what, "give the column values of one type", file=name, row=row, column=key)


def check_strings(value: Mapping[str, Any], name: str, row: int) -> None:
    """Refuse strings that no tokenizer could take.

    Raises:
        DataError: one has a NUL or half of a surrogate pair.
    """
    for column, item in value.items():
        for text in _strings([column, item]):
            if "\0" in text:
                raise DataError("a NUL character", "remove it", file=name, row=row, column=column)
            if half := SURROGATE.search(text):
                what, hint = f"half of a surrogate pair: {half[0]!r}", "write the whole character"
                raise DataError(what, hint, file=name, row=row, column=column)


def _strings(value: object) -> Iterator[str]:
    """Yield every string in a JSON value; a loop, since values may nest deeper than Python's recursion limit."""
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
        duplicate = next(key for key in keys if keys.count(key) > 1)
        raise DataError(f"the key {duplicate!r} occurs twice", "keep one")
    return record


def _integer(digits: str) -> int:
    if len(digits) > 20 or not -(2**63) <= int(digits) < 2**63:
        raise DataError(f"the integer {digits[:40]} does not fit in 64 bits", "write it as text, in quotes")
    return int(digits)


DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_int=_integer)
"""Refuses a key that occurs twice, and an integer of more than 64 bits."""


# Python would join the texts of an array of numpy to a single one.
_ADJACENT = re.compile(r"""['"]\s+['"]""")


def parse_json(value: object) -> Any:
    """Return the list or object that text writes in JSON, or in Python as pandas writes it; any other value unchanged.

    >>> parse_json('["a", null]'), parse_json("['a', 'b']"), parse_json("['a' 'b']"), parse_json("[sic]")
    (['a', None], ['a', 'b'], "['a' 'b']", '[sic]')
    """
    if not isinstance(value, str) or value.strip()[:1] not in ("{", "["):
        return value
    with suppress(ValueError, RecursionError):
        return json.loads(value)
    with suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        parsed = None if _ADJACENT.search(value) else ast.literal_eval(value.strip())
        return parsed if isinstance(parsed, (list, dict)) else value
    return value


def as_data_error(error: DataError | RecursionError, name: str, row: int | None) -> DataError:
    """Return a fault of the decoder as a DataError with its file and row."""
    if not isinstance(error, DataError):
        error = DataError("lists or objects nest too deep", "flatten them")
    error.file, error.row = name, row
    return error

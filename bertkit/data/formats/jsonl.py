"""JSON Lines, read strictly: one object per line, with the same keys in every row."""

from __future__ import annotations

import json
from collections.abc import Iterator

from bertkit.data.formats import Format
from bertkit.data.formats.json import flatten_squad
from bertkit.data.json_objects import DECODER, Item, as_data_error, check_objects, has_suspect_escape
from bertkit.data.spans import flatten_exports
from bertkit.data.text import Record, Source, excerpt, nul_remedy, read_lines
from bertkit.errors import DataError
from bertkit.recipe.records import Data


def read(source: Source, data: Data, name: str) -> Iterator[Record]:
    """Yield the objects of a jsonl file, one per line; blank lines are skipped."""
    items = flatten_squad(flatten_exports(_parse_items(source, data, name), name, data), name)
    return check_objects(items, name, same_keys=data._same_keys)


def _parse_items(source: Source, data: Data, name: str) -> Iterator[Item]:
    for row, line in enumerate(read_lines(source, data.encoding, name), 1):
        if line.isspace():
            continue
        try:
            value = DECODER.decode(line)
        except json.JSONDecodeError as error:
            raise DataError(*_describe_fault(error, line, row), file=name, row=row) from None
        except (DataError, RecursionError) as error:
            raise as_data_error(error, name, row) from None
        yield row, has_suspect_escape(line), value


def _describe_fault(error: json.JSONDecodeError, line: str, row: int) -> tuple[str, str]:
    """Describe a line that is not JSON, and its remedy."""
    if "\0" in line:
        return "a NUL character", nul_remedy(line)
    if row == 1 and line.startswith("["):
        return f"a list, not one object per line: {excerpt(line)}", "rename the file to .json"
    if not line.endswith(("\n", "\r")) and (error.pos >= len(line) or not line.rstrip().endswith("}")):
        return f"the last line is truncated: {excerpt(line)}", "delete it, or get the file again"
    reason = error.msg.removesuffix(" starting at")
    return f"not JSON, character {error.pos + 1}: {reason}: {excerpt(line)}", "write one JSON object per line"


FORMAT = Format("jsonl", read, endings=(".jsonl", ".ndjson"))

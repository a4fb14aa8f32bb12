"""Readers of CSV and TSV, which return unchanged text and name the line in every error."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from bertkit.data.text import (
    MAX_CHARS,
    Record,
    Source,
    check_duplicates,
    excerpt,
    has_byte_order_mark,
    name_columns,
    nul_remedy,
    read_lines,
    strip_compression,
    warn_of_lines,
)
from bertkit.errors import DataError, RecipeError
from bertkit.recipe.records import DataConfig
from bertkit.storage.cache import log_once

_DELIMITERS = ",;\t|"
_SEPARATOR = re.compile(r'"?sep=([^"\r\n])"?[\r\n]*')
_NUMBER = r"[+-]*(\d+\.?\d*|\.\d+)"
# Pattern of a cell that is not a column name: blank or a number; more than 80 characters; at least six words; a
# sentence that ends in a punctuation mark.
_DATA_CELL = re.compile(rf"\s*({_NUMBER}\s*)?|.{{81,}}|\s*(\S+\s+){{5}}\S.*|\s*\S.* .*[.!?]\s*", re.DOTALL)


def read(source: Source, data: DataConfig, name: str) -> Iterator[Record]:
    """Yield the rows of a csv or tsv file, whose values are unchanged strings.

    Blank lines are skipped, except in files with one column: there, a blank line before the last row is an empty value.

    Raises:
        DataError: If the file is not CSV, has no rows, or a row has more or fewer fields than the header.
        RecipeError: If ``data.delimiter`` is not one character.
    """
    # 1. Find the delimiter in the first line with text. Python's limit of 131,072 characters per field is too small.
    lines = read_lines(source, data.encoding, name)
    csv.field_size_limit(MAX_CHARS)
    head, dialect = _read_head(lines, data, name)
    delimiter = dialect["delimiter"]
    if data.delimiter is None and delimiter != ",":
        log_once(f"the columns of {name} are separated by {delimiter!r}")
    # 2. Read the records. A record can span lines: `row` is its first line, and `record_lines` has its lines.
    record_lines: list[str] = []
    # Without `strict`, the parser silently appends text after a closing quote to the field.
    reader = csv.reader(_track_lines(chain(head, lines), record_lines), **dialect, strict=True)
    names = data.header or []
    check_duplicates(names, "rename one of them", name)
    row, blank_lines, joined_rows, is_empty = 1, list[int](), list[int](), True
    try:
        for fields in reader:
            if not fields:
                # A blank line above the header is not a value.
                blank_lines += [row] if names else []
            elif not names:
                names = name_columns(fields, name)
            elif len(fields) != len(names):
                raise DataError(*_describe_width(len(fields), len(names), record_lines, delimiter), file=name, row=row)
            else:
                if blank_lines and len(names) == 1:
                    yield from ((line, {names[0]: ""}) for line in blank_lines)
                blank_lines, is_empty = [], False
                # Quotes that open in one line and close in another join the lines. If each line has as many delimiters
                # as a row, the quotes are probably text, such as inch marks.
                if len(record_lines) > 1 and {line.count(delimiter) for line in record_lines} == {len(names) - 1}:
                    joined_rows.append(row)
                yield row, dict(zip(names, fields, strict=True))
            row += len(record_lines)
            record_lines.clear()
    except csv.Error as error:
        message, remedy, column = _explain_error(str(error), "".join(record_lines), names, dialect)
        raise DataError(message, remedy, file=name, row=row, column=column) from None
    # 3. Warn about rows that quotes may have joined, and check that the file has rows.
    remedy = "if the quotes are text: --set data.quoting=none"
    warn_of_lines("quotes join lines that look like rows", name, joined_rows, remedy)
    if is_empty:
        hint = "if the header is a row: --set data.header=[...]" if looks_like_data(names) else "add rows"
        raise DataError("the file has a header but no rows", hint, file=name)


def find_dialect(file: Path, data: DataConfig) -> tuple[str, str]:
    """Return the delimiter and the encoding of a csv or tsv file; ``utf-8-sig`` is UTF-8 with a byte order mark.

    Raises:
        DataError: If the file is empty.
        RecipeError: If ``data.delimiter`` is not one character.
    """
    _, dialect = _read_head(read_lines(file, data.encoding, str(file)), data, str(file))
    encoding = "utf-8-sig" if has_byte_order_mark(file, data.encoding) else data.encoding
    return dialect["delimiter"], encoding


def parse_delimiter(text: str, name: str) -> str:
    """Return the delimiter character; a tab can be written as ``tab``.

    Args:
        text: Delimiter.
        name: Name of the option in messages.

    Raises:
        RecipeError: If the delimiter is not one character, or is a quote or a line break.
    """
    delimiter = {"tab": "\t", "\\t": "\t"}.get(text, text)
    if len(delimiter) != 1 or delimiter in '\0\r\n"':
        example = """--set 'data.delimiter="|"'""" if name == "data.delimiter" else f"{name} '|'"
        remedy = f"write tab for a tab; for | put it in quotes: {example}"
        raise RecipeError(f"{name} must be one character, not {text!r}", remedy)
    return delimiter


def looks_like_data(header: list[str]) -> bool:
    """Return whether a header looks like a row, because a cell is blank, a number, or a long text or sentence.

    >>> looks_like_data(["text", "label"]), looks_like_data(["A fine film .", "1"])
    (False, True)
    """
    return any(map(_DATA_CELL.fullmatch, header))


def _read_head(lines: Iterator[str], data: DataConfig, name: str) -> tuple[list[str], dict[str, Any]]:
    """Read up to the first line with text, and return these lines and the dialect.

    Excel can write a line ``sep=;`` above the header, which sets the delimiter. It is returned as a blank line.

    Raises:
        DataError: If there is no text.
    """
    head = []
    for line in lines:
        separator = _SEPARATOR.fullmatch(line)
        head.append("\n" if separator else line)
        if separator and data.delimiter is None:
            data = data.model_copy(update={"delimiter": separator[1]})
        elif not separator and line.strip("\r\n"):
            return head, _find_dialect(line, data, name)
    raise DataError("the file is empty", "give it a header line and rows", file=name)


def _track_lines(lines: Iterable[str], record_lines: list[str]) -> Iterator[str]:
    """Yield lines, append each to `record_lines`, and raise an error at a NUL character."""
    for line in lines:
        record_lines.append(line)
        if "\0" in line:
            raise csv.Error("NUL")
        yield line


def _find_dialect(line: str, data: DataConfig, name: str) -> dict[str, Any]:
    """Return the arguments of the csv parser: quoting, and the delimiter.

    The delimiter comes from the recipe, is a tab for tsv, or is guessed from a line: a comma if the line has one, or
    else the delimiter that gives the most fields. With ``data.header``, the number of fields must match.
    """
    quoting = csv.QUOTE_NONE if data.quoting == "none" else csv.QUOTE_MINIMAL
    dialects = {delimiter: {"delimiter": delimiter, "quoting": quoting} for delimiter in _DELIMITERS}
    if data.delimiter is not None:
        return {"delimiter": parse_delimiter(data.delimiter, "data.delimiter"), "quoting": quoting}
    if strip_compression(name).endswith(".tsv"):
        return dialects["\t"]
    num_fields = {delimiter: _count_fields(line, dialect) for delimiter, dialect in dialects.items()}
    # One field means that the delimiter does not occur.
    allowed_counts = {len(data.header)} if data.header else set(num_fields.values())
    candidates = [delimiter for delimiter in _DELIMITERS if num_fields[delimiter] in allowed_counts - {1}]
    if "," in candidates or not candidates:
        return dialects[","]
    return dialects[max(candidates, key=lambda delimiter: num_fields[delimiter])]


def _count_fields(text: str, dialect: dict[str, Any]) -> int:
    """Count the fields in the start of a record, in which a quote can be open."""
    lines = io.StringIO(text.replace("\0", ""), newline="")
    return len(next(csv.reader(lines, **dialect), []))


def _describe_width(width: int, expected: int, record_lines: list[str], delimiter: str) -> tuple[str, str]:
    message = f"{width} field{'s' * (width > 1)} instead of {expected}: {excerpt(''.join(record_lines))}"
    if len(record_lines) > 1:
        return message, "if the quotes are text: --set data.quoting=none"
    if width > expected:
        return message, f"put text that holds {delimiter!r} in double quotes, or --set data.delimiter=..."
    return message, "complete the row or delete it"


def _explain_error(error: str, text: str, names: list[str], dialect: dict[str, Any]) -> tuple[str, str, str | None]:
    """Return the message, the remedy and the column for an error of the csv parser."""
    if "\0" in text:
        # The number of fields before the character is the index of its column.
        index = _count_fields(text[: text.index("\0")] + " ", dialect) - 1
        return "a NUL character", nul_remedy(text), names[index] if index < len(names) else None
    remedy = "close or double its quotes, or read them as text: --set data.quoting=none"
    if "field limit" in error:
        return f"a field of more than {MAX_CHARS:,} characters: {excerpt(text)}", remedy, None
    if "unexpected end" in error:
        return f"a quote is never closed: {excerpt(text)}", remedy, None
    return f"text after a closing quote: {excerpt(text)}", remedy, None


def read_tsv(source: Source, data: DataConfig, name: str) -> Iterator[Record]:
    """Yield the rows as `read` does; without ``data.delimiter``, the delimiter is a tab."""
    return read(source, data.model_copy(update={"delimiter": data.delimiter or "tab"}), name)

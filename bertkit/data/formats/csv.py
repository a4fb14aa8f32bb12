"""CSV and TSV, read strictly: values are unchanged text, and every error has its line."""

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
    name_columns,
    nul_remedy,
    read_lines,
    starts_with_mark,
    strip_compression,
    warn_of_lines,
)
from bertkit.errors import DataError, RecipeError
from bertkit.recipe.records import DataConfig
from bertkit.storage.cache import log_once

_DELIMITERS = ",;\t|"
_SEPARATOR = re.compile(r'"?sep=([^"\r\n])"?[\r\n]*')
_NUMBER = r"[+-]*(\d+\.?\d*|\.\d+)"
# Cells that are data rather than names: a number or nothing; more than 80 characters; six words; a sentence with a mark
# at its end.
_DATA = re.compile(rf"\s*({_NUMBER}\s*)?|.{{81,}}|\s*(\S+\s+){{5}}\S.*|\s*\S.* .*[.!?]\s*", re.DOTALL)


def read(source: Source, data: DataConfig, name: str) -> Iterator[Record]:
    """Yield the rows of a csv or tsv file, every value a string exactly as written.

    Blank lines are skipped. In a file with one column, a blank line before the last row is an empty value.

    Raises:
        DataError: If the file is not CSV, has no rows, or a row has more or fewer fields than the header.
        RecipeError: If ``data.delimiter`` is not one character.
    """
    # 1. Find the delimiter in the first line with text. The limit of a field is set before, because Python's default is
    # 131,072 characters.
    lines = read_lines(source, data.encoding, name)
    csv.field_size_limit(MAX_CHARS)
    head, dialect = _read_head(lines, data, name)
    mark = dialect["delimiter"]
    if data.delimiter is None and mark != ",":
        log_once(f"{name} is separated by {mark!r}")
    # 2. Read the records. A record may span lines: `row` is its first line, and `record_lines` has the lines that the
    # parser has read of it.
    record_lines: list[str] = []
    # The parser is strict, because it would otherwise append text after a closing quote to the field without an error.
    reader = csv.reader(_watch_lines(chain(head, lines), record_lines), **dialect, strict=True)
    names = data.header or []
    check_duplicates(names, "rename one of them", name)
    row, blank, joined, is_empty = 1, list[int](), list[int](), True
    try:
        for fields in reader:
            if not fields:
                # Blank lines above the header are never values.
                blank += [row] if names else []
            elif not names:
                names = name_columns(fields, name)
            elif len(fields) != len(names):
                raise DataError(*_wrong_width(len(fields), len(names), record_lines, mark), file=name, row=row)
            else:
                if blank and len(names) == 1:
                    yield from ((line, {names[0]: ""}) for line in blank)
                blank, is_empty = [], False
                # A quote opened in one line and closed in another joins the lines. If each of them has as many
                # delimiters as a row, the quotes are probably text, such as inch marks.
                is_joined = len(record_lines) > 1 and {line.count(mark) for line in record_lines} == {len(names) - 1}
                joined += [row] * is_joined
                yield row, dict(zip(names, fields, strict=True))
            row += len(record_lines)
            record_lines.clear()
    except csv.Error as error:
        message, remedy, column = _explain_fault(str(error), "".join(record_lines), names, dialect)
        raise DataError(message, remedy, file=name, row=row, column=column) from None
    # 3. Warn about rows that quotes may have joined, and check that there are rows.
    remedy = "if the quotes are text, --set data.quoting=none"
    warn_of_lines("quotes join lines that look like rows", name, joined, remedy)
    if is_empty:
        hint = "name its columns with --set data.header=[...]" if looks_like_data(names) else "add rows"
        raise DataError("the file has a header but no rows", hint, file=name)


def find_dialect(file: Path, data: DataConfig) -> tuple[str, str]:
    """Return the delimiter and the encoding of a csv or tsv file; ``utf-8-sig`` is UTF-8 with a byte order mark.

    Raises:
        DataError, RecipeError: As in `read`.
    """
    _, dialect = _read_head(read_lines(file, data.encoding, str(file)), data, str(file))
    encoding = "utf-8-sig" if starts_with_mark(file, data.encoding) else data.encoding
    return dialect["delimiter"], encoding


def parse_delimiter(text: str, name: str) -> str:
    """Return the character of a delimiter, which may be written as ``tab``.

    Args:
        text: Delimiter.
        name: Name of the option in messages.

    Raises:
        RecipeError: If it is more than one character, or ends a line.
    """
    delimiter = {"tab": "\t", "\\t": "\t"}.get(text, text)
    if len(delimiter) != 1 or delimiter in '\0\r\n"':
        example = """--set 'data.delimiter="|"'""" if name == "data.delimiter" else f"{name} '|'"
        remedy = f"write tab for a tab; for | put it in quotes: {example}"
        raise RecipeError(f"{name} must be one character, not {text!r}", remedy)
    return delimiter


def looks_like_data(header: list[str]) -> bool:
    """Return whether a header looks like a row, because a cell is a number, blank, or a sentence.

    >>> looks_like_data(["text", "label"]), looks_like_data(["A fine film .", "1"])
    (False, True)
    """
    return any(map(_DATA.fullmatch, header))


def _read_head(lines: Iterator[str], data: DataConfig, name: str) -> tuple[list[str], dict[str, Any]]:
    """Read the lines up to the first with text, and return them with the dialect.

    Excel names the delimiter in a line ``sep=;`` before the header, which is returned as a blank line.

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


def _watch_lines(lines: Iterable[str], record_lines: list[str]) -> Iterator[str]:
    """Yield lines, keep the lines of the current record, and raise an error at a NUL character."""
    for line in lines:
        record_lines.append(line)
        if "\0" in line:
            raise csv.Error("NUL")
        yield line


def _find_dialect(line: str, data: DataConfig, name: str) -> dict[str, Any]:
    """Return the quoting and the delimiter of the csv parser: from the recipe, a tab for tsv, or guessed from a line.

    The guess is a comma if it splits the line at all, or else the delimiter that splits the line into the most fields,
    or into the number of names in ``data.header``.
    """
    quoting = csv.QUOTE_NONE if data.quoting == "none" else csv.QUOTE_MINIMAL
    dialects = {mark: {"delimiter": mark, "quoting": quoting} for mark in _DELIMITERS}
    if data.delimiter is not None:
        return {"delimiter": parse_delimiter(data.delimiter, "data.delimiter"), "quoting": quoting}
    if strip_compression(name).endswith(".tsv"):
        return dialects["\t"]
    widths = {mark: _count_fields(line, dialect) for mark, dialect in dialects.items()}
    # A delimiter that does not occur gives a single field, so one field does not count as a match.
    allowed = {len(data.header)} if data.header else set(widths.values())
    fits = [mark for mark in _DELIMITERS if widths[mark] in allowed - {1}]
    if "," in fits or not fits:
        return dialects[","]
    return dialects[max(fits, key=lambda mark: widths[mark])]


def _count_fields(text: str, dialect: dict[str, Any]) -> int:
    """Count the fields of the start of a record, whose last quote may still be open."""
    lines = io.StringIO(text.replace("\0", ""), newline="")
    return len(next(csv.reader(lines, **dialect), []))


def _wrong_width(width: int, expected: int, record_lines: list[str], mark: str) -> tuple[str, str]:
    message = f"{width} field{'s' * (width > 1)} instead of {expected}: {excerpt(''.join(record_lines))}"
    if len(record_lines) > 1:
        return message, "if its quotes are text, --set data.quoting=none"
    if width > expected:
        return message, f"put text that holds {mark!r} in double quotes, or --set data.delimiter=..."
    return message, "complete the row or delete it"


def _explain_fault(fault: str, text: str, names: list[str], dialect: dict[str, Any]) -> tuple[str, str, str | None]:
    """Return the message, the remedy and the column of an error of the csv parser in this record."""
    if "\0" in text:
        # The fields before the character show its column.
        index = _count_fields(text[: text.index("\0")] + " ", dialect) - 1
        return "a NUL character", nul_remedy(text), names[index] if index < len(names) else None
    remedy = "close or double its quotes, or read them as text: --set data.quoting=none"
    if "field limit" in fault:
        return f"a field of more than {MAX_CHARS:,} characters: {excerpt(text)}", remedy, None
    if "unexpected end" in fault:
        return f"a quote is opened and never closed: {excerpt(text)}", remedy, None
    return f"text after a closing quote: {excerpt(text)}", remedy, None


def read_tsv(source: Source, data: DataConfig, name: str) -> Iterator[Record]:
    """Yield the rows as `read` does; without ``data.delimiter``, the delimiter is a tab."""
    return read(source, data.model_copy(update={"delimiter": data.delimiter or "tab"}), name)

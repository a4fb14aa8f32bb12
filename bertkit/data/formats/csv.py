"""Read csv and tsv strictly: each value is the text that was written, each fault names its line."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import logging
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from pathlib import Path
from typing import IO, Any

from bertkit.errors import DataError, RecipeError
from bertkit.recipe.records import Data

Record = tuple[int, dict[str, Any]]
"""A row's place from 1 (the line in csv, tsv and jsonl; the row in json and Parquet) and its raw columns."""

Source = Path | IO[bytes]

MAX_CHARS = 10_000_000
"""No line and no field is longer: a text of ten novels is a fault of the file."""

_BLOCK = 1 << 20  # bytes
_DELIMITERS = ",;\t|"


def read_csv(source: Source, data: Data, name: str) -> Iterator[Record]:
    """Yield the rows of a csv or tsv file, every value a string exactly as written.

    Blank lines are skipped, but where there is only one column each before the last row is an empty value.
    """
    lines = read_lines(source, data.encoding, name)
    head = _up_to_first_text(lines)
    if not head:
        raise DataError("the file is empty", "give it a header line and rows", file=name)
    dialect = _find_dialect(head[-1], data, name)
    csv.field_size_limit(MAX_CHARS)
    opened: list[str] = []  # lines of the record being read, which begins in line `row`
    reader = csv.reader(_watch(chain(head, lines), opened), **dialect, strict=True)
    names = data.header or []
    _check_names(names, name)
    row, blank, is_empty = 1, list[int](), True
    try:
        for fields in reader:
            if not fields:
                blank += [row] if names else []
            elif not names:
                names = fields
                _check_names(names, name)
            elif len(fields) != len(names):
                raise DataError(*_wrong_width(fields, names, opened, dialect), file=name, row=row)
            else:
                if blank and len(names) == 1:
                    yield from ((line, {names[0]: ""}) for line in blank)
                blank, is_empty = [], False
                yield row, dict(zip(names, fields, strict=True))
            row += len(opened)
            opened.clear()
    except csv.Error as error:
        what, remedy, column = _explain(str(error), "".join(opened), names, dialect)
        raise DataError(what, remedy, file=name, row=row, column=column) from None
    if is_empty:
        hint = "name its columns with --set data.header=[...]" if looks_like_data(names) else "add rows"
        raise DataError("the file has a header but no rows", hint, file=name)


def looks_like_data(header: list[str]) -> bool:
    """Say whether a header line reads like a row, because a cell is a number, blank, or a whole sentence.

    >>> looks_like_data(["text", "label"]), looks_like_data(["A fine film .", "1"])
    (False, True)
    """
    return any(
        not cell.strip()
        or cell.strip().lstrip("+-").replace(".", "", 1).isdecimal()
        or len(cell) > 80
        or len(cell.split()) >= 6
        for cell in header
    )


def read_lines(source: Source, encoding: str, name: str) -> Iterator[str]:
    """Yield the lines of a text file with their ends, be they LF, CRLF or CR."""
    rest, row = "", 1
    for text in read_text(source, encoding, name):
        lines = io.StringIO(rest + text, newline="").readlines()
        if lines and len(lines[0]) > MAX_CHARS:
            raise DataError(f"a line of more than {MAX_CHARS:,} characters", "split it", file=name, row=row)
        rest = lines.pop() if lines else ""
        row += len(lines)
        yield from lines
    if rest:
        yield rest


def read_text(source: Source, encoding: str, name: str) -> Iterator[str]:
    """Yield the text of a file in blocks, without its byte order mark.

    Raises:
        DataError: bytes are not in this encoding, or a gzip file is damaged.
        RecipeError: there is no such encoding.
    """
    decoder = _find_decoder(encoding)
    size, breaks, is_start = 0, Counter[str](), True
    with _open(source) as stream:
        while True:
            try:
                block = stream.read(_BLOCK)
                text = decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                before = error.object[: error.start]
                row = 1 + max(breaks[mark] + before.count(mark.encode()) for mark in "\n\r")
                raise DataError(*_undecodable(error, encoding, size + len(block)), file=name, row=row) from None
            except UnicodeError as error:
                raise DataError(str(error), "--set data.encoding=utf-8", file=name) from None
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                raise DataError(f"damaged gzip file: {error}", "download it again", file=name) from None
            if is_start and text:
                text, is_start = text.removeprefix("\ufeff"), False
            yield text
            if not block:
                return
            size += len(block)
            breaks.update({mark: text.count(mark) for mark in "\n\r"})


def guess_encoding(start: bytes) -> str:
    """Guess the encoding of text that is not UTF-8 from its byte order mark or its zero bytes.

    >>> guess_encoding("text".encode("utf-16-le")), guess_encoding("é".encode("cp1252"))
    ('utf-16-le', 'cp1252')
    """
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if start.count(0) > max(2, len(start) / 4):
        return "utf-16-le" if start[1::2].count(0) > start[::2].count(0) else "utf-16-be"
    return "cp1252"


def nul_remedy(text: str) -> str:
    """Say what to do about NUL characters: UTF-16 that was read as UTF-8 is full of them."""
    guess = guess_encoding(text.encode("utf-8", "replace"))
    utf16 = f"the file looks like {guess}: --set data.encoding={guess}"
    return utf16 if guess.startswith("utf-16") else "remove it"


def excerpt(text: str, length: int = 60) -> str:
    """Quote the start of a text.

    >>> excerpt("to be or not to be", 5)
    "'to be...'"
    """
    text = text.strip("\r\n")
    return repr(text if len(text) <= length else text[:length] + "...")


def _open(source: Source) -> AbstractContextManager[IO[bytes]]:
    if not isinstance(source, Path):
        return nullcontext(source)
    return gzip.open(source) if source.suffix.lower() == ".gz" else source.open("rb")  # type: ignore[return-value]


def _find_decoder(encoding: str) -> codecs.IncrementalDecoder:
    try:
        " ".encode(encoding)
        return codecs.getincrementaldecoder(encoding)()
    except (LookupError, ValueError):
        hint = "Python knows e.g. utf-8, utf-16, cp1252"
        raise RecipeError(f"data.encoding: no text encoding is called {encoding!r}", hint) from None


def _undecodable(error: UnicodeDecodeError, encoding: str, read: int) -> tuple[str, str]:
    """Say which of the bytes read so far is wrong, and what to do; the decoder was given the last of them."""
    byte, offset = error.object[error.start], read - len(error.object) + error.start
    guess = guess_encoding(error.object)
    remedy = f"if the file is {guess}, --set data.encoding={guess}"
    if guess == encoding.lower():
        remedy = "repair the file"
    return f"byte 0x{byte:02x} at offset {offset} is not {encoding}", remedy


def _up_to_first_text(lines: Iterator[str]) -> list[str]:
    head = []
    for line in lines:
        head.append(line)
        if line.strip("\r\n"):
            return head
    return []


def _watch(lines: Iterable[str], opened: list[str]) -> Iterator[str]:
    """Pass lines on, keep those of the record being read, and stop at a NUL character."""
    for line in lines:
        opened.append(line)
        if "\0" in line:
            raise csv.Error("NUL")
        yield line


def _find_dialect(line: str, data: Data, name: str) -> dict[str, Any]:
    """Give the csv parser its quoting and delimiter: as the recipe says, tab for tsv, or read off a line."""
    quoting = csv.QUOTE_NONE if data.quoting == "none" else csv.QUOTE_MINIMAL
    dialects = {mark: {"delimiter": mark, "quoting": quoting} for mark in _DELIMITERS}
    if data.delimiter is not None:
        delimiter = {"tab": "\t", "\\t": "\t"}.get(data.delimiter, data.delimiter)
        if len(delimiter) != 1 or delimiter in '\0\r\n"':
            hint = "write tab for a tab; for | put it in quotes: --set 'data.delimiter=\"|\"'"
            raise RecipeError(f"data.delimiter must be one character, not {data.delimiter!r}", hint)
        return {"delimiter": delimiter, "quoting": quoting}
    if name.lower().removesuffix(".gz").endswith(".tsv"):
        return dialects["\t"]
    widths = {mark: _count_fields(line, dialect) for mark, dialect in dialects.items()}
    wanted = {len(data.header)} if data.header else set(widths.values())
    fits = [mark for mark in _DELIMITERS if widths[mark] in wanted - {1}]
    if "," in fits or not fits:
        return dialects[","]
    delimiter = max(fits, key=lambda mark: widths[mark])
    logging.getLogger("bertkit").info("%s is separated by %r", name, delimiter)
    return dialects[delimiter]


def _count_fields(text: str, dialect: dict[str, Any]) -> int:
    """Count the fields that a token of a record begins, be its last quote closed or not."""
    lines = io.StringIO(text.replace("\0", ""), newline="")
    return len(next(csv.reader(lines, **dialect), []))


def _check_names(names: list[str], name: str) -> None:
    twice = next((column for column, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise DataError("two columns have one name", "rename one of them", file=name, column=twice)


def _wrong_width(fields: list[str], names: list[str], opened: list[str], dialect: dict[str, Any]) -> tuple[str, str]:
    got, wanted, mark = len(fields), len(names), dialect["delimiter"]
    what = f"{got} field{'s' * (got > 1)} instead of {wanted}: {excerpt(''.join(opened))}"
    if len(opened) > 1:
        return what, "if its quotes are text, --set data.quoting=none"
    if got > wanted:
        return what, f"put text that holds {mark!r} in double quotes, or --set data.delimiter=..."
    return what, "complete the row or delete it"


def _explain(fault: str, text: str, names: list[str], dialect: dict[str, Any]) -> tuple[str, str, str | None]:
    """Tell what made the csv parser stop in this record: what, remedy, column."""
    if "\0" in text:
        place = _count_fields(text[: text.index("\0")] + " ", dialect) - 1
        return "a NUL character", nul_remedy(text), names[place] if place < len(names) else None
    remedy = "close or double its quotes, or read them as text: --set data.quoting=none"
    if "field limit" in fault:
        return f"a field of more than {MAX_CHARS:,} characters: {excerpt(text)}", remedy, None
    if "unexpected end" in fault:
        return f"a quote is opened and never closed: {excerpt(text)}", remedy, None
    return f"text after a closing quote: {excerpt(text)}", remedy, None

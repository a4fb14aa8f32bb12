"""Read text files in any encoding, also compressed, and name the line in every error."""

from __future__ import annotations

import codecs
import gzip
import io
import math
import re
import unicodedata
import zlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, Any

from bertkit.errors import DataError, RecipeError
from bertkit.recipe.records import DataConfig
from bertkit.storage.cache import log_once

Record = tuple[int, dict[str, Any]]
"""Row number from 1 (the line in text files, the row in json and Parquet), and raw columns."""

JsonItem = tuple[int, bool, Any]
"""Row number, whether the row's JSON has a suspect escape, and the decoded value."""

Source = Path | IO[bytes]

MAX_CHARS = 10_000_000
"""Maximum characters per line or field, about ten novels; a longer text is an error in the file."""

SURROGATE = re.compile("[\ud800-\udfff]")
"""Pattern of half a surrogate pair; a text that contains one cannot be written or tokenized."""

COMPRESSED = {".gz": ("gzip", b"\x1f\x8b"), ".zst": ("zstd", b"\x28\xb5\x2f\xfd")}
"""Ending of a compressed text file -> name and first bytes of the compression format."""

_BLOCK_BYTES = 1 << 20  # bytes


def strip_compression(name: str) -> str:
    """Return the name of a file in lower case, without the ending of a compression format.

    >>> strip_compression("Train.JSONL.zst")
    'train.jsonl'
    """
    path = Path(name.lower())
    return path.stem if path.suffix in COMPRESSED else path.name


def read_lines(source: Source, encoding: str, name: str) -> Iterator[str]:
    """Yield the lines of a text file, including LF, CRLF or CR; warn if only some lines end in CR.

    Raises:
        DataError: If a line has more than `MAX_CHARS` characters, or as in `read_text`.
    """
    remainder, row, cr_lines = "", 1, array("q")
    for text in read_text(source, encoding, name):
        # StringIO splits at LF, CRLF and CR only; `str.splitlines` would also split at U+2028 inside a text.
        lines = io.StringIO(remainder + text, newline="").readlines()
        lengths = list(map(len, lines))
        if max(lengths, default=0) > MAX_CHARS:
            row += lengths.index(max(lengths))
            raise DataError(f"a line of more than {MAX_CHARS:,} characters", "split it", file=name, row=row)
        # The last line of a block can continue in the next block, as can a CR at the end, if LF follows.
        remainder = lines.pop() if lines and not lines[-1].endswith("\n") else ""
        cr_lines.extend(index for index, line in enumerate(lines, row) if line.endswith("\r"))
        row += len(lines)
        yield from lines
    # In files of old Macs, every line ends in CR.
    if len(cr_lines) < row - 1:
        problem = "the line ends in a carriage return, unlike other lines"
        warn_of_lines(problem, name, cr_lines, "remove it if it splits a text")
    if remainder:
        yield remainder


def read_text(source: Source, encoding: str, name: str) -> Iterator[str]:
    """Yield the text of a file in blocks of a megabyte, without its byte order mark.

    Raises:
        DataError: If bytes are not in this encoding, or a compressed file is damaged.
        RecipeError: If the encoding is unknown.
    """
    decoder = _find_decoder(encoding)
    is_utf8 = codecs.lookup(encoding).name == "utf-8"
    # `breaks` counts LF and CR in earlier blocks. A line ends in one or both, so the larger count is the number of
    # lines.
    size, breaks, is_start, is_ascii = 0, Counter[str](), True, True
    with _open_source(source) as stream:
        while True:
            try:
                block = stream.read(_BLOCK_BYTES)
                text = decoder.decode(block, final=not block)
            except UnicodeError as error:
                # For UTF-16 without a byte order mark, the class of the error depends on the version of Python.
                if not isinstance(error, UnicodeDecodeError) or "BOM" in error.reason:
                    message = getattr(error, "reason", str(error))
                    raise DataError(message, "add --set data.encoding=utf-8", file=name) from None
                valid_bytes = error.object[: error.start]
                row = 1 + max(breaks[char] + valid_bytes.count(char.encode()) for char in "\n\r")
                # Either the file is truncated, or its last byte is a letter in another encoding.
                if not block and not (isinstance(source, Path) and is_ascii):
                    message = f"the {encoding} text ends inside a character, after {size:,} bytes"
                    raise DataError(message, "the file is truncated: download it again", file=name, row=row) from None
                raise DataError(*_describe_wrong_byte(error, encoding, size + len(block)), file=name, row=row) from None
            except (OSError, EOFError, zlib.error) as error:
                raise _damage_error(error, name) from None
            # Encodings such as utf-7 and unicode_escape can encode half of a surrogate pair; UTF-8 cannot.
            if not is_utf8 and (surrogate := SURROGATE.search(text)):
                row = 1 + max(breaks[char] + text.count(char, 0, surrogate.start()) for char in "\n\r")
                message = f"half of a surrogate pair: {surrogate[0]!r}"
                raise DataError(message, "write the whole character", file=name, row=row)
            if is_start and text:
                text, is_start = text.removeprefix("\ufeff"), False
            yield text
            if not block:
                return
            size, is_ascii = size + len(block), is_ascii and text.isascii()
            breaks.update({char: text.count(char) for char in "\n\r"})


def has_byte_order_mark(file: Path, encoding: str) -> bool:
    """Return whether a file starts with the byte order mark of UTF-8, and the encoding is UTF-8."""
    with _open_source(file) as stream:
        return codecs.lookup(encoding).name == "utf-8" and stream.read(3) == codecs.BOM_UTF8


def guess_encoding(start: bytes) -> str:
    """Guess the encoding of text that is not UTF-8 from its byte order mark or its zero bytes.

    >>> guess_encoding("text".encode("utf-16-le")), guess_encoding("é".encode("cp1252"))
    ('utf-16-le', 'cp1252')
    """
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    # A Latin letter in UTF-16 has a zero byte, which is the second byte in little-endian order.
    if start.count(0) > max(2, len(start) / 4):
        return "utf-16-le" if start[1::2].count(0) > start[::2].count(0) else "utf-16-be"
    return "cp1252"


def nul_remedy(text: str) -> str:
    """Return the remedy for a NUL character; many of them mean that the text is UTF-16."""
    guess = guess_encoding(text.encode("utf-8", "replace"))
    utf16 = f"the file looks like {guess}: --set data.encoding={guess}"
    return utf16 if guess.startswith("utf-16") else "remove it"


def excerpt(text: str, length: int = 60) -> str:
    """Quote at most the first `length` characters of a text.

    >>> excerpt("to be or not to be", 5)
    "'to be...'"
    """
    text = text.strip("\r\n")
    return repr(text if len(text) <= length else text[:length] + "...")


def name_lines(lines: Iterable[int | str | None]) -> str:
    """Return the end of a message, which lists further lines or files with the same error, or an empty text.

    >>> name_lines([3]), name_lines(range(4, 7)), name_lines(["notes/a.txt"]), name_lines([])
    (' (also in line 3)', ' (also in lines 4, 5, 6)', ' (also in a.txt)', '')
    """
    names = [Path(str(line)).name for line in lines]
    listing = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
    kind = "line " if len(names) == 1 else "lines "
    return f" (also in {kind if names[0].isdigit() else ''}{listing})" if names else ""


def warn_of_lines(problem: str, name: str, lines: Sequence[int], remedy: str) -> None:
    """Log a warning about some lines of a file, if there are any."""
    if lines:
        log_once(f"warning: {name}:{lines[0]}: {problem}{name_lines(lines[1:])}; {remedy}")


def _open_source(source: Source) -> AbstractContextManager[IO[bytes]]:
    if not isinstance(source, Path):
        return nullcontext(source)
    if source.suffix.lower() == ".zst":
        import pyarrow

        return pyarrow.input_stream(str(source), compression="zstd")  # type: ignore[no-any-return]
    return gzip.open(source) if source.suffix.lower() == ".gz" else source.open("rb")  # type: ignore[return-value]


def _damage_error(error: Exception, name: str) -> Exception:
    """Return the error for a damaged compressed file; disk errors, which have an errno, are returned unchanged."""
    if isinstance(error, OSError) and error.errno:
        return error
    compression, _ = COMPRESSED.get(Path(name).suffix.lower(), COMPRESSED[".gz"])
    return DataError(f"damaged {compression} file: {error}", "download it again", file=name)


def _find_decoder(encoding: str) -> codecs.IncrementalDecoder:
    try:
        # This raises LookupError for codecs such as base64, which are not text encodings.
        " ".encode(encoding)
        return codecs.getincrementaldecoder(encoding)()
    except (LookupError, ValueError):
        hint = "use a name that Python knows, such as utf-8, utf-16 or cp1252"
        raise RecipeError(f"data.encoding: unknown text encoding {encoding!r}", hint) from None


def _describe_wrong_byte(error: UnicodeDecodeError, encoding: str, bytes_read: int) -> tuple[str, str]:
    """Return a message about the wrong byte, and the remedy.

    Args:
        error: Error of the decoder, with the offset in the last block.
        encoding: Encoding of the decoder.
        bytes_read: Number of bytes up to the end of the last block.
    """
    byte, offset = error.object[error.start], bytes_read - len(error.object) + error.start
    guess = guess_encoding(error.object)
    remedy = f"if the file is {guess}: --set data.encoding={guess}"
    if guess == encoding.lower():
        remedy = "repair the file"
    return f"byte 0x{byte:02x} at offset {offset} is not valid {encoding}", remedy


def check_nul(line: str, name: str, row: int) -> None:
    """Check that a line has no NUL character.

    Raises:
        DataError: If it has one.
    """
    if "\0" in line:
        raise DataError("a NUL character", nul_remedy(line), file=name, row=row)


def check_duplicates(names: Sequence[str], remedy: str, name: str | Path) -> None:
    """Check that no two columns have the same name.

    Raises:
        DataError: If two columns have the same name; `remedy` is its remedy.
    """
    duplicate = next((column for column, count in Counter(names).items() if count > 1), None)
    if duplicate is not None:
        raise DataError("two columns have the same name", remedy, file=name, column=duplicate)


def name_columns(names: list[str], file: str | Path) -> list[str]:
    """Return column names; if several are empty, they become ``Unnamed: INDEX``, as in pandas.

    >>> name_columns(["text", "", "label", ""], "rows.csv"), name_columns(["", "text"], "rows.csv")
    (['text', 'Unnamed: 1', 'label', 'Unnamed: 3'], ['', 'text'])

    Raises:
        DataError: If two columns have the same name.
    """
    if names.count("") > 1:
        names = [name or f"Unnamed: {index}" for index, name in enumerate(names)]
    check_duplicates(names, "rename one of them", file)
    return names


def describe_record(row: Mapping[str, Any], message: str) -> str:
    """Return the id of a row for an error, or an empty text if the row has no id or the message contains it.

    >>> describe_record({"id": "T-7"}, "no label"), describe_record({"id": "T-7"}, "the id T-7 occurs twice")
    ("id 'T-7'", '')
    """
    return "" if row.get("id") is None or str(row["id"]) in message else f"id {row['id']!r}"


def as_number(value: Any) -> float:
    """Return a number or a text as a float, or NaN for anything else.

    >>> as_number("2.5"), as_number(None)
    (2.5, nan)
    """
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def normalize(text: str) -> str:
    r"""Return a form that is the same for texts that differ only in case, whitespace or Unicode form.

    >>> normalize("  The Ｃａｔ\tsleeps. ")
    'the cat sleeps.'
    """
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def is_blank_line(line: str) -> bool:
    """Return whether a line has only spaces and tabs; other Unicode whitespace counts as text."""
    return not line.strip(" \t\r\n")


def empty_file_error(name: str) -> DataError:
    """Return the error for a file without rows."""
    return DataError("the file is empty", "add rows", file=name)


def source_column(canonical: str, data: DataConfig) -> str:
    """Return the source column that the recipe maps to a canonical column, or else the canonical name."""
    column = data.columns.get(canonical)
    return column if isinstance(column, str) else canonical

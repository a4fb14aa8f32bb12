"""What `python -m NAME` does in a package: rows in, one line of JSON per row out.

This module is copied into packages.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from bertkit.data.json_objects import DECODER
from bertkit.errors import BertkitError, DataError, UsageError, located
from bertkit.runtime.packaged_model import MODEL, ROWS, PackagedModel
from bertkit.storage.exports import read_checksum

_INTERRUPTED = 130
_NOT_LINES = (".csv", ".tsv", ".json", ".parquet", ".gz", ".zip", ".xlsx")


def main(load: Callable[..., PackagedModel], name: str, version: str) -> int:
    """Answer the rows on the command line, of a file or on standard input, and return the exit code.

    Args:
        load: makes the model; it takes `check`.
        name: of the package, for the help.
        version: the name with the version of the package, if it has one, and that of bertkit.
    """
    arguments = _read_arguments(name)
    try:
        if arguments.version:
            sys.stdout.write(f"{version}, model {read_checksum(MODEL)[:12]}\n")
            return 0
        _check_rows(arguments)
        model = load(check=arguments.check)
        remaining = _read_rows(arguments)
        while rows := list(islice(remaining, arguments.batch)):
            for record in _answer_rows(model, rows, arguments):
                sys.stdout.buffer.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
            sys.stdout.buffer.flush()
    except BertkitError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    except BrokenPipeError:  # the reader has what it wants
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return _INTERRUPTED
    return 0


def _read_arguments(name: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m {name}",
        description="Predict texts or rows, and print one line of JSON for each.",
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help="text or JSON object; without any, lines of stdin")
    parser.add_argument("--file", metavar="FILE", help="read the lines of a file: texts or JSON objects")
    parser.add_argument("--texts", action="store_true", help="take every row for a text, also one that begins with {")
    parser.add_argument("--embed", action="store_true", help="print vectors, of models that make some")
    parser.add_argument("--batch", type=int, default=32, metavar="N", help="lines answered together (default: 32)")
    parser.add_argument("--check", action="store_true", help="compare all files with their checksums first")
    parser.add_argument("--version", action="store_true", help="print the version and the checksum of the model")
    arguments = parser.parse_args()
    if arguments.batch < 1:
        parser.error("--batch must be at least 1")
    return arguments


def _check_rows(arguments: argparse.Namespace) -> None:
    """Check that rows are given in one way, and that none is the name of a file whose lines are meant.

    Raises:
        UsageError: they are not, one is, or a file has another format than lines.
    """
    if arguments.file is not None and arguments.rows:
        raise UsageError("--file and a ROW", "give one or the other")
    if arguments.file is not None and arguments.file.lower().endswith(_NOT_LINES):
        raise UsageError(f"--file {arguments.file} has no row per line", "convert it to JSON lines (.jsonl)")
    # `Path.is_file` fails on a text that is too long for a name
    name = next((row for row in arguments.rows if os.path.isfile(row)), None)  # noqa: PTH113
    if name is not None and not arguments.texts:
        raise UsageError(f"{name} is a file, and not a text", f"--file {name} for its lines; --texts if it is a text")


def _read_rows(arguments: argparse.Namespace) -> Iterator[tuple[int, Any]]:
    """Yield the number and the content of each row; empty lines are left out."""
    lines: Iterable[str] = arguments.rows or _read_lines(arguments.file)
    for number, line in enumerate(lines, 1):
        if line.strip():
            with located(file=arguments.file or ROWS, row=number):
                yield number, read_row(line, is_text=arguments.texts)


def read_row(line: str, *, is_text: bool) -> Any:
    """Read a line as a row: an object of JSON where it begins with a brace, and else a text.

    Raises:
        DataError: it begins like an object of JSON, and is none, or has a key twice.
    """
    if is_text or not line.lstrip().startswith("{"):
        return line
    try:
        return DECODER.decode(line)
    except (ValueError, RecursionError):
        remedy = "correct it; or, if all rows are texts, --texts"
        raise DataError("the line begins like an object of JSON, and is none", remedy) from None


def _read_lines(name: str | None) -> Iterator[str]:
    """Yield the lines of a file, or of standard input.

    Raises:
        DataError: it cannot be read, or is not UTF-8.
    """
    with _open_lines(name) as stream:
        for number, line in enumerate(stream, 1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError:
                raise DataError("the line is not UTF-8", "convert it", file=name or "stdin", row=number) from None


def _open_lines(name: str | None) -> AbstractContextManager[BinaryIO]:
    if name is None:
        return nullcontext(sys.stdin.buffer)
    try:
        return Path(name).open("rb")
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", file=name) from None


def _answer_rows(
    model: PackagedModel, rows: list[tuple[int, Any]], arguments: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Yield a record per row: the columns of the row, where it has some, and what is predicted."""
    try:
        contents = [row for _, row in rows]
        answers = _embed(model, contents) if arguments.embed else model.predict(contents)
    except DataError as error:
        error.file, error.row = arguments.file or error.file, rows[(error.row or 1) - 1][0]
        raise
    for (_, row), answer in zip(rows, answers, strict=True):
        yield {**(row if isinstance(row, dict) else {"text": row}), **answer}


def _embed(model: PackagedModel, rows: list[Any]) -> list[dict[str, Any]]:
    """Compute a vector per row.

    Raises:
        UsageError: the model makes none.
    """
    embed = getattr(model, "embed", None)
    if embed is None:
        raise UsageError("the model makes no vectors", "leave out --embed")
    texts = [row.get("text") if isinstance(row, dict) else row for row in rows]
    return [{"vector": vector.tolist()} for vector in embed(texts)]

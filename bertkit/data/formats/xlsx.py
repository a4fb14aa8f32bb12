"""Excel workbooks, by openpyxl: the first sheet, whose first row names the columns."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertkit.data.formats import Format
from bertkit.data.text import Record, Source, empty_file, refuse_duplicates
from bertkit.errors import DataError
from bertkit.progress import log
from bertkit.recipe.plugins import import_extra
from bertkit.recipe.records import Data


def read(source: Source, data: Data, name: str) -> Iterator[Record]:
    """Yield the rows of the first sheet, with values of cells as Excel has computed them; blank rows are skipped.

    A blank cell is an empty text, as in csv.

    Raises:
        UnavailableError: openpyxl is not installed.
        DataError: it is no workbook, or a column has no name, or that of another.
    """
    openpyxl = import_extra(
        "openpyxl", "Excel workbooks need the package openpyxl", "xlsx", "save it as CSV", file=name
    )
    return _read_rows(openpyxl, source, data, name)


def _read_rows(openpyxl: Any, source: Source, data: Data, name: str) -> Iterator[Record]:
    rows = _read_cells(openpyxl, source, name)
    header = data.header or [str(cell).strip() for cell in next(rows, (0, ()))[1] if _is_filled(cell)]
    if not header:
        raise empty_file(name)
    refuse_duplicates(header, "rename one of them", name)
    number = 0
    for number, cells in rows:
        if any(map(_is_filled, cells[len(header) :])):
            raise DataError("more cells than columns with a name", "name the column", file=name, row=number)
        filled = ("" if cell is None else cell for cell in (*cells, *[None] * len(header)))
        yield number, dict(zip(header, filled, strict=False))
    if not number:
        raise DataError("the file has columns but no rows", "add rows", file=name)


def _read_cells(openpyxl: Any, source: Source, name: str) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Yield the rows of the first sheet that are not blank, with their numbers."""
    try:
        with source.open("rb") if isinstance(source, Path) else io.BytesIO(source.read()) as content:
            book = openpyxl.load_workbook(content, read_only=True, data_only=True)
            sheet, others = book.worksheets[0], book.sheetnames[1:]
            if others:
                log.info("%s: the sheet %r is read, and not %s", name, sheet.title, ", ".join(map(repr, others)))
            for number, cells in enumerate(sheet.iter_rows(values_only=True), 1):
                if any(map(_is_filled, cells)):
                    yield number, cells
    except Exception:  # of zipfile, zlib, struct, xml and openpyxl, which reads cells only when asked for them
        raise DataError("not an Excel workbook, or a damaged one", "save it again", file=name) from None


def _is_filled(cell: object) -> bool:
    return cell is not None and cell != ""


FORMAT = Format("xlsx", read, endings=(".xlsx",), magic=b"PK\x03\x04")

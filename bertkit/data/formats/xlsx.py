"""Excel workbooks, by openpyxl: the first visible sheet with rows, whose first row names the columns."""

from __future__ import annotations

import io
import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from bertkit.data.formats import Format
from bertkit.data.text import Record, Source, empty_file, name_columns
from bertkit.errors import DataError
from bertkit.progress import log
from bertkit.recipe.plugins import import_extra
from bertkit.recipe.records import Data
from bertkit.storage.cache import say_once
from bertkit.storage.spool import spool

_NOT_COMPUTED = "warning: formulas of {} that were never computed are read as blank or 0; open it in Excel and save it"


def read(source: Source, data: Data, name: str) -> Iterator[Record]:
    """Yield the rows of a sheet, with values of cells as Excel has computed them; blank rows are skipped.

    A blank cell is an empty text, as in csv. A column with any text has only texts: a title such as 2012 is one.

    Raises:
        UnavailableError: openpyxl is not installed.
        DataError: If it is not a workbook, two columns have the same name, or a cell is to the right of all names.
    """
    problem = "Excel workbooks need the package openpyxl"
    openpyxl = import_extra("openpyxl", problem, "xlsx", "save it as CSV", file=name)
    return _read_rows(openpyxl, source, data, name)


def _read_rows(openpyxl: Any, source: Source, data: Data, name: str) -> Iterator[Record]:
    rows = spool(_read_cells(openpyxl, source, name))
    start, first = (0, data.header) if data.header else (1, next(iter(rows), (0, []))[1])
    width = max((column for column, cell in enumerate(first, 1) if cell is not None), default=0)
    if not width:
        raise empty_file(name)
    if len(rows) <= start:
        raise DataError("the file has columns but no rows", "add rows", file=name)
    header = name_columns(["" if cell is None else str(cell).strip() for cell in first[:width]], name)
    texts = {at for _, cells in islice(rows, start, None) for at, cell in enumerate(cells) if isinstance(cell, str)}
    for number, cells in islice(rows, start, None):
        if set(cells[width:]) - {None}:
            raise DataError("more cells than columns with a name", "name the column", file=name, row=number)
        cells += [None] * (width - len(cells))
        yield number, {title: _convert(cells[at], at in texts) for at, title in enumerate(header)}


def _convert(cell: Any, is_text: bool) -> Any:
    """Return a cell, or its text as csv has it: Excel shows 15 digits of a number, and truth values in capitals.

    >>> _convert(2012, True), _convert(0.1 + 0.2, True), _convert(True, True), _convert(4.5, False)
    ('2012', '0.3', 'TRUE', 4.5)
    """
    if cell is None or not is_text:
        return "" if cell is None else cell
    return str(cell).upper() if isinstance(cell, bool) else f"{cell:.15g}" if isinstance(cell, float) else str(cell)


def _read_cells(openpyxl: Any, source: Source, name: str) -> Iterator[tuple[int, list[Any]]]:
    """Yield the rows of a sheet that are not blank, with their numbers; log how values differ from what is seen."""
    try:
        with source.open("rb") if isinstance(source, Path) else io.BytesIO(source.read()) as content:
            book = openpyxl.load_workbook(content, read_only=True, data_only=True)
            sheets = [sheet for sheet in book.worksheets if sheet.sheet_state == "visible"] or [book.worksheets[0]]
            for sheet in sheets:
                # Programs declare wrong dimensions, and cells outside of them would be lost.
                sheet.reset_dimensions()
                if any(cell not in (None, "") for cells in sheet.iter_rows(values_only=True) for cell in cells):
                    break
            if unread := [title for title in book.sheetnames if title != sheet.title]:
                log.info("%s: the sheet %r is read, and not %s", name, sheet.title, ", ".join(map(repr, unread)))
            for note, places in _scan_sheet(openpyxl, sheet).items():
                say_once(f"{note.format(name)} ({len(places):,}; the first is {places[0]})")
            unescape = openpyxl.utils.escape.unescape  # Excel writes a carriage return as _x000D_
            for number, row in enumerate(sheet.iter_rows(), 1):
                cells = [None if cell.data_type == "e" or cell.value == "" else cell.value for cell in row]
                if set(cells) - {None}:
                    yield number, [unescape(cell) if isinstance(cell, str) and "_x" in cell else cell for cell in cells]
    except Exception:  # of zipfile, zlib, struct, xml and openpyxl, which reads cells only when asked for them
        raise DataError("not an Excel workbook, or a damaged one", "save it again", file=name) from None


def _scan_sheet(openpyxl: Any, sheet: Any) -> dict[str, list[str]]:
    """Find the places of everything that a sheet shows in another way than it is read; return them by their notes."""
    notes = defaultdict[str, list[str]](list)
    # XlsxWriter writes 0 for a value that only Excel can compute, and asks Excel to do so.
    unknown = ("", "0") if sheet.parent.calculation.fullCalcOnLoad else ("",)
    with sheet._get_source() as stream:
        for _, element in openpyxl.xml.functions.iterparse(stream):
            (space, _, tag), place = element.tag.rpartition("}"), element.get("r")
            if tag == "c" and element.get("t") == "e":
                notes["warning: cells of {} with an error such as #N/A are read as blank"].append(place)
            elif tag == "c" and element.get("t") != "str" and element.find(f"{space}}}f") is not None:
                if (element.findtext(f"{space}}}v") or "") in unknown:
                    notes[_NOT_COMPUTED].append(place)
            elif tag == "mergeCell" and len({*re.findall("[0-9]+", element.get("ref"))}) > 1:
                notes["warning: merged cells of {} count for their first row only"].append(element.get("ref"))
            elif tag == "row":
                if element.get("hidden") in ("1", "true"):
                    notes["hidden rows of {} are read too"].append(place)
                element.clear()
    return notes


FORMAT = Format("xlsx", read, endings=(".xlsx",), magic=b"PK\x03\x04")

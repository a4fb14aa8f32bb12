"""Tables: Parquet, Arrow streams and Excel workbooks."""

from __future__ import annotations

import io
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

from bertkit.data.text import Record, Source, empty_file, name_columns, refuse_duplicates, require_path
from bertkit.errors import DataError
from bertkit.progress import log
from bertkit.recipe.plugins import import_extra
from bertkit.recipe.records import Data
from bertkit.storage.cache import say_once
from bertkit.storage.disk import spool

_MAGIC = b"PAR1"

_LISTS = ("List", "LargeList", "Sequence")
_BATCH_ROWS = 1000


def read_parquet(source: Source, data: Data, name: str) -> Iterator[Record]:
    """Yield the rows of a Parquet file; a class label is its name, and None where it is -1.

    Labels are named in columns of labels and of lists of labels, not inside structs.

    Raises:
        DataError: not a Parquet file, a damaged one, or one without rows.
        UsageError: the source is not a file, since the index of a Parquet file is at its end.
    """
    return _read_parquet_rows(require_path(source, "Parquet"))


def _read_parquet_rows(path: Path) -> Iterator[Record]:
    import pyarrow.parquet

    row = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for row, record in name_batches(file.schema_arrow, file.iter_batches(_BATCH_ROWS), path):
                yield row, record
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        raise _parquet_error(path, row) from error
    if row == 0:
        raise DataError("the file has columns but no rows", "add rows", file=path)


def name_batches(schema: Any, batches: Iterable[Any], path: Path) -> Iterator[Record]:
    """Yield the rows of Arrow's batches with the names of class labels, and structs without their null fields.

    Raises:
        DataError: two columns have one name, or a label is none of those that are named.
    """
    refuse_duplicates(schema.names, "rename one of them", path)
    labels = _label_names(schema.metadata or {}, schema.names, path)
    structs = [field.name for field in schema if "struct<" in str(field.type)]
    for row, record in enumerate((record for batch in batches for record in batch.to_pylist()), 1):
        record |= {column: _without_nulls(record[column]) for column in structs}
        for column, names in labels.items():
            record[column] = _name_labels(record[column], names, path, row, column)
        yield row, record


def _label_names(metadata: dict[bytes, bytes], columns: list[str], path: Path) -> dict[str, list[str]]:
    """Return column -> label names for each column that `datasets` declared to hold class labels."""
    try:
        features = json.loads(metadata.get(b"huggingface", b"{}")).get("info", {}).get("features", {})
        elements = {column: _element(features[column]) for column in columns if column in features}
        return {column: item["names"] for column, item in elements.items() if item.get("_type") == "ClassLabel"}
    except (ValueError, RecursionError, AttributeError, KeyError):
        what = "the `huggingface` metadata of the file cannot be read"
        raise DataError(what, "write the file again", file=path) from None


def _element(feature: Any) -> dict[str, Any]:
    """Return the feature of the elements of a list, or of a list of lists; else the feature itself.

    >>> _element({"feature": {"dtype": "string", "_type": "Value"}, "_type": "List"})
    {'dtype': 'string', '_type': 'Value'}
    """
    if isinstance(feature, list):
        return _element(feature[0])
    return _element(feature["feature"]) if feature.get("_type") in _LISTS else dict(feature)


def _name_labels(value: object, names: list[str], path: Path, row: int, column: str) -> object:
    """Replace a label, or each label of a list, by its name."""
    if isinstance(value, list):
        return [_name_labels(item, names, path, row, column) for item in value]
    if not isinstance(value, int) or 0 <= value < len(names):
        return names[value] if isinstance(value, int) else value
    if value == -1:
        return None
    what = f"label {value}, but the file names {len(names)} labels"
    raise DataError(what, "write the file again", file=path, row=row, column=column)


def _without_nulls(value: Any) -> Any:
    """Leave out the null fields of structs: Arrow gives all structs of a column the fields of each.

    >>> _without_nulls([{"liked": {"type": "yes_no", "criteria": None}, "kind": None}])
    [{'liked': {'type': 'yes_no'}}]
    """
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {name: _without_nulls(item) for name, item in value.items() if item is not None}


def _parquet_error(path: Path, rows_read: int) -> DataError:
    """Build the error for a file that cannot be read, with what it looks like instead."""
    with path.open("rb") as stream:
        start = stream.read(512)
    if not start:
        return DataError("the file is empty", "download it again", file=path)
    if start.startswith(_MAGIC):
        row = rows_read + 1 if rows_read else None
        return DataError("the Parquet file is truncated or damaged", "download it again", file=path, row=row)
    if b"\0" in start:
        return DataError("not a Parquet file", "check where it comes from", file=path)
    likely = "JSON" if start.lstrip()[:1] in (b"{", b"[") else "CSV"
    hint = f"if so, rename it to {path.stem}.{likely.lower()}"
    return DataError(f"not a Parquet file; it looks like {likely}", hint, file=path)


_STATE = "state.json"


def read_arrow(source: Source, data: Data, name: str) -> Iterator[Record]:
    """Yield the rows of a file, or of the files that a folder's ``state.json`` lists, as those of Parquet are read.

    Raises:
        DataError: it is not such a file, a damaged one, or one without rows.
        UsageError: the source is standard input.
    """
    return _read_arrow_rows(require_path(source, "Arrow"))


def _read_arrow_rows(path: Path) -> Iterator[Record]:
    import pyarrow

    row = 0
    try:
        files = [path]
        if path.is_dir():
            state = json.loads((path / _STATE).read_text(encoding="utf-8"))
            files = [path / entry["filename"] for entry in state["_data_files"]]
        batches = chain.from_iterable(map(_read_batches, files))
        with pyarrow.OSFile(str(files[0])) as stream:
            schema = pyarrow.ipc.open_stream(stream).schema
        for row, record in name_batches(schema, batches, path):
            yield row, record
    except (pyarrow.ArrowException, OSError, ValueError, RecursionError, LookupError, TypeError) as error:
        what, remedy = "not an Arrow stream, or a damaged one", "save it again with Dataset.save_to_disk"
        raise DataError(what, remedy, file=path, row=row + 1 if row else None) from error
    if row == 0:
        raise DataError("the file has columns but no rows", "add rows", file=path)


def _read_batches(file: Path) -> Iterator[Any]:
    import pyarrow

    with pyarrow.OSFile(str(file)) as stream:
        for batch in pyarrow.ipc.open_stream(stream):
            # Arrow trusts offsets and lengths: to read a damaged one could end the process
            batch.validate(full=True)
            yield batch


_NOT_COMPUTED = "warning: formulas of {} that were never computed are read as blank or 0; open it in Excel and save it"


def read_xlsx(source: Source, data: Data, name: str) -> Iterator[Record]:
    """Yield the rows of a sheet, with values of cells as Excel has computed them; blank rows are skipped.

    A blank cell is an empty text, as in csv. A column with any text has only texts: a title such as 2012 is one.

    Raises:
        UnavailableError: openpyxl is not installed.
        DataError: If it is not a workbook, two columns have the same name, or a cell is to the right of all names.
    """
    problem = "Excel workbooks need the package openpyxl"
    openpyxl = import_extra("openpyxl", problem, "xlsx", "save it as CSV", file=name)
    return _read_sheet(openpyxl, source, data, name)


def _read_sheet(openpyxl: Any, source: Source, data: Data, name: str) -> Iterator[Record]:
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
    except Exception:  # zipfile, zlib, xml and openpyxl each raise their own errors, even in the middle of a sheet
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

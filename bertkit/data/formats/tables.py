"""Tables: Parquet, Arrow streams and Excel workbooks."""

from __future__ import annotations

import io
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

from bertkit.data.text import Record, Source, check_duplicates, empty_file_error, name_columns
from bertkit.errors import DataError
from bertkit.progress import log
from bertkit.recipe.plugins import import_extra
from bertkit.recipe.records import DataConfig
from bertkit.storage.cache import log_once
from bertkit.storage.disk import offload_to_disk

_LISTS = ("List", "LargeList", "Sequence")
_BATCH_ROWS = 1000


def read_parquet(source: Path, data: DataConfig, name: str) -> Iterator[Record]:
    """Yield the rows of a Parquet file; a class label is its name, and None if it is -1.

    Labels are named in columns of labels and of lists of labels, not inside structs.

    Raises:
        DataError: If the file is damaged or has no rows.
    """
    return _read_table(_read_parquet_batches(source), name, "download it again")


def _read_parquet_batches(path: Path) -> Iterator[Any]:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        yield file.schema_arrow
        yield from file.iter_batches(_BATCH_ROWS)


def _read_table(items: Iterator[Any], name: str, remedy: str) -> Iterator[Record]:
    """Yield the rows of a schema and its batches, with the names of class labels and without null fields of structs.

    Raises:
        DataError: If the file is damaged or has no rows, two columns have one name, or a label has no name.
    """
    import pyarrow

    row = 0
    try:
        schema = next(items)
        check_duplicates(schema.names, "rename one of them", name)
        labels = _read_features(schema.metadata or {}, name)
        structs = [field.name for field in schema if "struct<" in str(field.type)]
        # `row` stays the last row that was read, so that an error in a later batch names the next one.
        for row, record in enumerate(chain.from_iterable(batch.to_pylist() for batch in items), 1):
            record |= {column: _without_nulls(record[column]) for column in structs}
            yield row, name_labels(record, labels, name, row)
    except (
        pyarrow.ArrowException,
        OSError,
        ValueError,
        OverflowError,
        RecursionError,
        LookupError,
        TypeError,
    ) as error:
        raise DataError("truncated or damaged", remedy, file=name, row=row + 1 if row else None) from error
    if row == 0:
        raise DataError("the file has columns but no rows", "add rows", file=name)


def _read_features(metadata: dict[bytes, bytes], file: str) -> dict[str, list[str]]:
    """Return column -> label names from the metadata that `datasets` writes into a file."""
    try:
        return find_label_names(json.loads(metadata.get(b"huggingface", b"{}")).get("info", {}).get("features", {}))
    except (ValueError, RecursionError, AttributeError, KeyError):
        message = "the `huggingface` metadata of the file cannot be read"
        raise DataError(message, "write the file again", file=file) from None


def find_label_names(features: dict[str, Any]) -> dict[str, list[str]]:
    """Return column -> label names for each column that `datasets` declares to hold class labels, or lists of them."""
    elements = {column: _element(feature) for column, feature in features.items()}
    return {column: item["names"] for column, item in elements.items() if item.get("_type") == "ClassLabel"}


def _element(feature: Any) -> dict[str, Any]:
    """Return the feature of the elements of a list, or of a list of lists; else the feature itself.

    >>> _element({"feature": {"dtype": "string", "_type": "Value"}, "_type": "List"})
    {'dtype': 'string', '_type': 'Value'}
    """
    if isinstance(feature, list):
        return _element(feature[0])
    return _element(feature["feature"]) if feature.get("_type") in _LISTS else dict(feature)


def name_labels(record: dict[str, Any], labels: dict[str, list[str]], file: str, row: int) -> dict[str, Any]:
    """Return a row with the names of class labels instead of their numbers; -1 becomes None.

    Raises:
        DataError: If a label has no name.
    """
    for column in labels.keys() & record.keys():
        record[column] = _name_label(record[column], labels[column], file, row, column)
    return record


def _name_label(value: object, names: list[str], file: str, row: int, column: str) -> object:
    if isinstance(value, list):
        return [_name_label(item, names, file, row, column) for item in value]
    if not isinstance(value, int) or 0 <= value < len(names):
        return names[value] if isinstance(value, int) else value
    # Unlabeled rows, such as the test rows of GLUE on the Hub, have the label -1.
    if value == -1:
        return None
    message = f"label {value}, but the file names {len(names)} labels"
    raise DataError(message, "write the file again", file=file, row=row, column=column)


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


def read_arrow(source: Path, data: DataConfig, name: str) -> Iterator[Record]:
    """Yield the rows of a file, or of the files that a folder's ``state.json`` lists, as `read_parquet` does.

    Raises:
        DataError: If a file is damaged or there are no rows.
    """
    return _read_table(_read_arrow_batches(source), name, "save it again with Dataset.save_to_disk")


def _read_arrow_batches(path: Path) -> Iterator[Any]:
    import pyarrow

    files = [path]
    if path.is_dir():
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        files = [path / entry["filename"] for entry in state["_data_files"]]
        if not files:
            raise LookupError(path)
    for index, file in enumerate(files):
        with pyarrow.OSFile(str(file)) as content:
            stream = pyarrow.ipc.open_stream(content)
            if index == 0:
                yield stream.schema
            for batch in stream:
                # Arrow trusts offsets and lengths; reading damaged ones could end the process.
                batch.validate(full=True)
                yield batch


_NOT_COMPUTED = "warning: formulas of {} that were never computed are read as blank or 0; open it in Excel and save it"


def read_xlsx(source: Source, data: DataConfig, name: str) -> Iterator[Record]:
    """Yield the rows of a sheet, with values of cells as Excel has computed them; blank rows are skipped.

    A blank cell is an empty text, as in csv. A column with any text has only texts: a title such as 2012 is one.

    Raises:
        UnavailableError: openpyxl is not installed.
        DataError: If it is not a workbook, two columns have the same name, or a cell is to the right of all names.
    """
    problem = "Excel workbooks need the package openpyxl"
    openpyxl = import_extra("openpyxl", problem, "xlsx", "save it as CSV", file=name)
    return _read_sheet(openpyxl, source, data, name)


def _read_sheet(openpyxl: Any, source: Source, data: DataConfig, name: str) -> Iterator[Record]:
    rows = offload_to_disk(_read_cells(openpyxl, source, name))
    # With `data.header`, the sheet has no header, and its first row is a row of data.
    start, first = (0, data.header) if data.header else (1, next(iter(rows), (0, []))[1])
    width = max((column for column, cell in enumerate(first, 1) if cell is not None), default=0)
    if not width:
        raise empty_file_error(name)
    if len(rows) <= start:
        raise DataError("the file has columns but no rows", "add rows", file=name)
    header = name_columns(["" if cell is None else str(cell).strip() for cell in first[:width]], name)
    # `texts` has the indices of the columns with any text, whose other cells become text as well.
    texts = {at for _, cells in islice(rows, start, None) for at, cell in enumerate(cells) if isinstance(cell, str)}
    for row, cells in islice(rows, start, None):
        if set(cells[width:]) - {None}:
            raise DataError("more cells than columns with a name", "name the column", file=name, row=row)
        # Rows of a workbook end at their last cell, so they can be shorter than the header.
        cells += [None] * (width - len(cells))
        yield row, {title: _convert(cells[at], at in texts) for at, title in enumerate(header)}


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
                log_once(f"{note.format(name)} ({len(places):,}; the first is {places[0]})")
            unescape = openpyxl.utils.escape.unescape  # Excel writes a carriage return as _x000D_
            for row, row_cells in enumerate(sheet.iter_rows(), 1):
                cells = [None if cell.data_type == "e" or cell.value == "" else cell.value for cell in row_cells]
                if set(cells) - {None}:
                    yield row, [unescape(cell) if isinstance(cell, str) and "_x" in cell else cell for cell in cells]
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
                element.clear()  # `iterparse` keeps the tree, which would be larger than the workbook
    return notes

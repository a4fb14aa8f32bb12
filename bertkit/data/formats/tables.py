"""Readers of Parquet, Arrow streams and Excel workbooks."""

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
    """Yield the rows of a Parquet file, with the names of class labels instead of their numbers, and None for -1.

    Class labels are replaced in columns of labels and of lists of labels, not inside structs.

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
    """Yield the rows of a table, with the names of class labels and without null fields of structs.

    Args:
        items: Schema of the table, and then its batches.
        name: Name of the file in messages.
        remedy: Remedy for a damaged file.

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
        # If a batch is damaged, `row` is the last row that was read, and the error names the next row.
        for row, record in enumerate(chain.from_iterable(batch.to_pylist() for batch in items), 1):
            record |= {column: _drop_null_fields(record[column]) for column in structs}
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
        raise DataError("the file is truncated or damaged", remedy, file=name, row=row + 1 if row else None) from error
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
    """Return column -> label names for the columns that `datasets` declares as class labels, or lists of them."""
    elements = {column: _get_element_feature(feature) for column, feature in features.items()}
    return {column: item["names"] for column, item in elements.items() if item.get("_type") == "ClassLabel"}


def _get_element_feature(feature: Any) -> dict[str, Any]:
    """Return the feature of the elements of a list or nested list, or else the feature.

    >>> _get_element_feature({"feature": {"dtype": "string", "_type": "Value"}, "_type": "List"})
    {'dtype': 'string', '_type': 'Value'}
    """
    if isinstance(feature, list):
        return _get_element_feature(feature[0])
    return _get_element_feature(feature["feature"]) if feature.get("_type") in _LISTS else dict(feature)


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
    message = f"label {value} has no name, because the file names {len(names)} labels"
    raise DataError(message, "write the file again", file=file, row=row, column=column)


def _drop_null_fields(value: Any) -> Any:
    """Remove the null fields of structs; in Arrow, every struct of a column has the fields of all.

    >>> _drop_null_fields([{"liked": {"type": "yes_no", "criteria": None}, "kind": None}])
    [{'liked': {'type': 'yes_no'}}]
    """
    if isinstance(value, list):
        return [_drop_null_fields(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {name: _drop_null_fields(item) for name, item in value.items() if item is not None}


def read_arrow(source: Path, data: DataConfig, name: str) -> Iterator[Record]:
    """Yield the rows of a file, or of the files in a folder's ``state.json``, as `read_parquet` does.

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
                # Arrow does not check offsets and lengths, and damaged ones could crash the process.
                batch.validate(full=True)
                yield batch


_NOT_COMPUTED = "warning: formulas of {} without a stored value are read as blank or 0; open it in Excel and save it"


def read_xlsx(source: Source, data: DataConfig, name: str) -> Iterator[Record]:
    """Yield the rows of a sheet, with the values that Excel stored for formulas; blank rows are skipped.

    A blank cell is an empty text, as in csv. If a column has any text, its numbers become text too, such as 2012 in a
    column of titles.

    Raises:
        UnavailableError: If openpyxl is not installed.
        DataError: If the file is not a workbook, two columns have the same name, or a cell has no column name above it.
    """
    problem = "Excel workbooks need the package openpyxl"
    return _read_sheet(import_extra("openpyxl", problem, "xlsx", "save it as CSV", file=name), source, data, name)


def _read_sheet(openpyxl: Any, source: Source, data: DataConfig, name: str) -> Iterator[Record]:
    rows = offload_to_disk(_read_cells(openpyxl, source, name))
    # With `data.header`, the first row of the sheet is data.
    start, header_cells = (0, data.header) if data.header else (1, next(iter(rows), (0, []))[1])
    width = max((column for column, cell in enumerate(header_cells, 1) if cell is not None), default=0)
    if not width:
        raise empty_file_error(name)
    if len(rows) <= start:
        raise DataError("the file has columns but no rows", "add rows", file=name)
    header = name_columns(["" if cell is None else str(cell).strip() for cell in header_cells[:width]], name)
    # Indices of the columns with any text; all cells of these columns become text.
    text_ids = {i for _, cells in islice(rows, start, None) for i, cell in enumerate(cells) if isinstance(cell, str)}
    for row, cells in islice(rows, start, None):
        if set(cells[width:]) - {None}:
            raise DataError("a cell in a column without a name", "name the column in the first row", file=name, row=row)
        # A row ends at its last cell, so it can be shorter than the header.
        cells += [None] * (width - len(cells))
        yield row, {title: _convert_cell(cells[i], i in text_ids) for i, title in enumerate(header)}


def _convert_cell(cell: Any, is_text: bool) -> Any:
    """Return a cell, or its text as Excel exports it to csv: numbers with 15 digits, and TRUE or FALSE.

    >>> _convert_cell(2012, True), _convert_cell(0.1 + 0.2, True), _convert_cell(True, True), _convert_cell(4.5, False)
    ('2012', '0.3', 'TRUE', 4.5)
    """
    if cell is None or not is_text:
        return "" if cell is None else cell
    return str(cell).upper() if isinstance(cell, bool) else f"{cell:.15g}" if isinstance(cell, float) else str(cell)


def _read_cells(openpyxl: Any, source: Source, name: str) -> Iterator[tuple[int, list[Any]]]:
    """Yield the rows that are not blank, with row numbers, and log values that differ from what Excel shows."""
    try:
        with source.open("rb") if isinstance(source, Path) else io.BytesIO(source.read()) as content:
            book = openpyxl.load_workbook(content, read_only=True, data_only=True)
            sheets = [sheet for sheet in book.worksheets if sheet.sheet_state == "visible"] or [book.worksheets[0]]
            for sheet in sheets:
                # Some programs write wrong dimensions, and cells outside would be lost.
                sheet.reset_dimensions()
                if any(cell not in (None, "") for cells in sheet.iter_rows(values_only=True) for cell in cells):
                    break
            if unread_sheets := [title for title in book.sheetnames if title != sheet.title]:
                log.info("%s: the sheet %r is read, and not %s", name, sheet.title, ", ".join(map(repr, unread_sheets)))
            for note, references in _scan_sheet(openpyxl, sheet).items():
                log_once(f"{note.format(name)} ({len(references):,}; the first is {references[0]})")
            unescape = openpyxl.utils.escape.unescape  # Excel writes a carriage return as _x000D_
            for row, row_cells in enumerate(sheet.iter_rows(), 1):
                cells = [None if cell.data_type == "e" or cell.value == "" else cell.value for cell in row_cells]
                if set(cells) - {None}:
                    yield row, [unescape(cell) if isinstance(cell, str) and "_x" in cell else cell for cell in cells]
    except Exception:  # zipfile, zlib, xml and openpyxl each raise their own errors, even in the middle of a sheet
        raise DataError("not an Excel workbook, or damaged", "save it again", file=name) from None


def _scan_sheet(openpyxl: Any, sheet: Any) -> dict[str, list[str]]:
    """Return note -> cells or rows that are read differently from what Excel shows."""
    notes = defaultdict[str, list[str]](list)
    # XlsxWriter stores 0 for every formula, and makes Excel compute the values when it opens the file.
    unknown_values = ("", "0") if sheet.parent.calculation.fullCalcOnLoad else ("",)
    with sheet._get_source() as stream:
        for _, element in openpyxl.xml.functions.iterparse(stream):
            (space, _, tag), cell = element.tag.rpartition("}"), element.get("r")
            if tag == "c" and element.get("t") == "e":
                notes["warning: cells of {} with an error such as #N/A are read as blank"].append(cell)
            elif tag == "c" and element.get("t") != "str" and element.find(f"{space}}}f") is not None:
                if (element.findtext(f"{space}}}v") or "") in unknown_values:
                    notes[_NOT_COMPUTED].append(cell)
            elif tag == "mergeCell" and len({*re.findall("[0-9]+", element.get("ref"))}) > 1:
                notes["warning: merged cells of {} are read as blank after their first row"].append(element.get("ref"))
            elif tag == "row":
                if element.get("hidden") in ("1", "true"):
                    notes["hidden rows of {} are read too"].append(cell)
                element.clear()  # `iterparse` keeps the tree, which would be larger than the workbook
    return notes

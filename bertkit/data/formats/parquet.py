"""Parquet; class labels that `datasets` declared come out as names."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bertkit.data.formats import Format
from bertkit.data.text import Record, Source, refuse_duplicates, require_path
from bertkit.errors import DataError
from bertkit.recipe.records import Data

_MAGIC = b"PAR1"

_LISTS = ("List", "LargeList", "Sequence")
_BATCH_ROWS = 1000


def read(source: Source, data: Data, name: str) -> Iterator[Record]:
    """Yield the rows of a Parquet file; a class label is its name, and None where it is -1.

    Labels are named in columns of labels and of lists of labels, not inside structs.

    Raises:
        DataError: not a Parquet file, a damaged one, or one without rows.
        UsageError: the source is not a file, since the index of a Parquet file is at its end.
    """
    return _read_rows(require_path(source, "Parquet"))


def _read_rows(path: Path) -> Iterator[Record]:
    import pyarrow.parquet

    row = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for row, record in name_batches(file.schema_arrow, file.iter_batches(_BATCH_ROWS), path):
                yield row, record
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        raise _unreadable(path, row) from error
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


def _unreadable(path: Path, rows_read: int) -> DataError:
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


FORMAT = Format("parquet", read, endings=(".parquet",), magic=_MAGIC)

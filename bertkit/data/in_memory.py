"""Read rows in memory: texts, tuples, dictionaries, a pandas or polars DataFrame, or an Arrow table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from bertkit.data.columns import ColumnSpec
from bertkit.data.formats.json import check_strings
from bertkit.data.sources import ROWS
from bertkit.errors import DataError, error_location, shorten
from bertkit.recipe.records import DataConfig


class DataFrame(Protocol):
    """DataFrame of pandas or polars; this module imports neither package."""

    @property
    def columns(self) -> Any:
        """Column names."""

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and number of columns."""


DataFrameT = TypeVar("DataFrameT", bound=DataFrame)

Rows = Iterable[Any]
"""Texts, tuples with the inputs of a row, dictionaries, an iterable of these (a `datasets.Dataset`), an Arrow table."""


def is_dataframe(rows: object) -> bool:
    """Return whether rows are a dataframe."""
    return (hasattr(rows, "to_dicts") or hasattr(rows, "to_dict")) and hasattr(rows, "columns")


def as_records(rows: Any, inputs: Sequence[str] = (), columns: ColumnSpec | None = None) -> list[dict[str, Any]]:
    """Return rows as dictionaries of plain Python values, which must all have the columns of the first row.

    Args:
        rows: Dataframe or `Rows`; a single text or dictionary is one row.
        inputs: Canonical columns, in the order of the values in a row that is a text or a tuple.
        columns: Columns of the task family; required with `inputs`.

    Raises:
        DataError: If a row has another type, lacks a column, or has text that cannot be tokenized.
    """
    row_values: Iterable[Any]
    if is_dataframe(rows):
        row_values = _dataframe_records(rows)
    elif hasattr(rows, "column_names") and isinstance(rows, Mapping):
        # The next branch would read the splits of a DatasetDict as the columns of one row.
        message = f"a DatasetDict of {', '.join(rows)}"
        raise DataError(message, f"name one of its splits, such as [{next(iter(rows))!r}]")
    elif isinstance(rows, (str, Mapping)):
        row_values = [rows]
    elif hasattr(rows, "to_pylist"):  # a table or a column of Arrow
        row_values = rows.to_pylist()
    elif isinstance(rows, Iterable):
        row_values = rows
    else:
        is_lazy = hasattr(rows, "collect")  # a polars LazyFrame
        remedy = "pass its `.collect()`" if is_lazy else "pass texts, tuples, dictionaries or a DataFrame"
        raise DataError(f"{shorten(repr(rows))} is not a row", remedy)
    records: list[dict[str, Any]] = []
    for position, row in enumerate(row_values, 1):
        with error_location(file=ROWS, row=position):
            records.append(_as_record(row, inputs, columns))
            _check_columns(records[-1], records[0])
        check_strings(records[-1], ROWS, position)
    return records


def map_canonical_names(names: Sequence[str], canonical_names: Iterable[str], data: DataConfig) -> DataConfig:
    """Return settings that read canonical columns under these names if the names in the recipe's data are missing."""
    columns = dict(data.columns)
    for name in canonical_names:
        mapped = columns.get(name, name)
        if name in names and not all(column in names for column in ([mapped] if isinstance(mapped, str) else mapped)):
            columns[name] = name
    return data if columns == data.columns else data.model_copy(update={"columns": columns})


def add_columns(dataframe: DataFrameT, columns: Mapping[str, list[Any]]) -> DataFrameT:
    """Return a dataframe with additional columns."""
    table: Any = dataframe
    # pandas has `assign`, and polars has `hstack`.
    extended: DataFrameT = table.assign(**columns) if hasattr(table, "assign") else table.hstack(type(table)(columns))
    return extended


def _dataframe_records(dataframe: Any) -> Iterable[Mapping[str, Any]]:
    names = list(map(str, dataframe.columns))
    # `DataFrame.to_dict` of pandas keeps only the last of several columns with the same name.
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        raise DataError("two columns have the same name", "rename one of them", column=duplicate)
    if hasattr(dataframe, "to_dicts"):  # polars
        rows: Iterable[Mapping[str, Any]] = dataframe.to_dicts()
        return rows
    return [{str(name): value for name, value in row.items()} for row in dataframe.to_dict("records")]


def _as_record(row: Any, inputs: Sequence[str], columns: ColumnSpec | None) -> dict[str, Any]:
    if isinstance(row, Mapping):
        return {name: _to_plain_value(value) for name, value in row.items()}
    row = row if isinstance(row, tuple) else _to_plain_value(row)
    if columns is None or not isinstance(row, (str, list, tuple)):
        alternative = " per row" if columns is None else ", or its inputs as a text or a tuple"
        raise DataError(f"{shorten(repr(row))} is not a row", f"pass a dictionary of columns{alternative}")
    # If the only input is a list of words, a list is this input, and not a list of inputs.
    is_single_input = isinstance(row, str) or (
        isinstance(row, list) and len(inputs) == 1 and inputs[0] in columns.lists
    )
    values = [row] if is_single_input else row
    if len(values) != len(inputs):
        message = "only one text" if isinstance(row, str) else f"{len(values)} values"
        raise DataError(message, f"pass {' and '.join(inputs)}, in this order, or a dictionary of columns")
    record = dict[str, Any]()
    for name, value in zip(inputs, map(_to_plain_value, values), strict=True):
        record[columns.fallback_columns.get(name, name) if isinstance(value, str) else name] = value
    return record


def _check_columns(row: Mapping[str, Any], first_row: Mapping[str, Any]) -> None:
    """Check that a row has the columns of the first row.

    Raises:
        DataError: If the row lacks a column.
    """
    if row.keys() >= first_row.keys():
        return
    missing = next(name for name in first_row if name not in row)
    names = shorten(", ".join(map(repr, row)) or "none", 200)
    raise DataError(f"no column {missing!r}, unlike in row 1; there are {names}", "give every row the same columns")


def _to_plain_value(value: Any) -> Any:
    """Convert a numpy value, as in dataframes and batches, to a plain Python value."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return list(value) if isinstance(value, tuple) else value

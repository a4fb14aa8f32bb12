"""Rows that a program has in memory: texts, tuples, dictionaries, a DataFrame of pandas or polars, a table of Arrow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from bertkit.data.columns import Columns
from bertkit.data.formats.json import check_strings
from bertkit.data.sources import ROWS
from bertkit.errors import DataError, located, shorten
from bertkit.recipe.records import Data


class DataFrame(Protocol):
    """A DataFrame of pandas or polars, neither of which is needed here."""

    @property
    def columns(self) -> Any:
        """The names of its columns."""

    @property
    def shape(self) -> tuple[int, int]:
        """The number of its rows and of its columns."""


DataFrameT = TypeVar("DataFrameT", bound=DataFrame)

Rows = Iterable[Any]
"""Texts, tuples with the inputs of a row, dictionaries, what yields these (a `datasets.Dataset`), a table of Arrow."""


def is_dataframe(rows: object) -> bool:
    """Tell whether rows are a dataframe."""
    return (hasattr(rows, "to_dicts") or hasattr(rows, "to_dict")) and hasattr(rows, "columns")


def as_records(rows: Any, inputs: Sequence[str] = (), columns: Columns | None = None) -> list[dict[str, Any]]:
    """Return rows as dictionaries of plain values, all with the columns of the first.

    Args:
        rows: a dataframe, or `Rows`; one text or one dictionary is one row.
        inputs: canonical columns that a row may give without their names, as a text, or a tuple in this order.
        columns: those of the task family, where `inputs` are given.

    Raises:
        DataError: a row is none of these, lacks a column, or has text that no tokenizer takes; it says which row.
    """
    given: Iterable[Any]
    if is_dataframe(rows):
        given = _dataframe_records(rows)
    elif hasattr(rows, "column_names") and isinstance(rows, Mapping):
        what = f"a DatasetDict of {', '.join(rows)}"
        raise DataError(what, f"name one of its splits, such as [{next(iter(rows))!r}]")
    elif isinstance(rows, (str, Mapping)):
        given = [rows]
    elif hasattr(rows, "to_pylist"):  # a table or a column of Arrow
        given = rows.to_pylist()
    elif isinstance(rows, Iterable):
        given = rows
    else:
        lazy = hasattr(rows, "collect")  # of polars
        remedy = "give its `.collect()`" if lazy else "give texts, tuples, dictionaries or a DataFrame"
        raise DataError(f"{shorten(repr(rows))} is no row", remedy)
    records: list[dict[str, Any]] = []
    for number, row in enumerate(given, 1):
        with located(file=ROWS, row=number):
            records.append(_as_record(row, inputs, columns))
            _check_columns(records[-1], records[0])
        check_strings(records[-1], ROWS, number)
    return records


def map_given(names: Sequence[str], wanted: Iterable[str], data: Data) -> Data:
    """Return settings that read rows with these columns: by the names of the recipe's data, or else canonical ones."""
    columns = dict(data.columns)
    for name in wanted:
        mapped = columns.get(name, name)
        if name in names and not all(one in names for one in ([mapped] if isinstance(mapped, str) else mapped)):
            columns[name] = name
    return data if columns == data.columns else data.model_copy(update={"columns": columns})


def add_columns(dataframe: DataFrameT, columns: Mapping[str, list[Any]]) -> DataFrameT:
    """Return a dataframe with further columns."""
    given: Any = dataframe
    if hasattr(given, "assign"):  # pandas
        added: DataFrameT = given.assign(**columns)
        return added
    added = given.hstack(type(given)(columns))
    return added


def _dataframe_records(dataframe: Any) -> Iterable[Mapping[str, Any]]:
    names = list(map(str, dataframe.columns))
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError("two columns of the dataframe have one name", "rename one", column=twice)
    if hasattr(dataframe, "to_dicts"):  # polars
        rows: Iterable[Mapping[str, Any]] = dataframe.to_dicts()
        return rows
    return [{str(name): value for name, value in row.items()} for row in dataframe.to_dict("records")]


def _as_record(row: Any, inputs: Sequence[str], columns: Columns | None) -> dict[str, Any]:
    if isinstance(row, Mapping):
        return {name: _plain(value) for name, value in row.items()}
    row = row if isinstance(row, tuple) else _plain(row)
    if columns is None or not isinstance(row, (str, list, tuple)):
        instead = " for each" if columns is None else ", or its inputs as a text or a tuple"
        raise DataError(f"{shorten(repr(row))} is no row", f"give a dictionary of columns{instead}")
    # a list alone is one of words, where it is all that the model reads
    is_whole = isinstance(row, str) or (isinstance(row, list) and len(inputs) == 1 and inputs[0] in columns.lists)
    values = [row] if is_whole else row
    if len(values) != len(inputs):
        what = "a text alone" if isinstance(row, str) else f"{len(values)} values"
        raise DataError(what, f"give {' and '.join(inputs)}, in this order, or a dictionary of columns")
    given = dict[str, Any]()
    for name, value in zip(inputs, map(_plain, values), strict=True):
        given[columns.text_instead.get(name, name) if isinstance(value, str) else name] = value
    return given


def _check_columns(row: Mapping[str, Any], first: Mapping[str, Any]) -> None:
    """Check that a row has the columns of the first.

    Raises:
        DataError: it lacks one.
    """
    if row.keys() >= first.keys():
        return
    missing = next(name for name in first if name not in row)
    there = shorten(", ".join(map(repr, row)) or "none", 200)
    raise DataError(f"no column {missing!r}, which row 1 has; there are {there}", "give every row the same columns")


def _plain(value: Any) -> Any:
    """Return a value without the types of numpy, whose arrays and numbers are those of frames and batches."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return list(value) if isinstance(value, tuple) else value

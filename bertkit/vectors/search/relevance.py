"""What is relevant to which query, as a file says."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertkit.data.files import read_records
from bertkit.data.rows import is_blank
from bertkit.data.text import as_number
from bertkit.errors import DataError, located
from bertkit.recipe import Data

QUERY, RELEVANT, GRADE = "query", "relevant", "grade"

Relevance = dict[str, dict[str, float]]
"""Query -> id of a document or passage -> its grade, 0 where it is not relevant."""


def read_relevance(file: Path) -> Relevance:
    """Read the queries of a file and what is relevant to each; a query may have several rows.

    A row has a ``query``, the id that is ``relevant`` (in JSON and Parquet also a list of them) and, if not all are
    equally relevant, a ``grade``.

    Raises:
        DataError: a column is missing or empty, a grade is no number from 0 up, or an id has two grades.
    """
    relevance: Relevance = {}
    row = None
    for row, record in read_records(file, Data()):
        with located(file=str(file), row=row):
            query, ids, grade = _read_row(record)
            grades = relevance.setdefault(query, {})
            for name in ids:
                if grades.setdefault(name, grade) != grade:
                    what = f"{name!r} has the grades {grades[name]:g} and {grade:g} for one query"
                    raise DataError(what, "take one out", column=GRADE)
    if row is None:
        raise DataError("the file has no rows", f"it needs the columns {QUERY} and {RELEVANT}", file=file)
    return relevance


def _read_row(record: Mapping[str, Any]) -> tuple[str, list[str], float]:
    for column in (QUERY, RELEVANT):
        if column not in record:
            what = f"no column {column!r}; the file has {', '.join(map(repr, record))}"
            raise DataError(what, f"name the columns {QUERY}, {RELEVANT} and, if there are grades, {GRADE}")
        if record[column] is None or is_blank(record[column]):
            raise DataError("an empty cell", "fill it in, or take the row out", column=column)
    query, relevant = record[QUERY], record[RELEVANT]
    if not isinstance(query, str):
        raise DataError(f"{query!r} is no text", "write it in quotes", column=QUERY)
    ids = relevant if isinstance(relevant, list) else [relevant]
    if not all(isinstance(name, (str, int)) for name in ids):
        raise DataError(f"{relevant!r} is no id, and no list of ids", "write ids as text or integers", column=RELEVANT)
    value = record.get(GRADE, 1)
    grade = as_number(value)
    if not 0 <= grade < math.inf:
        raise DataError(f"{value!r} is no grade", "a number from 0 (not relevant) up", column=GRADE)
    return query, [str(name) for name in ids], grade

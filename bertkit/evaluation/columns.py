"""A column of the data beside stored predictions, which hold only what the task reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bertkit.data.sources import ALL, read_splits, unsplit_file
from bertkit.errors import DataError
from bertkit.evaluation.stored import Scorer, StoredRun
from bertkit.recipe import Row, typed_path


def read_column(column: str, scorer: Scorer, run: StoredRun, rows: Sequence[Row]) -> list[Any]:
    """Return a column of the data for each row: of the stored rows, or else of the data set that the run has scored.

    Raises:
        DataError: no such column, or the data set has other rows now.
    """
    recipe, columns = scorer.recipe, scorer.task.COLUMNS
    canonical = next((name for name, source in recipe.data.columns.items() if source == column), column)
    if canonical in rows[0]:
        return [row.get(canonical) for row in rows]
    data = recipe.data.model_copy(update={"columns": {**recipe.data.columns, column: column}})
    own = replace(columns, beside=(column,))
    split = str(run.record.get("split", ALL if unsplit_file(data) else "validation"))
    try:
        read = read_splits(
            recipe.model_copy(update={"data": data}),
            own,
            lambda row: scorer.task.read(row, recipe),
            lambda name: name == split,
            named=scorer.task.NAMED,
        )
    except DataError as error:
        if repr(column) in error.what:
            error.remedy = "name another column with --by"
        raise
    if split not in read:
        raise DataError(f"no split {split!r} in {data.source}", "name another --split")

    def key(row: Row) -> str:
        return json.dumps([row.get(name) for name in (*columns.given, *columns.optional)], default=str)

    values = {key(row): row[column] for row in read[split].rows}
    missing = [row for row in rows if key(row) not in values]
    if missing:
        what = f"{len(missing):,} of the {len(rows):,} rows are no longer in the data set, so --by {column} is unknown"
        raise DataError(what, "restore it, or leave --by out", file=typed_path(data.source) if data.source else None)
    return [values[key(row)] for row in rows]

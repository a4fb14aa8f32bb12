"""A column of the data is found for each stored row, or refused."""

from __future__ import annotations

import pytest

from bertkit.data.sources import read_splits
from bertkit.errors import DataError
from bertkit.evaluation.columns import read_column
from bertkit.evaluation.stored import find_scorer, read_rows, read_system
from bertkit.recipe import load_recipe
from bertkit.tasks.text_classification import COLUMNS
from tests.conftest import write_csv
from tests.evaluation.stored_runs import make_rows, make_run, predict

ROWS = make_rows(12)


def test_a_column_is_that_of_the_row_whatever_their_order(tmp_path):
    file = tmp_path / "validation.csv"
    write_csv(file, [{**row, "genre": n % 3} for n, row in enumerate(ROWS)])
    data = {"source": str(tmp_path), "columns": {}}
    system = read_system(make_run(tmp_path / "a", predict(ROWS[::-1], {1}), data=data), None)
    scorer, (run,) = find_scorer([system], None), system.runs
    rows = read_rows(run, scorer.task)
    assert read_column("genre", scorer, run, rows) == [str(n % 3) for n in range(12)][::-1]
    assert read_column("text", scorer, run, rows) == [row["text"] for row in ROWS[::-1]]  # of the stored rows
    with pytest.raises(DataError, match=r"no column 'kind'.* - name another column with --by"):
        read_column("kind", scorer, run, rows)
    write_csv(file, [{**row, "genre": 0} for row in ROWS[1:]])
    with pytest.raises(DataError, match="1 of the 12 rows are no longer in the data set"):
        read_column("genre", scorer, run, rows)


@pytest.mark.parametrize("way", ["by_hash", "by_label"])
def test_a_column_of_held_out_rows_of_a_single_file(tmp_path, way):
    """With empty cells, and under the name that the file gives a column that the task reads."""
    file = tmp_path / "all.csv"
    table = [
        {"text": row["text"], "Queue": row["label"], "genre": "" if n % 4 else "news"} for n, row in enumerate(ROWS)
    ]
    write_csv(file, table)
    data = {"source": str(file), "columns": {"label": "Queue"}, "hold_out": way, "validation_share": 0.4}
    recipe = load_recipe("classify", {f"data.{key}": value for key, value in data.items()})
    held_out = read_splits(recipe, COLUMNS, dict, lambda name: name == "validation", named=True)["validation"].rows
    assert 1 < len(held_out) < 12
    system = read_system(make_run(tmp_path / "a", predict(held_out, {1}), data=data), None)
    scorer, (run,) = find_scorer([system], None), system.runs
    genres = {row["text"]: row["genre"] for row in table}
    assert read_column("genre", scorer, run, held_out) == [genres[row["text"]] for row in held_out]
    assert read_column("Queue", scorer, run, held_out) == [row["label"] for row in held_out]

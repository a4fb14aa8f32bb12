"""Rows are matched whatever their order, or refused; a column of the data is found for each, or refused."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from bertkit.data.sources import read_splits
from bertkit.errors import DataError
from bertkit.evaluation.stored_predictions import align, find_scorer, read_column, read_rows, read_system
from bertkit.recipe import load_recipe
from bertkit.tasks.text_classification import COLUMNS
from tests.conftest import write_csv
from tests.evaluation.stored_runs import make_rows, make_run, predict

ROWS = make_rows(12)


def make(folder, rows):
    return make_run(folder, predict(rows, set()))


def test_a_column_is_that_of_the_row_whatever_their_order(tmp_path):
    file = tmp_path / "validation.csv"
    write_csv(file, [{**row, "genre": n % 3} for n, row in enumerate(ROWS)])
    data = {"source": str(tmp_path), "columns": {}}
    system = read_system(make_run(tmp_path / "a", predict(ROWS[::-1], {1}), data=data), None)
    scorer, (run,) = find_scorer([system], None), system.runs
    rows = read_rows(run, scorer.task)
    assert read_column("genre", scorer, run, rows) == [str(n % 3) for n in range(12)][::-1]
    assert read_column("text", scorer, run, rows) == [row["text"] for row in ROWS[::-1]]  # of the stored rows
    with pytest.raises(DataError, match=r"no column 'kind'.* - name another column with --group-by"):
        read_column("kind", scorer, run, rows)
    demo = scorer.recipe.data.model_copy(update={"source": "demo"})
    with pytest.raises(DataError, match=r"no column 'kind' in demo - name another column with --group-by"):
        read_column("kind", replace(scorer, recipe=scorer.recipe.model_copy(update={"data": demo})), run, rows)
    write_csv(file, [{**row, "genre": 0} for row in ROWS[1:]])
    with pytest.raises(DataError, match="1 of the 12 rows are no longer in the dataset"):
        read_column("genre", scorer, run, rows)


def test_rows_in_another_order_are_matched(tmp_path):
    twice = [*ROWS, ROWS[0]]
    stored = predict(twice, {5})
    random.Random(1).shuffle(stored)
    first, second = (
        read_system(make_run(tmp_path / name, predictions), None).runs[0]
        for name, predictions in (("a", predict(twice, {3})), ("b", [{**row, "id": n} for n, row in enumerate(stored)]))
    )
    task = find_scorer([read_system(tmp_path / "a", None)], None).task
    aligned = align(second, first, task)
    assert read_rows(aligned, task) != read_rows(second, task)
    assert [row["text"] for row in aligned.predictions] == [row["text"] for row in first.predictions]
    wrong = [n for n, row in enumerate(aligned.predictions) if row["label"] != row["prediction"]]
    assert wrong == [5]


def test_other_rows_are_refused(tmp_path):
    first, second, third = (
        read_system(make(tmp_path / name, rows), None).runs[0]
        for name, rows in (("a", ROWS), ("b", [*ROWS[1:], ROWS[1]]), ("c", make_rows(14, 5)))
    )
    task = find_scorer([read_system(tmp_path / "a", None)], None).task
    with pytest.raises(DataError, match=r"not a row of .*b: 11 of 12 rows are the same .*predictions.jsonl:1\)"):
        align(first, second, task)
    with pytest.raises(DataError, match=r"rows recur with other counts than in .*a"):
        align(second, first, task)
    fewer = replace(first, predictions=first.predictions[:9])
    with pytest.raises(DataError, match=r"9 rows, and .*a has 12"):
        align(fewer, first, task)
    with pytest.raises(DataError, match=r"not a row of .*a: 1 of 14 rows"):
        align(third, first, task)


def test_another_gold_value_is_named_with_its_row(tmp_path):
    rows = [{**row, "label": "good" if number == 4 else row["label"]} for number, row in enumerate(ROWS)]
    other = [{**row, "label": "bad" if number == 4 else row["label"]} for number, row in enumerate(ROWS)]
    first, second = (read_system(make(tmp_path / name, of), None) for name, of in (("a", rows), ("b", other)))
    with pytest.raises(DataError, match=r"another label than in .*: 'bad' here, 'good' there .*b/predictions.jsonl:5"):
        align(second.runs[0], first.runs[0], find_scorer([first], None).task)


@pytest.mark.parametrize("source", ["all.csv", "."])
@pytest.mark.parametrize("way", ["by_hash", "by_label"])
def test_a_column_of_held_out_rows_of_a_single_file(tmp_path, way, source):
    """With empty cells, and under the name that the file gives a column that the task reads."""
    file = tmp_path / ("train.csv" if source == "." else source)
    table = [
        {"text": row["text"], "Queue": row["label"], "genre": "" if n % 4 else "news"} for n, row in enumerate(ROWS)
    ]
    write_csv(file, table)
    data = {
        "source": str(tmp_path / source),
        "columns": {"label": "Queue"},
        "hold_out": way,
        "validation_fraction": 0.4,
    }
    recipe = load_recipe("classify", {f"data.{key}": value for key, value in data.items()})
    held_out = read_splits(recipe, COLUMNS, dict, lambda name: name == "validation", has_label_names=True)[
        "validation"
    ].rows
    assert 1 < len(held_out) < 12
    system = read_system(make_run(tmp_path / "a", predict(held_out, {1}), data=data), None)
    scorer, (run,) = find_scorer([system], None), system.runs
    genres = {row["text"]: row["genre"] for row in table}
    assert read_column("genre", scorer, run, held_out) == [genres[row["text"]] for row in held_out]
    assert read_column("Queue", scorer, run, held_out) == [row["label"] for row in held_out]

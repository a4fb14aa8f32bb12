"""Where systems differ: rows won and lost by any metric, and slices of the rows."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import matthews_corrcoef

from bertkit.evaluation.differences import SystemScores, find_changes, group_rows
from bertkit.evaluation.stored_predictions import find_scorer, read_rows, read_system
from tests.evaluation.stored_runs import make_rows, make_run, predict

ROWS = make_rows(30, 3)


def compare(tmp_path, *predictions, recipe=None, extra=None, shown=5):
    systems = [
        read_system(make_run(tmp_path / f"{n}", one, **(recipe or {})), None) for n, one in enumerate(predictions)
    ]
    scorer = find_scorer(systems, None)
    rows = read_rows(systems[0].runs[0], scorer.task)
    sides = [
        SystemScores([run.predictions for run in one.runs], [scorer.compare(run, rows) for run in one.runs])
        for one in systems
    ]
    return find_changes(scorer, rows, sides, extra or {}, shown), scorer, rows, sides


@pytest.mark.parametrize("metric", ["accuracy", "matthews_correlation"])
def test_rows_are_won_where_only_the_second_is_right(metric, tmp_path):
    changes, *_ = compare(
        tmp_path, predict(ROWS, {1, 2, 3}), predict(ROWS, {3, 4}), recipe={"best_metric": metric}, shown=1
    )
    assert (changes.changed, changes.won, changes.lost) == (3, 2, 1)
    (row,) = changes.lost_rows
    assert (row.id, row.text, row.gold, row.first) == ("4", ROWS[4]["text"], ROWS[4]["label"], ROWS[4]["label"])
    assert row.second != row.gold
    assert changes.won_rows[0].id in ("1", "2")


def test_slices_have_the_scores_of_their_rows(tmp_path):
    wrong = {0, 2, 5, 7}, {2, 9}
    kinds = ["odd" if number % 2 else "even" for number in range(30)]
    changes, *_ = compare(tmp_path, *(predict(ROWS, of) for of in wrong), extra={"kind": kinds})
    found = {(one.by, one.value): one for one in changes.slices}
    odd = found["kind", "odd"]
    assert (odd.rows, odd.first, odd.second, odd.won, odd.lost) == (
        15,
        pytest.approx(13 / 15),
        pytest.approx(14 / 15),
        2,
        1,
    )
    assert sum(one.rows for one in changes.slices if one.by == "label") == 30
    assert [one.rows for one in changes.slices if one.by == "words"] == [15, 5, 10]
    assert changes.slice_metric == "accuracy"


def test_of_seeds_the_mean_effect_counts_and_answers_are_counted(tmp_path):
    for system, wrong in (("a", ({1}, {1}, {1, 2})), ("b", (set(), {1}, {2}))):
        for seed, of_seed in enumerate(wrong, start=1):
            make_run(tmp_path / system / f"seed-{seed}", predict(ROWS, of_seed))
    systems = [read_system(tmp_path / name, None) for name in "ab"]
    scorer = find_scorer(systems, None)
    sides = [
        SystemScores([run.predictions for run in one.runs], [scorer.compare(run, ROWS) for run in one.runs])
        for one in systems
    ]
    changes = find_changes(scorer, ROWS, sides, {}, 5)
    assert (changes.changed, changes.won, changes.lost) == (1, 1, 0)
    right, wrong = ROWS[1]["label"], {"bad": "good", "good": "bad"}[ROWS[1]["label"]]
    assert (changes.won_rows[0].first, changes.won_rows[0].second) == (f"{wrong} (3)", f"{right} (2), {wrong} (1)")


def test_rows_of_numbers_are_won_by_what_they_do_to_the_correlation(tmp_path):
    gold = np.linspace(0, 5, 12)
    first, second = gold.copy(), gold.copy()
    first[3], second[8] = 5.0, 0.0
    stored = [
        [
            {"id": n, "text": f"t {n}", "label": value, "prediction": p}
            for n, (value, p) in enumerate(zip(gold, one, strict=True))
        ]
        for one in (first.tolist(), second.tolist())
    ]
    recipe = {"task": "text_regression", "metrics": ["pearsonr"], "best_metric": "pearsonr"}
    changes, *_ = compare(tmp_path, *stored, recipe=recipe)
    assert [row.id for row in changes.won_rows] == ["3"]
    assert [row.id for row in changes.lost_rows] == ["8"]


def test_errors_are_won_where_they_fall(tmp_path):
    stored = [
        [{"id": n, "text": f"t {n}", "label": float(n), "prediction": n + error} for n in range(4)]
        for error in (1.0, 0.0)
    ]
    recipe = {"task": "text_regression", "metrics": ["mean_squared_error"], "best_metric": "mean_squared_error"}
    changes, *_ = compare(tmp_path, *stored, recipe=recipe)
    assert (changes.won, changes.lost) == (4, 0)


def test_the_rows_of_a_query_are_one_unit(tmp_path):
    relevance = {"a": [1, 0], "b": [0, 0], "c": [0, 1]}  # b has no relevant passage and is not scored
    rows = [
        {"query": query, "passage": f"{query} {n}", "relevance": value}
        for query, of_query in relevance.items()
        for n, value in enumerate(of_query)
    ]
    stored = [
        [{"id": n, **row, "prediction": score} for n, (row, score) in enumerate(zip(rows, scores, strict=True))]
        for scores in ([0, 1, 0, 0, 0, 1], [1, 0, 0, 0, 0, 1])
    ]
    recipe = {"task": "reranking", "metrics": ["mrr@10"], "best_metric": "mrr@10"}
    changes, scorer, rows, sides = compare(tmp_path, *stored, recipe=recipe)
    assert group_rows(scorer, rows, sides[0]) == [[0, 1], [4, 5]]
    assert (changes.won, changes.won_rows[0].text) == (1, "a | a 0")


def test_won_rows_raise_the_score_of_scikit_learn(tmp_path):
    changes, _, _, sides = compare(tmp_path, predict(ROWS, {1, 2, 8}), predict(ROWS, {8, 9}), shown=30)
    gold = sides[0].row_scores[0]["gold"]
    for row in [*changes.won_rows, *changes.lost_rows]:
        swapped = sides[0].row_scores[0]["predicted"].copy()
        swapped[int(row.id)] = sides[1].row_scores[0]["predicted"][int(row.id)]
        rises = matthews_corrcoef(gold, swapped) > matthews_corrcoef(gold, sides[0].row_scores[0]["predicted"])
        assert rises == (row in changes.won_rows)

"""Stored predictions: read again, matched whatever their order, and refused where they are of other rows."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from bertkit.errors import DataError, ModelError, UsageError
from bertkit.evaluation.stored import align, find_changed_scores, find_scorer, read_rows, read_system
from bertkit.recipe import load_recipe
from tests.evaluation.stored_runs import make_rows, make_run, predict

ROWS = make_rows(12)


def make(folder, *wrong, rows=ROWS, **facts):
    return make_run(folder, predict(rows, set(wrong)), **facts)


def test_a_run_is_scored_as_its_recipe_says(tmp_path):
    system = read_system(make(tmp_path / "a", 0, 1, 2), None)
    scorer = find_scorer([system], None)
    (run,) = system.runs
    scores = scorer.score(scorer.compare(run, read_rows(run, scorer.task)))
    assert scores["accuracy"] == 9 / 12
    assert scorer.labels == ("bad", "good")
    assert find_changed_scores(run, scores) == []


def test_a_score_that_is_not_the_recorded_one_is_found(tmp_path):
    system = read_system(make(tmp_path / "a", scores={"accuracy": 0.5, "matthews_correlation": None}), None)
    assert find_changed_scores(system.runs[0], {"accuracy": 1.0, "matthews_correlation": 0.3}) == ["accuracy"]


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
        read_system(make(tmp_path / name, rows=rows), None).runs[0]
        for name, rows in (("a", ROWS), ("b", [*ROWS[1:], ROWS[1]]), ("c", make_rows(14, 5)))
    )
    task = find_scorer([read_system(tmp_path / "a", None)], None).task
    with pytest.raises(DataError, match=r"not a row of .*b: 11 of 12 rows are the same .*predictions.jsonl:1\)"):
        align(first, second, task)
    with pytest.raises(DataError, match=r"the rows recur otherwise than in .*a"):
        align(second, first, task)
    fewer = replace(first, predictions=first.predictions[:9])
    with pytest.raises(DataError, match=r"9 rows, and .*a has 12"):
        align(fewer, first, task)
    with pytest.raises(DataError, match=r"not a row of .*a: 1 of 14 rows"):
        align(third, first, task)


def test_another_gold_value_is_named_with_its_row(tmp_path):
    rows = [{**row, "label": "good" if number == 4 else row["label"]} for number, row in enumerate(ROWS)]
    other = [{**row, "label": "bad" if number == 4 else row["label"]} for number, row in enumerate(ROWS)]
    first, second = (read_system(make(tmp_path / name, rows=of), None) for name, of in (("a", rows), ("b", other)))
    with pytest.raises(DataError, match=r"another label than in .*: 'bad' here, 'good' there .*b/predictions.jsonl:5"):
        align(second.runs[0], first.runs[0], find_scorer([first], None).task)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"task": "text_regression"}, "is of the task text_regression, not text_classification"),
        ({"split": "test"}, "has no predictions of split 'test'"),
        ({"labels": ["a", "b"]}, "have other labels"),
    ],
)
def test_runs_of_other_tasks_labels_or_splits_are_refused(facts, message, tmp_path):
    first = read_system(make(tmp_path / "a"), None)
    recipe = {"task": facts["task"]} if "task" in facts else {}
    make(tmp_path / "b", **recipe)
    if "labels" in facts:
        record = json.loads((tmp_path / "b" / "run.json").read_text())
        record.pop("sha256")
        record["identity"]["labels"] = facts["labels"]
        (tmp_path / "b" / "run.json").write_text(json.dumps(record))
    with pytest.raises(DataError, match=message):
        find_scorer([first, read_system(tmp_path / "b", facts.get("split"))], None)


def test_seeds_are_read_in_their_order_and_unfinished_ones_are_named(tmp_path):
    for seed in (2, 10, 1):
        make(tmp_path / f"seed-{seed}", seed, seed=seed, status="diverged" if seed == 2 else "finished")
    system = read_system(tmp_path, None)
    assert [run.seed for run in system.runs] == [1, 10]
    assert (system.has_seeds, system.unfinished) == (True, ["seed-2 (diverged)"])


def test_files_of_eval_need_a_recipe_and_have_its_metrics(tmp_path):
    make(tmp_path / "a", 1)
    (tmp_path / "a" / "run.json").unlink()
    for path in (tmp_path / "a", tmp_path / "a" / "predictions.jsonl"):
        system = read_system(path, None)
        with pytest.raises(UsageError, match="name it: --recipe RECIPE"):
            find_scorer([system], None)
        scorer = find_scorer([system], load_recipe("classify"))
        assert (
            scorer.score(scorer.compare(system.runs[0], read_rows(system.runs[0], scorer.task)))["accuracy"] == 11 / 12
        )


def test_a_prediction_of_no_label_is_refused(tmp_path):
    system = read_system(
        make_run(tmp_path / "a", [{**row, "prediction": "ugly"} for row in predict(ROWS, set())]), None
    )
    scorer = find_scorer([system], None)
    with pytest.raises(DataError, match=r"'ugly' is none of the labels \(bad, good\)"):
        scorer.compare(system.runs[0], ROWS)


def test_scores_of_more_than_the_stored_predictions_are_refused(tmp_path):
    rows = [{"id": n, "anchor": "a", "positive": "b", "prediction": 0.5} for n in range(3)]
    make_run(tmp_path / "a", rows, task="contrastive", metrics=["mrr@10"], best_metric="mrr@10")
    system = read_system(tmp_path / "a", None)
    scorer = find_scorer([system], None)
    with pytest.raises(DataError, match="the scores of contrastive are made of more than the stored predictions"):
        scorer.compare(system.runs[0], read_rows(system.runs[0], scorer.task))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the file has no predictions"),
        ('{"text": "a"}\n', r"not a stored prediction .*:1"),
        ('{"prediction": 1}\n{"predi', r"the line is damaged .*:2"),
        (None, "neither a run folder nor stored predictions"),
    ],
)
def test_what_is_no_file_of_predictions_is_refused(content, message, tmp_path):
    if content is not None:
        (tmp_path / "predictions.jsonl").write_text(content)
    with pytest.raises((DataError, UsageError), match=message):
        read_system(tmp_path, None)


def test_unfinished_and_emptied_runs_are_refused(tmp_path):
    make(tmp_path / "a", status="running")
    with pytest.raises(ModelError, match=r"the run is not finished \(running\)"):
        read_system(tmp_path / "a", None)
    make(tmp_path / "b")
    (tmp_path / "b" / "predictions.jsonl").unlink()
    with pytest.raises(DataError, match="the file of predictions is missing"):
        read_system(tmp_path / "b", None)

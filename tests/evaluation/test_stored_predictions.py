"""Stored predictions: read again, scored, and refused where they are damaged or of another task."""

from __future__ import annotations

import pytest

from bertkit.errors import DataError, ModelError, UsageError
from bertkit.evaluation.stored_predictions import find_changed_scores, find_scorer, read_rows, read_system
from bertkit.recipe import load_recipe
from bertkit.storage import runs
from tests.conftest import write_jsonl
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


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c"])
def test_texts_with_other_line_separators_are_read_as_they_were(tmp_path, mark):
    rows = [{**row, "text": f"one{mark}{row['text']}"} for row in ROWS]
    (run,) = read_system(make(tmp_path / "a", 0, rows=rows), None).runs
    assert [prediction["text"] for prediction in run.predictions] == [row["text"] for row in rows]


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"task": "text_regression"}, "has the task text_regression, not text_classification"),
        ({"split": "test"}, "has no predictions of split 'test'"),
        ({"labels": ["a", "b"]}, "have different labels"),
    ],
)
def test_runs_of_other_tasks_labels_or_splits_are_refused(facts, message, tmp_path):
    first = read_system(make(tmp_path / "a"), None)
    recipe = {"task": facts["task"]} if "task" in facts else {}
    make(tmp_path / "b", **recipe)
    if "labels" in facts:
        record = runs.read_record(tmp_path / "b")
        record["identity"]["labels"] = facts["labels"]
        runs.write_record(tmp_path / "b", record)
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
        with pytest.raises(UsageError, match="--recipe RECIPE"):
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
    with pytest.raises(DataError, match=r"'ugly' is not one of the labels \(bad, good\)"):
        scorer.compare(system.runs[0], ROWS)


def test_scores_of_more_than_the_stored_predictions_are_refused(tmp_path):
    rows = [{"id": n, "anchor": "a", "positive": "b", "prediction": 0.5} for n in range(3)]
    make_run(tmp_path / "a", rows, task="contrastive", metrics=["mrr@10"], best_metric="mrr@10")
    system = read_system(tmp_path / "a", None)
    scorer = find_scorer([system], None)
    with pytest.raises(DataError, match="the scores of contrastive depend on more than the stored predictions"):
        scorer.compare(system.runs[0], read_rows(system.runs[0], scorer.task))


TAGGED = {"tokens": ["Anna", "left"], "tags": ["B-PER", "O"], "prediction": ["B-PER", "O"]}


@pytest.mark.parametrize(
    ("recipe", "record", "message"),
    [
        ("tag", {**TAGGED, "prediction": ["O"]}, "1 tags are predicted for 2 words"),
        ("tag", {**TAGGED, "prediction": "B-PER O"}, "the prediction 'B-PER O': Input should be a valid list"),
        ("tag", {key: TAGGED[key] for key in ("tokens", "prediction")}, "the row has no 'tags'"),
        (
            "regress",
            {"text": "a", "label": 1.0, "prediction": "1"},
            "the prediction '1': Input should be a valid number",
        ),
        ("classify", {"label": "a", "prediction": "a"}, "the row has no 'text'"),
    ],
)
def test_predictions_of_another_program_are_refused_with_their_row(recipe, record, message, tmp_path):
    good = {**record, **TAGGED} if recipe == "tag" else {"text": "b", "label": 2.0, "prediction": 2.0}
    good |= {"label": "b", "prediction": "b"} if recipe == "classify" else {}
    write_jsonl(tmp_path / "predictions.jsonl", [good, record])
    system = read_system(tmp_path, None)
    scorer = find_scorer([system], load_recipe(recipe))
    with pytest.raises(DataError) as caught:
        scorer.compare(system.runs[0], read_rows(system.runs[0], scorer.task))
    assert message in caught.value.message
    assert caught.value.row == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the file has no predictions"),
        ('{"text": "a"}\n', r"not a stored prediction .*:1"),
        ('{"prediction": 1}\n{"predi', r"the line is damaged .*:2"),
        ("# A model\n\nIt is good.\n", r"not a file of predictions, which has a JSON object .* - name a run folder"),
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

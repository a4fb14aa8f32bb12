"""A table over tasks and models: what is in a cell, which models are compared, and what is said where none are."""

from __future__ import annotations

import pytest

from bertkit.errors import UsageError
from bertkit.storage import runs
from bertkit.storage.run_sets import SEEDS, write_summary
from bertkit.workflows.compare import compare
from bertkit.workflows.table import tabulate
from tests.evaluation.stored_runs import make_rows, make_run, predict

ROWS = make_rows(200)


def make(folder, model, wrong, *, task="mine", digest="abc", **facts):
    """Make a run of a model that is wrong at the first rows."""
    folder = make_run(
        folder, predict(ROWS, set(range(wrong))), scores={"accuracy": 1 - wrong / 200}, name=task, **facts
    )
    record = runs.read_record(folder)
    result = {**record["results"][0], "intervals": {"accuracy": [0.1, 0.9]}}
    identity = {**record["identity"], "data": {"validation": digest}}
    runs.write_record(folder, {**record, "model": model, "results": [result], "identity": identity})
    return folder


def test_each_task_has_its_scores_its_best_and_a_test_against_the_first_model(tmp_path):
    for model, wrong in (("org/a", 60), ("org/b", 20), ("org/c", 58)):
        make(tmp_path / model / "mine", model, wrong)
    make(tmp_path / "org/b/other", "org/b", 10, task="other")
    table = tabulate([tmp_path / "org" / name for name in "abc"])
    assert (table.rows, table.tasks) == (["a", "b", "c"], [("mine", "accuracy"), ("other", "accuracy")])
    first, better, close = (table.cell(name, ("mine", "accuracy")) for name in "abc")
    assert (first.score, first.interval, first.seeds) == (0.7, (0.1, 0.9), 1)
    assert [cell.is_best for cell in (first, better, close)] == [False, True, False]
    compared = compare([tmp_path / "org" / name / "mine" for name in "abc"])
    for cell in (better, close):
        assert cell.p == compared.differences[f"{cell.row}/mine"]["accuracy"].p_holm
    assert first.p is None and better.p < 0.02 < 0.05 < close.p
    assert table.cell("a", ("other", "accuracy")) is None and table.notes == []


def test_folders_of_seeds_count_as_one_model_and_are_compared_over_seeds(tmp_path):
    for model, wrong in (("a", (60, 62)), ("b", (10, 13))):
        for seed, count in enumerate(wrong, 1):
            make(tmp_path / model / f"seed-{seed}", model, count, seed=seed)
    spread = {"mean": 0.9425, "standard_deviation": 0.01, "interval": [0.9, 0.98], "runs": 2}
    write_summary(tmp_path / "b" / SEEDS, {"splits": [{"split": "validation", "spreads": {"accuracy": spread}}]})
    first, second = tabulate([tmp_path / "a", tmp_path / "b"]).cells
    assert (first.score, first.seeds, first.interval) == (pytest.approx(0.695), 2, None)
    assert (second.score, second.standard_deviation, second.interval) == (0.9425, 0.01, (0.9, 0.98))
    assert second.p == compare([tmp_path / "a", tmp_path / "b"]).differences["b"]["accuracy"].p < 0.05
    table = tabulate([tmp_path / "a" / "seed-1", tmp_path / "b"])
    assert table.cells[1].p is None
    assert table.notes == ["mine: not tested: one model has a single run, and another several seeds."]


def test_scores_on_different_rows_are_not_compared(tmp_path):
    runs_of = [make(tmp_path / name, name, wrong, digest=name) for name, wrong in (("a", 60), ("b", 20))]
    table = tabulate(runs_of)
    assert [(cell.is_best, cell.p) for cell in table.cells] == [(False, None)] * 2
    assert table.notes == ["mine: scored on different rows, so not compared."]


def test_predictions_that_are_missing_or_are_others_leave_the_scores(tmp_path):
    paths = [make(tmp_path / name, name, wrong) for name, wrong in (("a", 60), ("b", 20))]
    kept = (paths[1] / "predictions.jsonl").read_text()
    (paths[1] / "predictions.jsonl").unlink()
    table = tabulate(paths)
    assert [cell.score for cell in table.cells] == [0.7, 0.9]
    assert table.notes == ["mine: not tested: the file of predictions is missing."]
    (paths[0] / "predictions.jsonl").write_text(kept)
    (paths[1] / "predictions.jsonl").write_text(kept)
    assert tabulate(paths).notes == [
        f"mine: not tested: the stored predictions of {paths[0]} do not determine accuracy."
    ]


def test_two_runs_of_one_cell_are_refused_and_folders_tell_them_apart(tmp_path):
    paths = [make(tmp_path / name, "a", wrong, seed=seed) for name, wrong, seed in (("x", 60, 1), ("y", 20, 2))]
    with pytest.raises(UsageError, match=r"are both mine with a, and differ in training\.seed.*--rows folder"):
        tabulate(paths)
    assert tabulate(paths, rows="folder").rows == list(map(str, paths))


def test_runs_that_are_not_finished_are_named(tmp_path):
    make(tmp_path / "runs" / "a", "a", 60)
    make_run(tmp_path / "runs" / "b", [], status="stopped")
    assert tabulate([tmp_path / "runs"]).notes == [f"{tmp_path}/runs/b: left out (stopped)."]
    with pytest.raises(UsageError, match="no run is finished"):
        tabulate([tmp_path / "runs" / "b"])
    (tmp_path / "none").mkdir()
    with pytest.raises(UsageError, match="no runs in this folder"):
        tabulate([tmp_path / "none"])

"""Run folders in short: every state is a row, and what differs between runs is listed."""

from __future__ import annotations

import pytest

from bertkit.storage import runs
from bertkit.storage.summaries import find_runs, list_changes, list_settings, read_log, sort_runs, summarize
from tests.evaluation.stored_runs import make_run


def states(folder):
    return {run.folder.removeprefix(f"{folder}/"): run.state for run in find_runs(folder)}


def test_every_folder_with_a_record_is_a_row_whatever_its_state(tmp_path):
    for status in ("finished", "running", "failed", "diverged"):
        make_run(tmp_path / status, [], status=status)
    make_run(tmp_path / "group" / "deep", [])
    for name, content in (("cut", '{"status": "fin'), ("list", "[]"), ("odd", '{"status": "failed", "results": [3]}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(content)
    (tmp_path / "dir" / "run.json").mkdir(parents=True)
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "run.json").symlink_to("nowhere")
    (tmp_path / "notes").mkdir()
    (tmp_path / ".removed-old").mkdir()
    assert states(tmp_path) == {
        **dict.fromkeys(("cut", "dir", "link", "list", "odd"), "damaged"),
        **{"finished": "finished", "running": "stopped", "failed": "failed", "diverged": "diverged"},
        "group/deep": "finished",
    }
    with runs.locked(tmp_path / "running"):
        assert states(tmp_path)["running"] == "running"


def test_a_run_has_its_score_time_and_size(tmp_path):
    make_run(tmp_path / "a", [{"prediction": 1}], scores={"accuracy": 0.75, "matthews_correlation": None})
    run = summarize(tmp_path / "a")
    assert (run.recipe, run.model, run.metric, run.score, run.steps, run.seconds) == (
        *("mine", "tiny", "accuracy", 0.75),
        *(7, 90.0),
    )
    assert run.bytes == sum(file.stat().st_size for file in (tmp_path / "a").iterdir())
    assert run.date == "2026-01-02T03:04:05+00:00"


def test_seeds_are_one_row_with_the_mean_of_those_that_finished(tmp_path):
    for seed, score, status in ((1, 0.5, "finished"), (2, 0.75, "finished"), (3, None, "diverged")):
        make_run(tmp_path / "s" / f"seed-{seed}", [], scores={"accuracy": score}, status=status)
    (run,) = find_runs(tmp_path)
    assert (run.seeds, run.state, run.score, run.seconds) == (3, "2 finished, 1 diverged", 0.625, 270.0)


def test_an_empty_folder_of_seeds_is_a_row(tmp_path):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "seeds.json").write_text("{}")
    assert states(tmp_path) == {"s": "damaged"}


@pytest.mark.parametrize(("key", "order"), [("name", "abc"), ("score", "bac"), ("recipe", "cba"), ("size", "cab")])
def test_runs_are_sorted_numbers_from_the_highest(key, order, tmp_path):
    for name, score, recipe, rows in (("a", 0.2, "z", 3), ("b", 0.9, "y", 0), ("c", None, "x", 30)):
        make_run(tmp_path / name, [{"prediction": "x" * 50}] * rows, scores={"accuracy": score}, name=recipe)
    assert [run.folder[-1] for run in sort_runs(list(find_runs(tmp_path)), key)] == list(order)


def test_of_errors_the_lowest_is_the_best_run(tmp_path):
    for name, score in (("a", 0.2), ("b", 0.9)):
        folder = make_run(tmp_path / name, [], scores={"mine.cost": score}, best_metric="mine.cost")
        record = runs.read_record(folder)
        record["results"][0]["lower_is_better"] = ["mine.cost"]
        runs.write_record(folder, record)
    assert [run.folder[-1] for run in sort_runs(list(find_runs(tmp_path)), "score")] == ["a", "b"]


def test_settings_that_differ_are_listed(tmp_path):
    records = {name: runs.read_record(make_run(tmp_path / name, [], seed=seed)) for name, seed in (("a", 1), ("b", 2))}
    assert list_settings(records) == [{"setting": "training.seed", "a": "1", "b": "2"}]
    records["b"]["versions"] = {**records["b"]["versions"], "numpy": "1.0"}
    assert [row["setting"] for row in list_settings(records)] == ["training.seed", "versions.numpy"]
    assert list_settings({**records, "file": {}})[0]["file"] == "-"


def test_changes_are_those_from_the_shipped_recipe(tmp_path):
    record = runs.read_record(make_run(tmp_path / "a", [], name="cola", seed=7))
    changes = {row["setting"]: (row["recipe"], row["run"]) for row in list_changes(record)}
    assert changes["training.seed"] == ("42", "7")
    assert list_changes({"identity": {"recipe": {"name": "mine"}}}) == []


def test_a_damaged_line_of_a_log_is_left_out(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n[3]\n{"st')
    assert read_log(tmp_path) == [{"step": 1, "loss": 2.0}]
    assert read_log(tmp_path / "none") == []

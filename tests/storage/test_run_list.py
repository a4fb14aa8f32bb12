"""Run folders in short: every state is a row, and what differs between runs is listed."""

from __future__ import annotations

import pytest

from bertkit.errors import ResourceError, UsageError
from bertkit.storage import run_list, runs
from bertkit.storage.run_list import (
    check_removable,
    find_runs,
    list_changes,
    list_settings,
    read_log,
    remove_run,
    sort_runs,
    summarize,
)
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
    with runs.lock_run(tmp_path / "running"):
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


# --- Removal ---


def test_a_run_and_a_folder_of_seeds_are_deleted(tmp_path):
    make_run(tmp_path / "a", [{"prediction": 1}])
    make_run(tmp_path / "s" / "seed-1", [])
    for name in ("a", "s"):
        check_removable(tmp_path / name)
        remove_run(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_after_a_kill_the_same_command_goes_on(tmp_path, monkeypatch):
    make_run(tmp_path / "a", [{"prediction": 1}])

    def kill(folder):
        (folder / "predictions.jsonl").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run_list.shutil, "rmtree", kill)
        with pytest.raises(KeyboardInterrupt):
            remove_run(tmp_path / "a")
    assert list(find_runs(tmp_path)) == []  # no half run is left to be seen
    check_removable(tmp_path / "a")
    remove_run(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a", "s/seed-1"])
def test_what_is_being_written_is_refused(name, tmp_path):
    make_run(tmp_path / name, [], status="running")
    top = tmp_path / name.split("/")[0]
    with runs.lock_run(tmp_path / name):
        with pytest.raises(ResourceError, match="a process is writing this run"):
            check_removable(top)
        with pytest.raises(ResourceError, match="is writing this run"):  # it began after the check
            remove_run(top)
    assert (tmp_path / name / "run.json").is_file()


def test_what_is_no_run_is_refused(tmp_path, monkeypatch):
    make_run(tmp_path / "a", [])
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to("a")
    for name, message in (("other", "not a run folder"), ("none", "no such folder"), ("link", "a link to a folder")):
        with pytest.raises(UsageError, match=message):
            check_removable(tmp_path / name)
    monkeypatch.chdir(tmp_path / "a")
    with pytest.raises(UsageError, match="the working directory is in it"):
        check_removable(tmp_path / "a")

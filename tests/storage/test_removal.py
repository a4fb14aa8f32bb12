"""Run folders are deleted whole, or not at all."""

from __future__ import annotations

import pytest

from bertkit.errors import ResourceError, UsageError
from bertkit.storage import removal, runs
from bertkit.storage.checkpoints import OPTIMIZER, commit
from bertkit.storage.removal import check_removable, find_trimmable, remove_run, trim_run
from bertkit.storage.summaries import find_runs
from tests.evaluation.stored_runs import make_run


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
        patch.setattr(removal.shutil, "rmtree", kill)
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
    with runs.locked(tmp_path / name):
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


def make_checkpoint(run):
    (run / "checkpoint-7").mkdir()
    (run / "checkpoint-7" / OPTIMIZER).write_text("moments")
    commit(run / "checkpoint-7", {})


def test_finished_runs_are_trimmed_and_others_keep_what_they_resume_from(tmp_path):
    done, stopped = make_run(tmp_path / "s" / "seed-1", []), make_run(tmp_path / "s" / "seed-2", [], status="stopped")
    make_checkpoint(done)
    assert find_trimmable(tmp_path / "s") == find_trimmable(done) == [done]
    assert (trim_run(done), trim_run(done)) == (len("moments"), 0)
    with pytest.raises(UsageError, match=r"the run is not finished \(stopped\): it would resume from its optimizer"):
        find_trimmable(stopped)
    (tmp_path / "other").mkdir()
    with pytest.raises(UsageError, match="not a run folder, and none is in it"):
        find_trimmable(tmp_path / "other")
    with runs.locked(done), pytest.raises(ResourceError, match="is writing this run"):
        trim_run(done)

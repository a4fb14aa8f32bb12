"""Run folders are deleted whole, or not at all."""

from __future__ import annotations

import pytest

from bertkit.errors import ResourceError, UsageError
from bertkit.storage import removal, runs
from bertkit.storage.removal import check_removable, remove_run
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

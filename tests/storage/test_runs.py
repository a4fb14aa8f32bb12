"""Run folders: claimed, locked and recorded."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from bertkit.errors import ResourceError, UsageError
from bertkit.storage import runs


def test_a_lock_ends_with_its_process(tmp_path):
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom bertkit.storage.runs import lock_run\n"
        f"with lock_run(Path({str(tmp_path)!r})):\n    print('held', flush=True)\n    time.sleep(60)\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    held = pytest.raises(ResourceError, match=f"process {holder.pid} on {socket.gethostname()} is writing this run")
    with held, runs.lock_run(tmp_path):
        pass
    holder.kill()
    holder.wait()
    holder.stdout.close()
    with runs.lock_run(tmp_path):
        pass


def test_a_record_that_is_damaged_is_named(tmp_path):
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ResourceError, match="the record of the run is damaged"):
        runs.prepare_run_folder(tmp_path, {}, restart=False)
    assert runs.prepare_run_folder(tmp_path, {}, restart=True) is None
    assert tmp_path.with_name(f"{tmp_path.name}.before").joinpath("run.json").read_text() == "{"


@pytest.mark.parametrize("status", ["running", "stopped"])
def test_one_change_in_the_record_of_an_unfinished_run_is_noticed(tmp_path, status):
    record = {"status": status, "identity": {}, "machine": MACHINE, "sha256": "of an earlier one"}
    runs.write_record(tmp_path, record)
    assert runs.read_record(tmp_path) == {"status": status, "identity": {}, "machine": MACHINE}
    written = (tmp_path / "run.json").read_text()
    (tmp_path / "run.json").write_text(written.replace("fp32", "bf16"))
    with pytest.raises(ResourceError, match="the record of the run is damaged"):
        runs.prepare_run_folder(tmp_path, {}, restart=False)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ResourceError, match="cannot be written"):
        runs.prepare_run_folder(tmp_path / "run", {}, restart=False)


@pytest.mark.parametrize("restart", [False, True])
def test_a_run_that_was_killed_before_its_record_was_there_is_claimed_again(tmp_path, restart):
    for name in (".lock", ".lock.held", ".run.json.tmp"):
        (tmp_path / name).write_text("{")
    assert runs.prepare_run_folder(tmp_path, {}, restart=restart) is None
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UsageError, match="something that is not a run of bertkit"):
        runs.prepare_run_folder(tmp_path, {}, restart=restart)


MACHINE = {"device": "cpu", "precision": "fp32", "threads": 1, "reason": "as asked"}


def test_a_record_of_today_is_read_as_it_was_written(tmp_path):
    written = runs.new_record({"recipe": {"name": "x", "training": {"seed": 1}}}, machine=MACHINE)
    runs.write_record(tmp_path, written)
    assert runs.read_record(tmp_path) == written
    assert runs.read_record(tmp_path / "nowhere") is None


def test_only_the_main_process_writes_the_record(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    runs.write_record(tmp_path, {})
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_another_run_is_refused_with_what_differs(tmp_path):
    (tmp_path / "checkpoint-1").mkdir()
    runs.write_record(tmp_path, runs.new_record({"recipe": {"seed": 1}}))
    assert runs.check_run_folder(tmp_path, {"recipe": {"seed": 1}})["status"] == "running"
    with pytest.raises(UsageError, match=r"another run \(recipe.seed: 1 there, 2 requested\)"):
        runs.check_run_folder(tmp_path, {"recipe": {"seed": 2}})


def test_a_run_without_a_checkpoint_is_started_again(tmp_path):
    runs.write_record(tmp_path, runs.new_record({"recipe": {"seed": 1}}))
    assert runs.check_run_folder(tmp_path, {"recipe": {"seed": 2}}) is None


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(UsageError, match="something that is not a run of bertkit"):
        runs.prepare_run_folder(tmp_path, {}, restart=True)
    with pytest.raises(ResourceError, match="there is a file where the run folder should be"):
        runs.prepare_run_folder(tmp_path / "thesis.txt", {}, restart=False)


def test_a_folder_of_runs_is_no_run_itself(tmp_path):
    for name in ("seed-1", "seed-2"):
        (tmp_path / name).mkdir()
        runs.write_record(tmp_path / name, runs.new_record({}))
    with pytest.raises(UsageError, match=r"the folder holds several runs \(seed-1, seed-2\)"):
        runs.prepare_run_folder(tmp_path, {}, restart=True)


@pytest.mark.skipif(os.sep != "/", reason="a backslash separates folders")
def test_a_path_of_windows_is_no_name_of_a_folder():
    with pytest.raises(UsageError, match=r"has a backslash - write runs/x"):
        runs.run_folder("runs\\x", "cola")


@pytest.mark.parametrize(
    "content",
    ["[]", "null", "NaN", "{", "{}", "[" * 9999, '{"status": "finished"}'],
)
def test_a_record_without_its_checksum_is_damaged(tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(ResourceError, match="the record of the run is damaged"):
        runs.read_record(tmp_path)

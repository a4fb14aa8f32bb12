"""Systems other than Linux, pretended: each fallback, and the smoke run that CI makes on each system."""

from __future__ import annotations

import io
import os
import re
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path, PureWindowsPath
from types import SimpleNamespace

import pytest

from bertkit.cli import terminal
from bertkit.hardware import process, workers
from bertkit.hardware.device import Device
from bertkit.recipe import sections
from bertkit.server.run import bind
from bertkit.storage import files, fingerprints, run_list, runs
from bertkit.storage.outputs import create_folder_atomically
from tests import windows
from tests.windows import MODULES, is_used

ROOT = Path(__file__).parent.parent


@pytest.fixture
def sleeps(monkeypatch):
    """Pretend Windows in the module of files, and count the times that it waits."""
    slept = []
    monkeypatch.setattr(files, "os", MODULES["os"])
    monkeypatch.setattr(files.time, "sleep", slept.append)
    return slept


@pytest.mark.parametrize("failures", [0, 2, 100])
def test_a_replacement_waits_for_programs_that_have_the_file_open(failures, sleeps, tmp_path, monkeypatch):
    left = iter(range(failures))

    def replace(source, target, _replace=os.replace):
        if next(left, None) is not None:
            raise PermissionError(13, "in use", str(target))
        _replace(source, target)

    monkeypatch.setattr(os, "replace", replace)
    if failures < 100:
        files.write_json(tmp_path / "a.json", [1])
        assert (tmp_path / "a.json").read_text() == "[\n  1\n]\n" and len(sleeps) == failures
    else:
        with pytest.raises(PermissionError):
            files.write_json(tmp_path / "a.json", [1])
        assert 0.5 < sum(sleeps) < 5
    assert not list(tmp_path.glob(".*"))


def test_no_replacement_is_repeated_on_other_systems(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(PermissionError(13, "no")))
    monkeypatch.setattr(files.time, "sleep", lambda _: pytest.fail("it waits"))
    with pytest.raises(PermissionError):
        files.write_json(tmp_path / "a.json", [1])


@pytest.mark.parametrize("locked", [True, False])
def test_a_lock_is_held_if_its_first_byte_cannot_be_read(locked, monkeypatch, tmp_path):
    class Stream(io.BytesIO):
        def read(self, *_):
            if locked:
                raise PermissionError(13, "locked")
            return super().read()

    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setattr(Path, "open", lambda *_: Stream(b"process 1"))
    assert files.is_locked(tmp_path / ".lock") is locked


def test_locks_are_released_before_their_folder_is_renamed(sleeps, tmp_path, monkeypatch):
    """With the lock of a run that is deleted, and of a run that is moved aside."""

    def rename(self, target, _rename=os.rename):
        assert not is_used(str(self)), "Windows would raise an error"
        _rename(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        runs.write_record(tmp_path / name, {"status": "finished"})
    run_list.remove_run(tmp_path / "a")
    with ExitStack() as held:
        held.enter_context(runs.lock_run(tmp_path / "b"))
        runs.move_aside(tmp_path / "b", held)
    assert [folder.name for folder in tmp_path.iterdir()] == ["b.before"]


def test_a_new_folder_takes_the_place_of_an_empty_one(tmp_path, monkeypatch):
    def rename(source, target, _rename=os.rename):
        if Path(target).exists():
            raise FileExistsError(17, "it exists", str(target))
        _rename(source, target)

    monkeypatch.setattr(os, "rename", rename)
    (tmp_path / "new").mkdir()
    with create_folder_atomically(tmp_path / "new") as folder:
        (folder / "file").touch()
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["file"]


def test_files_are_flushed_by_descriptors_that_can_write(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", windows.fsync)
    (tmp_path / "a").touch()
    with (tmp_path / "a").open("rb") as stream, pytest.raises(OSError, match="not open for writing"):
        os.fsync(stream.fileno())
    assert fingerprints.list_files(tmp_path, ["a"])["a"]["size"] == 0


@pytest.mark.parametrize(
    ("name", "leaves"),
    [("a/b", False), ("a\\b", False), ("C:b", True), ("C:\\b", True), ("\\b", True), ("/b", True), ("a\\..\\b", True)],
)
def test_a_name_with_a_drive_or_a_root_leaves_its_folder(name, leaves, monkeypatch):
    monkeypatch.setattr(fingerprints, "PurePath", PureWindowsPath)
    assert fingerprints.leaves_folder(name) is leaves


def test_a_run_folder_cannot_be_named_by_a_path(monkeypatch):
    monkeypatch.setattr(sections, "Path", PureWindowsPath)
    assert sections._check_folder_name("cola 2") == "cola 2"
    for name in ("a/b", "a\\b", "..\\b", "C:b", "a\\", "."):
        with pytest.raises(ValueError, match="plain name"):
            sections._check_folder_name(name)


@pytest.mark.parametrize("requested", [None, 2])
def test_the_training_process_builds_batches_where_no_process_can_fork(requested, monkeypatch):
    monkeypatch.setattr(process, "find_device", lambda: Device("cuda"))
    monkeypatch.setattr(process, "os", MODULES["os"])
    assert process.batch_workers(requested) == 0


def test_a_worker_ends_with_the_program_whose_id_stays_known(monkeypatch):
    """On Windows, `os.getppid` still returns the id of a program that has ended."""
    alive, ended = [True, True, False], []
    monkeypatch.setattr(workers, "sys", MODULES["sys"])
    monkeypatch.setattr(workers.time, "sleep", lambda _: None)
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr("multiprocessing.parent_process", lambda: SimpleNamespace(is_alive=lambda: alive.pop(0)))
    workers._end_with(os.getppid())
    assert (alive, ended) == ([], [1])


@pytest.mark.enable_socket
def test_a_port_is_not_shared_with_another_server(monkeypatch):
    monkeypatch.setattr("bertkit.server.run.os", MODULES["os"])
    with bind("127.0.0.1", 0) as server:
        assert server.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR) == 0


def test_the_console_keeps_its_stream():
    """The console encodes text as UTF-16; bytes written to its descriptor would be in another encoding."""

    class Console(io.RawIOBase):
        def __init__(self):
            self.text = ""

        def writable(self):
            return True

        def write(self, data):
            self.text += bytes(data).decode("utf-8")
            return len(data)

    console = Console()
    stream = io.TextIOWrapper(io.BufferedWriter(console), encoding="utf-8", line_buffering=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "__stdout__", stream)
        tolerant = terminal._make_tolerant(stream, 1, "backslashreplace")
    tolerant.write("café \ud800\n")
    assert console.text == "café \\ud800\n"


def test_text_files_end_their_lines_as_on_linux():
    """Files of a run have the same bytes on each system; the csv module ends its lines itself."""
    for file in sorted((ROOT / "bertkit").rglob("*.py")):
        for line in file.read_text(encoding="utf-8").split("\n"):
            writes = re.search(r"\.write_text\(|\.open\(\"[wax]t?\"", line) and not re.search("/proc/|close\\(", line)
            assert not writes or "newline=" in line, f"{file}: {line}"


@pytest.mark.slow
@pytest.mark.parametrize("system", ["linux", "windows"])
def test_the_smoke_run_of_continuous_integration(system, tmp_path):
    program = {
        "linux": f"{sys.executable} -m bertkit",
        "windows": f"{sys.executable} -X warn_default_encoding -m tests.windows",
    }[system]
    environment = {**os.environ, "BERTKIT": program, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(["bash", ROOT / ".ci" / "smoke"], env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr

"""Files written atomically, and locks: waited for or refused, and gone with their process."""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bertkit.errors import ResourceError
from bertkit.storage import files


def make_error(holder: str) -> ResourceError:
    return ResourceError(f"{holder} is at work", "wait")


@pytest.fixture
def start():
    """Start a script that works on a lock and prints a line once it holds it; end it afterwards."""
    started = []

    def start_script(script: str) -> subprocess.Popen:
        head = "import os, sys, time\nfrom pathlib import Path\nfrom bertkit.storage.files import hold_lock\n"
        process = subprocess.Popen([sys.executable, "-c", head + script], stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start_script
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_json_is_the_old_file_or_the_new_one(tmp_path, monkeypatch):
    file = tmp_path / "a.json"
    files.write_json(file, {"a": 1})
    monkeypatch.setattr(os, "fsync", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        files.write_json(file, {"a": 2})
    assert json.loads(file.read_text()) == {"a": 1}


def test_json_has_no_nan(tmp_path):
    files.write_json(tmp_path / "a.json", {"scores": [math.nan, {"f1": -math.inf}], "file": Path("x"), "best": 1.0})

    def refuse_literal(name):
        raise AssertionError(name)

    read = json.loads((tmp_path / "a.json").read_text(), parse_constant=refuse_literal)
    assert read == {"scores": [None, {"f1": None}], "file": "x", "best": 1.0}


def test_a_score_that_knows_more_than_its_number_is_kept_as_a_plain_one():
    class Score(float):
        pass

    assert [type(value) for value in files.null_for_nan([Score(0.5), 1, True, Score("nan")])] == [
        float,
        int,
        bool,
        type(None),
    ]


def test_what_a_killed_writer_left_is_overwritten(tmp_path):
    (tmp_path / ".a.txt.tmp").write_text("half of an earlier")
    files.write_text(tmp_path / "a.txt", "é")
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "é"
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]


def test_a_file_is_replaced_only_without_an_error(tmp_path):
    file = tmp_path / "a.bin"
    file.write_bytes(b"old")
    with pytest.raises(ValueError, match="broken"), files.atomic_write(file) as temporary:
        temporary.write_bytes(b"ne")
        raise ValueError("broken")
    assert file.read_bytes() == b"old"
    with files.atomic_write(file) as temporary:
        temporary.write_bytes(b"new")
        assert file.read_bytes() == b"old"
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("a.bin", b"new")]


def test_a_held_lock_is_refused_with_the_name_of_its_holder(tmp_path):
    lock = tmp_path / "lock"
    refused = pytest.raises(ResourceError, match=f"process {os.getpid()} on .* is at work")
    with files.hold_lock(lock, make_error=make_error), refused, files.hold_lock(lock, make_error=make_error):
        pass
    with files.hold_lock(lock, make_error=make_error):
        pass


def test_a_held_lock_is_waited_for(tmp_path):
    lock, order, waiting = tmp_path / "lock", [], threading.Event()

    def wait_for_it():
        with files.hold_lock(lock, on_wait=waiting.set):
            order.append("second")

    waiter = threading.Thread(target=wait_for_it)
    with files.hold_lock(lock, on_wait=lambda: pytest.fail("nobody holds it")):
        waiter.start()
        assert waiting.wait(10)
        order.append("first")
    waiter.join(10)
    assert order == ["first", "second"]


def test_the_lock_of_a_killed_process_is_no_obstacle(tmp_path, start):
    lock = tmp_path / "lock"
    holder = start(f"with hold_lock(Path({str(lock)!r})):\n    print('held', flush=True)\n    time.sleep(60)\n")
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(ResourceError, match=f"process {holder.pid} on "), files.hold_lock(lock, make_error=make_error):
        pass
    holder.kill()
    holder.wait()
    assert f"process {holder.pid} " in lock.read_text()
    with files.hold_lock(lock, make_error=make_error):
        assert f"process {os.getpid()} " in lock.read_text()


def test_a_forked_child_does_not_hold_the_lock_of_its_parent(tmp_path, start):
    lock = tmp_path / "lock"
    holder = start(
        f"with hold_lock(Path({str(lock)!r})):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n        print(os.getpid(), flush=True)\n        time.sleep(60)\n        os._exit(0)\n"
        "    time.sleep(60)\n"
    )
    child = int(holder.stdout.readline())
    try:
        with (
            pytest.raises(ResourceError, match=f"process {holder.pid} on "),
            files.hold_lock(lock, make_error=make_error),
        ):
            pass
        holder.kill()
        holder.wait()
        os.kill(child, 0)  # it lives on
        with files.hold_lock(lock, make_error=make_error):
            pass
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.fixture(params=[errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP], ids=errno.errorcode.get)
def no_locks(request, monkeypatch) -> str:
    """A file system that has no locks, and its reason."""
    import fcntl

    reason = os.strerror(request.param)

    def flock(*_):
        raise OSError(request.param, reason)

    monkeypatch.setattr(fcntl, "flock", flock)
    return reason


def test_a_file_system_without_locks_is_not_called_another_process(tmp_path, no_locks, caplog):
    lock, mark = tmp_path / "lock", tmp_path / "lock.held"
    caplog.set_level(logging.INFO, "bertkit")
    with files.hold_lock(lock, make_error=make_error):
        assert mark.is_file()
        assert caplog.messages == [
            f"the file system of {tmp_path} has no locks ({no_locks}): lock.held takes their place"
        ]
    assert not mark.exists()


def test_a_mark_in_place_of_a_lock_is_refused_with_the_way_out(tmp_path, no_locks):
    lock = tmp_path / "lock"
    says = rf"process {os.getpid()} on .* \(see lock.held; delete it if that process no longer runs\) is at work"
    with (
        files.hold_lock(lock, make_error=make_error),
        pytest.raises(ResourceError, match=says),
        files.hold_lock(lock, make_error=make_error),
    ):
        pass


def test_the_mark_of_a_dead_process_is_taken_over(tmp_path, no_locks, start):
    import socket

    ended = start("")
    ended.wait()
    (tmp_path / "lock.held").write_text(f"{ended.pid}\n{socket.gethostname()}\n")
    with files.hold_lock(tmp_path / "lock", make_error=make_error):
        assert (tmp_path / "lock.held").read_text().startswith(f"{os.getpid()}\n")


def test_another_failure_to_lock_is_told_as_it_is(tmp_path, monkeypatch):
    import fcntl

    def flock(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(OSError, match="Input/output error"), files.hold_lock(tmp_path / "lock", make_error=make_error):
        pass


def test_no_module_of_unix_alone_is_needed_to_start():
    script = "import os, sys; del os.register_at_fork; sys.modules['fcntl'] = None; "
    script += "import bertkit.cli.main, bertkit.storage.files; print('filelock' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "False\n"), ended.stderr


def test_a_lock_is_looked_at_without_touching_it(tmp_path):
    lock = tmp_path / ".lock"
    assert not files.is_locked(lock)
    assert not lock.exists()
    with files.hold_lock(lock):
        content = lock.read_bytes()
        assert files.is_locked(lock)
        assert lock.read_bytes() == content
    assert not files.is_locked(lock)
    (tmp_path / ".lock.held").touch()  # where the file system has no locks
    assert files.is_locked(lock)


def test_git_skips_a_folder_of_rows_unless_it_is_the_users_own(tmp_path):
    new, mine = tmp_path / "new", tmp_path / "mine"
    mine.mkdir()
    (mine / "code.py").touch()
    for folder in (new, mine):
        files.make_ignored_folder(folder)
    assert (new / ".gitignore").read_text().splitlines()[-1] == "*"
    assert not (mine / ".gitignore").exists()


def test_a_folder_is_ignored_although_a_process_was_killed_while_it_wrote_the_file(tmp_path):
    (tmp_path / "..gitignore.tmp").write_text("# This fol")
    files.make_ignored_folder(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == [".gitignore"]

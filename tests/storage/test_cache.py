"""Cached files: whole or not at all, whoever writes them, and not for ever."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bertkit.errors import ResourceError
from bertkit.storage.cache import atomic_cache_write, cache_folder, delete_unused, lock_folder, touch
from bertkit.storage.files import disk_errors
from tests.conftest import toy_rows, write_csv


def age(file: Path, days: float) -> None:
    then = time.time() - days * 24 * 3600
    os.utime(file, (then, then))


def test_the_folder_is_in_the_home_unless_it_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("BERTKIT_CACHE", str(tmp_path))
    assert cache_folder("features") == tmp_path / "features"
    assert (tmp_path / ".gitignore").read_text().splitlines()[-1] == "*"
    monkeypatch.delenv("BERTKIT_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder("states") == tmp_path / ".cache" / "bertkit" / "states"


def test_a_user_without_a_home_has_a_cache_until_the_command_ends(monkeypatch, caplog):
    monkeypatch.delenv("BERTKIT_CACHE")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # nor an entry among the users
    caplog.set_level("INFO")
    assert cache_folder("states") == cache_folder("states")
    assert "no home" in caplog.text
    assert cache_folder("states").parent.is_dir()


def test_two_writers_of_one_file_do_not_meet(tmp_path):
    file = tmp_path / "new" / "kept"
    with atomic_cache_write(file) as first, atomic_cache_write(file) as second:
        first.write_text("first ")
        second.write_text("second")
        first.write_text("first")
        assert not file.exists()
    assert file.read_text() == "first"  # the one that ended last
    assert list(file.parent.iterdir()) == [file]


def test_a_writer_that_fails_leaves_what_was_there(tmp_path):
    file = tmp_path / "kept"
    file.write_text("old")
    with pytest.raises(KeyboardInterrupt), atomic_cache_write(file) as temporary:
        temporary.write_text("ne")
        raise KeyboardInterrupt
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_what_nobody_read_for_a_month_goes_when_something_is_written(tmp_path):
    names = ("unread", "half.tmp", "recent", "read")
    for name, days in zip(names, (31, 31, 29, 31), strict=True):
        (tmp_path / name).touch()
        age(tmp_path / name, days)
    touch(tmp_path / "read")
    with atomic_cache_write(tmp_path / "new") as temporary:
        temporary.touch()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["new", "read", "recent"]


def test_a_folder_goes_as_a_whole_or_not_at_all(tmp_path):
    for name in ("unread", "read"):
        (tmp_path / name).mkdir()
        for file in ("column", "manifest"):
            (tmp_path / name / file).touch()
            age(tmp_path / name / file, 31)
        age(tmp_path / name, 31)
    touch(tmp_path / "read" / "manifest")
    delete_unused(tmp_path)
    assert sorted(str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*")) == [
        "read",
        "read/column",
        "read/manifest",
    ]


def test_a_full_disk_under_the_cache_is_named_and_not_that_of_the_output(tmp_path):
    with (
        pytest.raises(ResourceError) as raised,
        disk_errors(tmp_path / "output"),
        atomic_cache_write(tmp_path / "cached"),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert raised.value.file == str(tmp_path / "cached")


@pytest.mark.slow
def test_torch_leaves_nothing_in_a_working_folder_that_temporary_files_go_to(tmp_path, tiny_model):
    write_csv(tmp_path / "rows.csv", toy_rows(40, seed=1))
    command = ["finetune", "classify", "--model", str(tiny_model), "--data", "rows.csv", "--epochs", "1"]
    code = f"""
import os, sys, tempfile
tempfile.tempdir = os.getcwd()  # as Python finds it where no other folder can be written
sys.argv = ["bertkit", *{command!r}]
from bertkit.cli.main import main
main()
"""
    environment = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert {path.name for path in tmp_path.iterdir()} == {"rows.csv", "runs"}


def test_a_folder_is_locked_beside_it_before_it_exists(tmp_path):
    with lock_folder(tmp_path / "new" / "arrays"):
        assert not (tmp_path / "new" / "arrays").exists()
        assert (tmp_path / "new" / "arrays.lock").read_text().startswith("process ")

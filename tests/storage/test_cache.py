"""Cached files: whole or not at all, whoever writes them, and not for ever."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from bertkit.errors import ResourceError
from bertkit.storage.cache import IN_MEMORY, Spooled, cache_folder, spool, spool_sorted, sweep, touch, writing
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
    with writing(file) as first, writing(file) as second:
        first.write_text("first ")
        second.write_text("second")
        first.write_text("first")
        assert not file.exists()
    assert file.read_text() == "first"  # the one that ended last
    assert list(file.parent.iterdir()) == [file]


def test_a_writer_that_fails_leaves_what_was_there(tmp_path):
    file = tmp_path / "kept"
    file.write_text("old")
    with pytest.raises(KeyboardInterrupt), writing(file) as temporary:
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
    with writing(tmp_path / "new") as temporary:
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
    sweep(tmp_path)
    assert sorted(str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*")) == [
        "read",
        "read/column",
        "read/manifest",
    ]


def test_a_full_disk_under_the_cache_is_named_and_not_that_of_the_output(tmp_path):
    with pytest.raises(ResourceError) as raised, disk_errors(tmp_path / "output"), writing(tmp_path / "cached"):
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


# --- Sequences that wait on disk ---


@pytest.fixture(autouse=True)
def cache_parent(tmp_path, monkeypatch):
    monkeypatch.setenv("BERTKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_few_items_are_a_list_and_many_are_not():
    assert spool(iter(range(IN_MEMORY))) == list(range(IN_MEMORY))
    assert isinstance(spool(range(IN_MEMORY + 1)), Spooled)


@pytest.mark.parametrize("block", [1, 7, 256])
@pytest.mark.parametrize("count", [0, 1, 255, 256, 1000])
def test_items_are_found_as_in_a_list(count, block):
    items = [{"text": f"row {number}", "tags": (None, 1.5, number)} for number in range(count)]
    spooled = Spooled(iter(items), block)
    assert len(spooled) == count and list(spooled) == items
    assert spooled[3:900:11] == items[3:900:11] and spooled[::-1] == items[::-1]
    numbers = np.random.default_rng(0).integers(-count, count, 50) if count else []
    assert [spooled[number] for number in numbers] == [items[number] for number in numbers]
    with pytest.raises(IndexError):
        _ = spooled[count]


def test_nothing_is_left_on_disk_and_hardly_anything_in_memory(cache_parent):
    tracemalloc.start()
    try:
        spooled = spool({"text": f"the text of row {number}"} for number in range(3 * IN_MEMORY))
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < 30 * len(spooled)  # bytes; a list takes 300
    assert list((cache_parent / "spooled").iterdir()) == []


def test_a_cache_that_cannot_be_written_is_no_obstacle(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("BERTKIT_CACHE", str(tmp_path / "file"))
    assert list(Spooled(range(3))) == [0, 1, 2]


def test_a_full_disk_is_named(monkeypatch):
    class Full:
        def write(self, content):
            raise OSError(28, "No space left on device")

        def close(self):
            pass

    monkeypatch.setattr("bertkit.storage.cache._open_file", Full)
    with pytest.raises(ResourceError, match="No space left on device"):
        Spooled(range(3))


@pytest.mark.parametrize("count", [0, 1, 7, 100, 1000])
def test_items_are_sorted_as_by_python(count, monkeypatch):
    monkeypatch.setattr("bertkit.storage.cache._PART", 100)
    monkeypatch.setattr("bertkit.storage.cache.IN_MEMORY", 10)
    rng = random.Random(count)
    items = [(rng.randrange(20), number) for number in range(count)]  # many are equal: their order is kept
    ordered = spool_sorted(iter(items), lambda item: -item[0])
    assert list(ordered) == sorted(items, key=lambda item: -item[0])
    assert isinstance(ordered, list if count <= 10 else Spooled)

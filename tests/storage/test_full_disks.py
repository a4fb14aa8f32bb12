"""Disks that refuse a write: told with their reason, whatever library met them; and disks that are too small."""

from __future__ import annotations

import errno
import os
import shutil
from collections import namedtuple
from types import SimpleNamespace

import pytest

from bertkit.errors import BertkitError, DataError, ResourceError
from bertkit.storage import files

Usage = namedtuple("Usage", "total used free")
TORCH = "[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534"
TORCH_AT_ONCE = "basic_ios::clear: iostream error"  # where the file is written in one go
RUST = "Error while serializing: I/O error: {} (os error {})"
REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some of your quota",
    errno.EROFS: "make the file system writable again",
    errno.EIO: "check the disk",
}


@pytest.fixture(autouse=True)
def small_disk(monkeypatch):
    """A disk with 2 MB free."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**7, 8 * 10**6, 2 * 10**6))


def refuse_files(monkeypatch, number):
    def open_file(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("tempfile.TemporaryFile", open_file)


def line_of(error, folder, **keywords) -> str:
    with pytest.raises(ResourceError) as raised, files.disk_errors(folder, **keywords):
        raise error
    assert raised.value.__cause__ is error
    return str(raised.value)


@pytest.mark.parametrize("number", REMEDIES)
@pytest.mark.parametrize("library", ["python", "rust", "torch", "torch at once"])
def test_a_refused_write_is_told_with_its_reason(here, monkeypatch, number, library):
    reason = os.strerror(number)
    refuse_files(monkeypatch, number)
    errors = {"python": OSError(number, reason), "rust": Exception(RUST.format(reason, number))}
    errors |= {"torch": RuntimeError(TORCH), "torch at once": RuntimeError(TORCH_AT_ONCE)}
    line = line_of(errors[library], "run")
    assert line.startswith(reason)
    assert line.endswith(f"(run) - {REMEDIES[number]}, then repeat the command")


def test_a_full_disk_is_told_with_the_free_and_the_needed_space(here):
    line = line_of(OSError(errno.ENOSPC, "No space left on device"), here, needed=7_800_000)
    assert line.startswith("No space left on device; 2.0 MB are free, 7.8 MB are needed (")


def test_an_error_that_names_its_file_keeps_it(here):
    assert "(a.bin)" in line_of(OSError(errno.EIO, "Input/output error", "a.bin"), here)


def test_the_end_of_inodes_is_told_apart_from_the_end_of_space(here, monkeypatch):
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_favail=0, f_files=18))
    line = line_of(OSError(errno.ENOSPC, "No space left on device"), here, needed=7_800_000)
    assert line.startswith("No space left on device; no more files can be created; 2.0 MB are free (")


def test_a_write_that_torch_alone_was_refused_is_told_without_a_reason(here):
    assert line_of(RuntimeError(TORCH), here).startswith("torch could not write a file (")


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("shapes differ"),
        RuntimeError("[enforce fail at inline_container.cc:145] . PytorchStreamReader failed reading zip archive"),
        FileNotFoundError(errno.ENOENT, "No such file or directory", "a.csv"),
        BrokenPipeError(errno.EPIPE, "Broken pipe"),
        DataError("no label"),
        KeyboardInterrupt(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_other_errors_are_let_through(here, error):
    with pytest.raises(type(error)) as raised, files.disk_errors(here):
        raise error
    assert raised.value is error
    assert isinstance(error, DataError) or not isinstance(raised.value, BertkitError)


def test_a_disk_that_is_too_small_is_refused(here):
    files.check_space(here / "not" / "yet", 2_000_000)
    with pytest.raises(ResourceError) as raised:
        files.check_space(here / "run", 2_000_001)
    assert raised.value.message == "the disk is too small: 2.0 MB are free, up to 2.0 MB are needed"
    assert raised.value.remedy == "free some space, choose another --output, or set BERTKIT_SKIP_DISK_CHECK=1"


def test_nothing_is_refused_where_the_sizes_are_unknown_or_the_user_knows_better(here, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 0))
        files.check_space(here, 10**12)
    monkeypatch.setenv("BERTKIT_SKIP_DISK_CHECK", "1")
    files.check_space(here, 10**12)

"""Cache folder of computed files: atomic writes, locks, and deletion of old files."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from pathlib import Path

from bertkit.errors import ResourceError
from bertkit.progress import log
from bertkit.recipe.sections import expand_path
from bertkit.storage import files

_DAYS = 30
_TEMPORARY = cache(tempfile.TemporaryDirectory)  # deleted when the process ends


def cache_folder(content: str) -> Path:
    """Return the folder of cached files with this content, such as ``features``; BERTKIT_CACHE names its parent."""
    configured = os.environ.get("BERTKIT_CACHE")
    folder = expand_path(configured) if configured else _home_cache()
    with suppress(OSError):  # Commands that only read do not need the folder.
        files.make_ignored_folder(folder)
    return folder / content


def _home_cache() -> Path:
    """Return the cache in the user's home, or a temporary one for a user without a home, as in many containers."""
    try:
        return Path("~/.cache/bertkit").expanduser()
    except RuntimeError:
        log_once("this user has no home, so what is cached is lost when the command ends; set BERTKIT_CACHE to keep it")
        return Path(_TEMPORARY().name)


def keep_working_folder_clean() -> None:
    """Write temporary files to a folder that is deleted at the end, if they would go to the working folder.

    Python uses the working folder if it can write no other one, as in a container without TMPDIR. At its import, torch
    creates a folder for its compiler there, which would stay.
    """
    with suppress(FileNotFoundError):  # The working folder is not writable either.
        if Path(tempfile.gettempdir()) == Path.cwd():
            os.environ["TMPDIR"] = tempfile.tempdir = _TEMPORARY().name


@contextmanager
def atomic_cache_write(file: Path) -> Iterator[Path]:
    """Yield a temporary file that replaces a cached file once it is written without an error.

    Files of the same folder that were not read for 30 days are then deleted, so that the cache does not grow forever.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        with files.atomic_write(file) as temporary:
            yield temporary
    except OSError as error:
        if error.errno and not error.filename:
            # The error of a write has no file name, and the caller would report the name of its output.
            error.filename = str(file)
        raise
    delete_unused(file.parent)


def touch(file: Path) -> None:
    """Set the time of a cached file, which shows when it was last read."""
    with suppress(OSError):  # The file of another user can be read, but not touched.
        os.utime(file)


@cache
def log_once(line: str) -> None:
    """Log a line only once per process, not again for every split."""
    log.info(line)


def delete_unused(folder: Path) -> None:
    """Delete entries that were not read for 30 days; a process that has such a file open can still read it.

    A folder is as old as its most recent file. It is renamed before it is deleted, so that it is never incomplete.
    """
    for entry in folder.iterdir():
        with suppress(OSError):  # Another process may have deleted the entry, or it may belong to another user.
            times = [file.stat().st_mtime for file in (entry, *(entry.iterdir() if entry.is_dir() else ()))]
            if time.time() - max(times) <= _DAYS * 24 * 3600:
                continue
            if entry.is_dir():
                entry = entry.rename(entry.with_name(f"{entry.name}.{secrets.token_hex(4)}.tmp"))
                shutil.rmtree(entry)
            else:
                entry.unlink()


def lock_folder(folder: Path, make_error: Callable[[str], ResourceError] | None = None) -> AbstractContextManager[None]:
    """Hold the lock of a folder, which need not exist.

    Args:
        folder: Folder of numbers in the cache.
        make_error: Builds the error to raise if another process holds the lock; by default, wait for that process.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = folder.with_name(f"{folder.name}.lock")
    # A new time keeps `delete_unused` from deleting the lock while it is held.
    lock.touch()
    touch(lock)
    # Processes of a launch write many folders at the same time, so the line is logged once for all of them.
    waiting = f"waiting for another process that computes numbers in {folder.parent}"
    return files.hold_lock(lock, make_error=make_error, on_wait=lambda: log_once(waiting))

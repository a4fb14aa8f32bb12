"""Files that are computed once and kept: one place for all of them, each there whole or not at all."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from bertkit.storage import files

log = logging.getLogger("bertkit")

_DAYS = 30


def cache_folder(kind: str) -> Path:
    """Give the folder of one kind of kept files: below BERTKIT_CACHE where that is set."""
    return Path(os.environ.get("BERTKIT_CACHE") or Path.home() / ".cache" / "bertkit") / kind


@contextmanager
def keeping(file: Path) -> Iterator[Path]:
    """Yield a temporary file that takes the place of a kept file once it is written without an error.

    What nobody has read for 30 days goes then, so that the folder does not grow for ever.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with files.replacing(file) as temporary:
        yield temporary
    sweep(file.parent)


def touch(file: Path) -> None:
    """Note that a kept file was of use today."""
    with suppress(OSError):  # another user's file may be read, and be left to them
        os.utime(file)


@cache
def say_once(line: str) -> None:
    """Log a line that need not be repeated for every split."""
    log.info(line)


def sweep(folder: Path) -> None:
    """Delete what nobody has read for 30 days; a process that still has such a file open keeps it until it ends.

    A folder is as old as the youngest file in it, and goes as a whole: it is renamed first.
    """
    for entry in folder.iterdir():
        with suppress(OSError):
            if time.time() - _last_use(entry) <= _DAYS * 24 * 3600:
                continue
            if entry.is_dir():
                entry = entry.rename(entry.with_name(f"{entry.name}.{secrets.token_hex(4)}.tmp"))
                shutil.rmtree(entry)
            else:
                entry.unlink()


def _last_use(entry: Path) -> float:
    times: list[float] = [file.stat().st_mtime for file in (entry, *(entry.iterdir() if entry.is_dir() else ()))]
    return max(times)

"""Files that are on disk whole or not at all, and locks that the system releases when their process ends."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from bertkit.errors import ResourceError

_TEMPORARY = re.compile(r"\d+\.[0-9a-f]{8}")  # what `replacing` puts between a file's name and .tmp

_HELD: set[TextIO] = set()
"""Open files whose locks this process holds."""


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """Yield a temporary file, unique to this call, that replaces the file once it is written without an error."""
    import secrets  # as `socket` below, only here: `bertkit --help` imports this module too

    temporary = file.with_name(f".{file.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


def sweep_temporaries(file: Path) -> None:
    """Delete what killed processes left of `replacing` a file; no other process may be writing it."""
    for entry in file.parent.iterdir():
        middle = entry.name.removeprefix(f".{file.name}.").removesuffix(".tmp")
        if entry.name == f".{file.name}.{middle}.tmp" and _TEMPORARY.fullmatch(middle):
            entry.unlink(missing_ok=True)


def write_json(file: Path, values: Any) -> None:
    """Write JSON atomically: at any instant the file is the old one or the new one, and on disk on return."""
    write_text(file, json.dumps(values, indent=2, ensure_ascii=False, default=str) + "\n")


def write_text(file: Path, text: str) -> None:
    """Write text atomically: at any instant the file is the old one or the new one, and on disk on return."""
    # One temporary name for all processes, so that the next one overwrites what a killed one left.
    temporary = file.with_name(f".{file.name}.tmp")
    with temporary.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(file)
    sync_folder(file.parent)


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, so that a rename survives a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def locked(
    lock: Path, *, refuse: Callable[[str], ResourceError] | None = None, on_wait: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Hold a lock; the system releases it when the process ends, however it ends.

    Args:
        lock: the lock file, created if missing; it names the process that holds the lock, and stays afterwards.
        refuse: builds the error to raise if another process holds the lock, from the name of that process; by
            default, wait for that process.
        on_wait: called before waiting.
    """
    import fcntl
    import socket

    with lock.open("a+", encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if refuse is not None:
                stream.seek(0)
                raise refuse(stream.read().strip() or "another process") from None
            on_wait()
            fcntl.flock(stream, fcntl.LOCK_EX)
        stream.truncate(0)
        stream.write(f"process {os.getpid()} on {socket.gethostname()}")
        stream.flush()
        _HELD.add(stream)
        try:
            yield
        finally:
            _HELD.discard(stream)


def _release_in_child() -> None:
    """Release the locks in a forked child, which would otherwise hold them after its parent was killed."""
    for stream in _HELD:
        os.close(stream.fileno())


os.register_at_fork(after_in_child=_release_in_child)

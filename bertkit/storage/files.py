"""Files that are on disk whole or not at all, and locks that the system releases when their process ends."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from bertkit.errors import ResourceError

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


def to_json(values: Any, indent: int | None = None) -> str:
    """Return values as strict JSON, which has no NaN and no infinity: they become null.

    >>> to_json({"loss": math.nan, "word": "é"})
    '{"loss": null, "word": "é"}'
    """
    try:
        return json.dumps(values, indent=indent, ensure_ascii=False, allow_nan=False, default=str)
    except ValueError:
        return json.dumps(null_for_nan(values), indent=indent, ensure_ascii=False, allow_nan=False, default=str)


def null_for_nan(values: Any) -> Any:
    """Return nested values with None for NaN and infinity.

    >>> null_for_nan({"f1": [0.5, math.inf]})
    {'f1': [0.5, None]}
    """
    if isinstance(values, Mapping):
        return {name: null_for_nan(value) for name, value in values.items()}
    if isinstance(values, (list, tuple)):
        return [null_for_nan(value) for value in values]
    return None if isinstance(values, float) and not math.isfinite(values) else values


def write_json(file: Path, values: Any) -> None:
    """Write strict JSON atomically: at any instant the file is the old one or the new one, and on disk on return."""
    write_text(file, to_json(values, indent=2) + "\n")


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

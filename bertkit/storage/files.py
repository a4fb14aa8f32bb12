"""Files that are on disk whole or not at all, and locks that the system releases when their process ends."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from bertkit.errors import ResourceError
from bertkit.progress import log

if TYPE_CHECKING:
    from filelock import BaseFileLock


_MARK = ".held"  # ends the name of the file that marks a lock as held where the file system has none
_NO_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK}
"""What a file system answers that has no locks, such as Lustre or NFS where they are not set up."""


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


def to_json(values: object, indent: int | None = None) -> str:
    """Return values as strict JSON, which has no NaN and no infinity: they become null.

    >>> to_json({"loss": math.nan, "word": "é"})
    '{"loss": null, "word": "é"}'
    """
    try:
        return json.dumps(values, indent=indent, ensure_ascii=False, allow_nan=False, default=str)
    except ValueError:
        return json.dumps(null_for_nan(values), indent=indent, ensure_ascii=False, allow_nan=False, default=str)


def null_for_nan(values: object) -> Any:
    """Return nested values with None for NaN and infinity, and all other floats as plain ones.

    >>> null_for_nan({"f1": [0.5, math.inf]})
    {'f1': [0.5, None]}
    """
    if isinstance(values, Mapping):
        return {name: null_for_nan(value) for name, value in values.items()}
    if isinstance(values, (list, tuple)):
        return [null_for_nan(value) for value in values]
    if isinstance(values, float):
        return float(values) if math.isfinite(values) else None
    return values


def write_json(file: Path, values: object) -> None:
    """Write strict JSON atomically: at any instant the file is the old one or the new one, and on disk on return."""
    write_text(file, to_json(values, indent=2) + "\n")


def write_text(file: Path, text: str) -> None:
    """Write text as `write_bytes` does."""
    write_bytes(file, text.encode())


def write_bytes(file: Path, content: bytes) -> None:
    """Write a file atomically: at any instant it is the old one or the new one, and on disk on return."""
    temporary = temporary_of(file)
    try:
        with temporary.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(file)
        sync_folder(file.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)  # its room is needed
        if error.errno and not error.filename:
            error.filename = str(file)  # a write does not know where it goes
        raise


def temporary_of(file: Path) -> Path:
    """Return the file that `write_text` renames: of one name, so that the next process overwrites a killed one's."""
    return file.with_name(f".{file.name}.tmp")


def split_lines(text: str) -> list[str]:
    r"""Split text into its lines at \n alone: a text in a line of JSON may have U+2028, at which `splitlines` splits.

    >>> split_lines('"a\u2028b"\n"c"\n'), split_lines("")
    (['"a\u2028b"', '"c"'], [])
    """
    return text.removesuffix("\n").split("\n") if text else []


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, so that a rename survives a power cut; Windows cannot open a folder."""
    if os.name == "nt":
        return
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

    A file system without locks gets a file that marks the lock as held. A mark that a dead process of this machine left
    is taken over where the file system can do that in one step.

    Args:
        lock: the lock file, created if missing; it names the process that holds the lock, and stays afterwards.
        refuse: builds the error to raise if another process holds the lock, from the name of that process; by
            default, wait for that process.
        on_wait: called before waiting.
    """
    from filelock import FileLock, SoftFileLock

    if not lock.parent.is_dir():  # filelock would create it
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(lock.parent))
    try:
        held = _acquire_lock(FileLock(lock, on_acquired=_sign_lock), refuse, on_wait)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        mark = lock.with_name(f"{lock.name}{_MARK}")
        log.info(f"the file system of {lock.parent} has no locks ({error.strerror}): {mark.name} takes their place")
        held = _acquire_lock(SoftFileLock(mark), refuse, on_wait)
    try:
        yield
    finally:
        held.release()


def is_locked(lock: Path) -> bool:
    """Tell whether a process holds a lock, or has marked it as held; the lock file stays as it is."""
    if lock.with_name(f"{lock.name}{_MARK}").exists():
        return True
    try:
        with lock.open("rb") as stream:
            return not _is_free(stream)
    except FileNotFoundError:
        return False
    except PermissionError:  # Windows lets nobody read a locked file
        return os.name == "nt"


def holder_of(lock: Path) -> str | None:
    """Return the name of the process that holds a lock, without waiting or writing; None where none does."""
    return _read_holder(lock) if is_locked(lock) else None


def _is_free(stream: BinaryIO) -> bool:
    """Tell whether an open lock file could be locked, by sharing it for an instant."""
    try:
        import fcntl
    except ImportError:  # Windows, where opening it was the question
        return True
    try:
        fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in _NO_LOCKS
    return True


def _acquire_lock(
    lock: BaseFileLock, refuse: Callable[[str], ResourceError] | None, on_wait: Callable[[], None]
) -> BaseFileLock:
    from filelock import Timeout

    try:
        lock.acquire(blocking=False)
    except Timeout:
        if refuse is not None:
            raise refuse(_read_holder(Path(lock.lock_file))) from None
        on_wait()
        lock.acquire()
    return lock


def _sign_lock(lock: int) -> None:
    """Write the name of this process into an open lock file."""
    import socket

    os.ftruncate(lock, 0)
    os.write(lock, f"process {os.getpid()} on {socket.gethostname()}".encode())


def _read_holder(lock: Path) -> str:
    """Read the name of the process that holds a lock, or that has marked it as held."""
    try:
        process, *host = split_lines(lock.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # Windows lets nobody read a locked file
        return "another process"
    return f"process {process} on {host[0]} ({lock.name} says so: delete it if that is long gone)" if host else process

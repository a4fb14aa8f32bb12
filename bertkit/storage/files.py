"""Files that are on disk whole or not at all, locks that end with their process, and disks that refuse a write."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from bertkit.errors import BertkitError, ResourceError, UsageError
from bertkit.progress import log

if TYPE_CHECKING:
    from filelock import BaseFileLock


# ends the name of the file that marks a lock as held where the file system has none
_MARK = ".held"
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
        # in a folder of somebody else it may be a link to any file
        temporary.unlink(missing_ok=True)
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


def make_ignored_folder(folder: Path, *, parents: bool = True) -> None:
    """Create a folder that is to hold rows of the data, which git and `hf upload` skip unless it has files already."""
    folder.mkdir(parents=parents, exist_ok=True)
    ignore = folder / ".gitignore"
    # A process that was killed while it wrote the file has left a temporary one, which does not count.
    if not any(entry != temporary_of(ignore) for entry in folder.iterdir()):
        write_text(ignore, "# This folder holds rows of the data, so git skips it.\n*\n")


def temporary_of(file: Path) -> Path:
    """Return the file that `write_text` renames: of one name, so that the next process overwrites a killed one's."""
    return file.with_name(f".{file.name}.tmp")


def split_lines(text: str) -> list[str]:
    r"""Split text into its lines at \n alone: a text in a line of JSON may have U+2028, at which `splitlines` splits.

    >>> split_lines('"a\u2028b"\n"c"\n'), split_lines("")
    (['"a\u2028b"', '"c"'], [])
    """
    return text.removesuffix("\n").split("\n") if text else []


def refuse_links(folder: Path) -> None:
    """Check that no link in a folder leads out of it: what is written there, or published, would be a file elsewhere.

    Raises:
        UsageError: one does.
    """
    for file in folder.rglob("*"):
        if file.is_symlink() and not file.resolve().is_relative_to(folder.resolve()):
            raise UsageError("a link to a file elsewhere", f"put {file.resolve()} in its place", file=file)


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
        mark = mark_of(lock)
        log.info(f"the file system of {lock.parent} has no locks ({error.strerror}): {mark.name} takes their place")
        held = _acquire_lock(SoftFileLock(mark), refuse, on_wait)
    try:
        yield
    finally:
        held.release()


def mark_of(lock: Path) -> Path:
    """Return the file that marks a lock as held where the file system has no locks."""
    return lock.with_name(f"{lock.name}{_MARK}")


def is_locked(lock: Path) -> bool:
    """Tell whether a process holds a lock, or has marked it as held; the lock file stays as it is."""
    if mark_of(lock).exists():
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


REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some of your quota",
    errno.EFBIG: "raise the limit of file sizes (`ulimit -f`), or use another file system",
    errno.EROFS: "make the file system writable again",
    errno.EIO: "check the disk",
}
"""Errno of a write that a disk refuses -> what to do about it."""
_OF_RUST = re.compile(r"\(os error (\d+)\)")
"""How safetensors and tokenizers name the errno of a failed write."""
_OF_TORCH = ("inline_container.cc", "PytorchStreamWriter", "iostream error", "cannot be opened")
"""Where torch says that a write has failed; it does not say why."""
_SKIP = "BERTKIT_SKIP_DISK_CHECK"


@contextmanager
def disk_errors(folder: Path, *, needed: int = 0) -> Iterator[None]:
    """Turn the errors of a disk that refuses a write into one that says so, whatever library has met them.

    Args:
        folder: what is written to.
        needed: the bytes that are written, if they are known.

    Raises:
        ResourceError: a write was refused; the message has the reason and the free space.
    """
    try:
        yield
    except BertkitError:
        raise
    except Exception as error:  # each library has its own; what is no error of a disk is raised again
        named = _name_error(error, folder, needed)
        if named is None:
            raise
        raise named from error


def disk_error(number: int | None, file: object, *, needed: int = 0) -> ResourceError:
    """Build the error of a write that was refused with this errno; None where the reason is not known."""
    what = os.strerror(number) if number else "torch could not write a file"
    # "No space" may mean bytes or inodes, which have different remedies.
    if number == errno.ENOSPC and file:
        free, files = free_space(Path(str(file)))
        what += "; no more files can be created" if files == 0 else ""
        what += f"; {_megabytes(free)} are free" if free is not None else ""
        what += f", {_megabytes(needed)} are needed" if needed and files != 0 else ""
    remedy = REMEDIES.get(number or 0, "check the disk")
    return ResourceError(what, f"{remedy}, then repeat the command", file=file)


def is_disk_error(error: OSError) -> bool:
    """Tell whether an error is one of the disk, rather than of a path or a connection."""
    return error.errno in REMEDIES


def check_space(folder: Path, needed: int) -> None:
    """Check that a disk has room for what a run will write; the variable BERTKIT_SKIP_DISK_CHECK skips this.

    Raises:
        ResourceError: it has not; the message has the free and the needed space.
    """
    free, _ = free_space(folder)
    if free is not None and free < needed and not os.environ.get(_SKIP):
        what = f"the disk is too small: {_megabytes(free)} are free, up to {_megabytes(needed)} are needed"
        raise ResourceError(what, f"free some space, choose another --output, or set {_SKIP}=1", file=folder)


def _name_error(error: Exception, folder: Path, needed: int) -> ResourceError | None:
    if isinstance(error, OSError):
        return disk_error(error.errno, error.filename or folder, needed=needed) if is_disk_error(error) else None
    text = str(error)
    if (found := _OF_RUST.search(text)) and int(found[1]) in REMEDIES:
        return disk_error(int(found[1]), folder, needed=needed)
    # torch does not say why a write failed, so a small file is tried in the same folder.
    if isinstance(error, RuntimeError) and any(words in text for words in _OF_TORCH) and "Reader" not in text:
        return disk_error(_try_to_write(folder), folder, needed=needed)
    return None


def _try_to_write(folder: Path) -> int | None:
    """Return the errno with which a folder refuses a file of a mebibyte; None if it does not."""
    try:
        import tempfile  # late: it takes a tenth of the start

        with tempfile.TemporaryFile(dir=folder) as stream:
            stream.write(bytes(1 << 20))
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        return error.errno
    return None


def free_space(file: Path) -> tuple[int | None, int | None]:
    """Return the bytes and the number of files that can still be written near a path; None if that is not known."""
    while not file.exists() and file != file.parent:
        file = file.parent
    try:
        usage = shutil.disk_usage(file)
        files = os.statvfs(file).f_favail if hasattr(os, "statvfs") and os.statvfs(file).f_files else None
    except OSError:
        return None, None
    # some network file systems know no sizes
    return (usage.free if usage.total else None), files


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"

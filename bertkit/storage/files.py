"""Atomic writes, locks that end with their process, and errors of the disk."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from bertkit.errors import BertkitError, ResourceError, UsageError
from bertkit.progress import log

if TYPE_CHECKING:
    from filelock import BaseFileLock


# Ending of the file that marks a lock as held, if the file system has no locks.
_MARK = ".held"
_NO_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK}
"""Error numbers of file systems without locks, such as Lustre or NFS if locks are not set up."""


@contextmanager
def atomic_write(file: Path) -> Iterator[Path]:
    """Yield a temporary file, unique to this call, that replaces the file once it is written without an error."""
    import secrets  # Imported late, as `socket` below, because `bertkit --help` imports this module.

    # The temporary file is in the same folder, because a rename is atomic only within a file system.
    temporary = file.with_name(f".{file.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        replace_file(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)


def to_json(values: object, indent: int | None = None) -> str:
    """Return values as strict JSON, which has no NaN and no infinity: they become null.

    >>> to_json({"loss": math.nan, "word": "é"})
    '{"loss": null, "word": "é"}'
    """
    # Few values have a NaN, and replacing it takes longer than writing JSON.
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
    temporary = get_temporary_path(file)
    try:
        # In a folder of another user, it could be a link to any file.
        temporary.unlink(missing_ok=True)
        with temporary.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        replace_file(temporary, file)
        sync_folder(file.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)  # frees its space
        if error.errno and not error.filename:
            error.filename = str(file)  # The error of a write has no file name.
        raise


def replace_file(temporary: Path, file: Path) -> None:
    """Rename a temporary file to a file, which it replaces.

    On Windows, this fails while another process, such as a virus scanner, has one of them open, so it is repeated.
    """
    for seconds in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0) if os.name == "nt" else ():
        with suppress(PermissionError):
            temporary.replace(file)
            return
        time.sleep(seconds)
    temporary.replace(file)


def rename_folder(folder: Path, target: Path, locks: ExitStack) -> None:
    """Rename a folder whose locks are held.

    Windows cannot rename a folder with an open file, so the locks are released there. If another process takes them in
    the meantime, the rename fails.
    """
    if os.name == "nt":
        locks.close()
    folder.rename(target)


def make_ignored_folder(folder: Path, *, parents: bool = True) -> None:
    """Create a folder for rows of the data, which git and `hf upload` skip unless the folder already has files."""
    folder.mkdir(parents=parents, exist_ok=True)
    ignore = folder / ".gitignore"
    # Ignore the temporary file of a process that was killed while it wrote the file.
    if not any(entry != get_temporary_path(ignore) for entry in folder.iterdir()):
        write_text(ignore, "# This folder holds rows of the data, so git skips it.\n*\n")


def get_temporary_path(file: Path) -> Path:
    """Return the temporary file of `write_text`; its name is fixed, so that the next process overwrites leftovers."""
    return file.with_name(f".{file.name}.tmp")


def split_lines(text: str) -> list[str]:
    r"""Split text into lines at \n only, because `splitlines` would also split at U+2028, which JSON lines can contain.

    >>> split_lines('"a\u2028b"\n"c"\n'), split_lines("")
    (['"a\u2028b"', '"c"'], [])
    """
    return text.removesuffix("\n").split("\n") if text else []


def check_links(folder: Path) -> None:
    """Check that no link in a folder leads out of it, because writing or publishing it would affect a file elsewhere.

    Raises:
        UsageError: If a link leads out of the folder.
    """
    for file in folder.rglob("*"):
        # A link within the folder is harmless, because it moves with the folder.
        if file.is_symlink() and not file.resolve().is_relative_to(folder.resolve()):
            raise UsageError("a link to a file elsewhere", f"replace it with {file.resolve()}", file=file)


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
def hold_lock(
    lock: Path, *, make_error: Callable[[str], ResourceError] | None = None, on_wait: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Hold a lock; the system releases it when the process ends, however it ends.

    On a file system without locks, a file marks the lock as held. The mark of a dead process of this machine is reused
    if the file system can do that atomically.

    Args:
        lock: Lock file, created if missing; it contains the name of the process that holds the lock, and is kept.
        make_error: Function that builds the error to raise if another process holds the lock, from the name of that
            process; by default, wait for that process.
        on_wait: Function that is called before waiting.
    """
    from filelock import FileLock, SoftFileLock

    if not lock.parent.is_dir():  # filelock would create it
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(lock.parent))
    # The process signs its lock, so that the error of another process can name it.
    try:
        held = _acquire_lock(FileLock(lock, on_acquired=_sign_lock), make_error, on_wait)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        mark = get_lock_mark(lock)
        log.info(f"the file system of {lock.parent} has no locks ({error.strerror}): {mark.name} takes their place")
        held = _acquire_lock(SoftFileLock(mark), make_error, on_wait)
    try:
        yield
    finally:
        held.release()


def get_lock_mark(lock: Path) -> Path:
    """Return the file that marks a lock as held if the file system has no locks."""
    return lock.with_name(f"{lock.name}{_MARK}")


def is_locked(lock: Path) -> bool:
    """Return whether a process holds a lock, or has marked it as held, without changing the lock file."""
    if get_lock_mark(lock).exists():
        return True
    try:
        with lock.open("rb") as stream:
            return not _is_free(stream)
    except (FileNotFoundError, PermissionError):
        return False


def get_lock_holder(lock: Path) -> str | None:
    """Return the name of the process that holds a lock, or None, without waiting or writing."""
    return _read_holder(lock) if is_locked(lock) else None


def _is_free(stream: BinaryIO) -> bool:
    """Return whether an open lock file could be locked, by holding a shared lock for an instant."""
    # Windows has no fcntl, but there the first byte of a locked file cannot be read.
    lock: Callable[[], object] = partial(stream.read, 1)
    with suppress(ImportError):
        import fcntl

        lock = partial(fcntl.flock, stream, fcntl.LOCK_SH | fcntl.LOCK_NB)  # type: ignore[attr-defined, unused-ignore]
    try:
        lock()
    except OSError as error:
        return error.errno in _NO_LOCKS
    return True


def _acquire_lock(
    lock: BaseFileLock, make_error: Callable[[str], ResourceError] | None, on_wait: Callable[[], None]
) -> BaseFileLock:
    from filelock import Timeout

    try:
        lock.acquire(blocking=False)
    except Timeout:
        if make_error is not None:
            raise make_error(_read_holder(Path(lock.lock_file))) from None
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
    except (OSError, ValueError):  # On Windows, a locked file cannot be read.
        return "another process"
    return (
        f"process {process} on {host[0]} (see {lock.name}; delete it if that process no longer runs)"
        if host
        else process
    )


REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some of your quota",
    errno.EFBIG: "raise the limit of file sizes (`ulimit -f`), or use another file system",
    errno.EROFS: "make the file system writable again",
    errno.EIO: "check the disk",
}
"""Errno of a failed write -> remedy."""
_RUST_ERRNO = re.compile(r"\(os error (\d+)\)")
"""Pattern of the errno of a failed write in messages of safetensors and tokenizers."""
_TORCH_WRITE_ERRORS = ("inline_container.cc", "PytorchStreamWriter", "iostream error", "cannot be opened")
"""Parts of the messages of torch about failed writes, which have no reason."""
_SKIP = "BERTKIT_SKIP_DISK_CHECK"


@contextmanager
def disk_errors(folder: Path, *, needed: int = 0) -> Iterator[None]:
    """Convert the errors of failed writes, which depend on the library, to ResourceError.

    Args:
        folder: Folder that the block writes.
        needed: Bytes to write, or 0 if unknown.

    Raises:
        ResourceError: If a write fails; the message has the reason and the free space.
    """
    try:
        yield
    except BertkitError:  # It already has a message and a remedy.
        raise
    except Exception as error:  # Each library has its own errors; errors that are not of the disk are raised again.
        converted = _convert_error(error, folder, needed)
        if converted is None:
            raise
        raise converted from error


def disk_error(code: int | None, file: object, *, needed: int = 0) -> ResourceError:
    """Return the error for a write that failed with this errno, or with None for an unknown reason."""
    message = os.strerror(code) if code else "torch could not write a file"
    # "No space" can mean bytes or inodes, which have different remedies.
    if code == errno.ENOSPC and file:
        free, files = free_space(Path(str(file)))
        message += "; no more files can be created" if files == 0 else ""
        message += f"; {_megabytes(free)} are free" if free is not None else ""
        message += f", {_megabytes(needed)} are needed" if needed and files != 0 else ""
    remedy = REMEDIES.get(code or 0, "check the disk")
    return ResourceError(message, f"{remedy}, then repeat the command", file=file)


def is_disk_error(error: OSError) -> bool:
    """Return whether an error comes from the disk rather than from a path or a connection."""
    return error.errno in REMEDIES


def check_space(folder: Path, needed: int) -> None:
    """Check that a disk has space for the files of a run; the variable BERTKIT_SKIP_DISK_CHECK skips this.

    Raises:
        ResourceError: If it has too little; the message has the free and the needed space.
    """
    free, _ = free_space(folder)
    if free is not None and free < needed and not os.environ.get(_SKIP):
        message = f"the disk is too small: {_megabytes(free)} are free, up to {_megabytes(needed)} are needed"
        raise ResourceError(message, f"free some space, choose another --output, or set {_SKIP}=1", file=folder)


def _convert_error(error: Exception, folder: Path, needed: int) -> ResourceError | None:
    if isinstance(error, OSError):
        return disk_error(error.errno, error.filename or folder, needed=needed) if is_disk_error(error) else None
    text = str(error)
    if (match := _RUST_ERRNO.search(text)) and int(match[1]) in REMEDIES:
        return disk_error(int(match[1]), folder, needed=needed)
    # torch gives no reason for a failed write, so write a small file to the same folder to find it.
    if isinstance(error, RuntimeError) and any(words in text for words in _TORCH_WRITE_ERRORS) and "Reader" not in text:
        return disk_error(_try_to_write(folder), folder, needed=needed)
    return None


def _try_to_write(folder: Path) -> int | None:
    """Write one mebibyte to a folder, and return the errno of the failure, or None if it succeeds."""
    try:
        import tempfile  # Imported late, because it takes a tenth of the start.

        with tempfile.TemporaryFile(dir=folder) as stream:
            stream.write(bytes(1 << 20))
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        return error.errno
    return None


def free_space(file: Path) -> tuple[int | None, int | None]:
    """Return the free bytes and the number of files that can be created near a path, or None if unknown."""
    while not file.exists() and file != file.parent:
        file = file.parent
    try:
        usage = shutil.disk_usage(file)
        free_inodes = os.statvfs(file).f_favail if hasattr(os, "statvfs") and os.statvfs(file).f_files else None
    except OSError:
        return None, None
    # Some network file systems report no sizes.
    return (usage.free if usage.total else None), free_inodes


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"

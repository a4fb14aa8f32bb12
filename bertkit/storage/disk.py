"""Disks that refuse a write: foreseen where possible, and told in one line wherever they do."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bertkit.errors import BertkitError, ResourceError

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
        free, files = _free(Path(str(file)))
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
    free, _ = _free(folder)
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
        with tempfile.TemporaryFile(dir=folder) as stream:
            stream.write(bytes(1 << 20))
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        return error.errno
    return None


def _free(file: Path) -> tuple[int | None, int | None]:
    """Return the bytes and the number of files that can still be written near a path; None if that is not known."""
    while not file.exists() and file != file.parent:
        file = file.parent
    try:
        usage = shutil.disk_usage(file)
        files = os.statvfs(file).f_favail if hasattr(os, "statvfs") and os.statvfs(file).f_files else None
    except OSError:
        return None, None
    return (usage.free if usage.total else None), files  # some network file systems know no sizes


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"

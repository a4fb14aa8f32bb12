"""Files that a user names for a command to write: never one of its inputs, and written by one process at a time."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from bertkit.errors import ResourceError, UsageError
from bertkit.storage.files import locked, sync_folder

_ANOTHER = "choose another --output"


def refuse_inputs(output: Path, inputs: Iterable[tuple[str, Path]]) -> None:
    """Check that an output file is none of the files that a command reads, whatever links lead to it.

    Args:
        output: the file to be written.
        inputs: what each file that is read is called in the message, and its path.

    Raises:
        UsageError: it is one of them.
    """
    for what, file in inputs:
        with suppress(OSError):  # one of the two is not there
            if output.samefile(file):
                raise UsageError(f"--output is {what}", f"nothing was written; {_ANOTHER}", file=output)


def check_page_name(output: str | Path, example: str) -> None:
    """Check the name of a page; raises UsageError, with an example of a name, where it does not end in ``.html``."""
    if Path(output).suffix != ".html":
        raise UsageError("a page ends in .html", f"e.g. --output {example}", file=output)


@contextmanager
def claimed(output: Path) -> Iterator[None]:
    """Hold the lock of an output file.

    The lock is a file beside it, `.NAME.lock`: there it holds for every user and every machine that can write this
    output, and needs no permission that writing does not need. It is gone afterwards.

    Raises:
        UsageError: the output is a folder, a pipe or a device.
        ResourceError: another process is writing it, or it cannot be written.
    """
    if output.exists() and not output.is_file():
        what = "a folder" if output.is_dir() else "a pipe or device"
        raise UsageError(f"{what}, not a file", _ANOTHER, file=output)
    if output.exists() and not os.access(output, os.W_OK):
        raise ResourceError("the file is write-protected", _ANOTHER, file=output)
    with _locked_beside(output):
        yield


@contextmanager
def claimed_folder(output: Path) -> Iterator[None]:
    """Hold the lock of a folder that is to be created, as `claimed` does; the folders above it are created.

    Raises:
        ResourceError: another process is writing it, or it cannot be created.
    """
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(error, output) from None
    with _locked_beside(output):
        yield


@contextmanager
def building(folder: Path) -> Iterator[Path]:
    """Hold the lock of a folder, and yield one beside it, which takes its name once everything is in it.

    Raises:
        ResourceError: another process is writing it, or the folders above it cannot be created.
        OSError: a write is refused, or there is such a folder by then.
    """
    with claimed_folder(folder):
        staging = folder.with_name(f".{folder.resolve().name}.building")
        shutil.rmtree(staging, ignore_errors=True)  # of a killed process
        try:
            staging.mkdir()
            yield staging
            staging.rename(folder)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        sync_folder(folder.parent)


def sweep_temporaries(file: Path) -> None:
    """Delete what killed processes left of `files.replacing` a file; no other process may be writing it."""
    temporary = re.compile(rf"\.{re.escape(file.name)}\.\d+\.[0-9a-f]{{8}}\.tmp")
    for entry in file.parent.iterdir():
        if temporary.fullmatch(entry.name):
            entry.unlink(missing_ok=True)


@contextmanager
def _locked_beside(output: Path) -> Iterator[None]:
    def refuse(holder: str) -> ResourceError:
        return ResourceError(f"{holder} is writing this output", f"wait for it, or {_ANOTHER}", file=output)

    path = output.resolve()  # the same lock, whatever links lead there
    lock = path.with_name(f".{path.name}.lock")
    with ExitStack() as held:
        try:
            held.enter_context(locked(lock, refuse=refuse))
        except OSError as error:
            raise _unwritable(error, output) from None
        held.callback(_delete, lock)  # while it is held: afterwards it may be another process's
        yield


def _delete(lock: Path) -> None:
    """Delete a lock file; one that cannot be deleted is no reason to fail, since the output is complete by then."""
    with suppress(OSError):
        lock.unlink(missing_ok=True)


def _unwritable(error: OSError, output: Path) -> ResourceError:
    return ResourceError(f"cannot be written: {error.strerror}", _ANOTHER, file=output)

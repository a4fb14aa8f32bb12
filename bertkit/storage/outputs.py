"""Files that a user names for a command to write: never one of its inputs, and written by one process at a time."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

from bertkit.errors import ResourceError, UsageError
from bertkit.recipe.sections import typed_path
from bertkit.storage.files import locked, sync_folder

PAGE_MARK = '<meta name="generator" content="bertkit">'
"""What each page says that bertkit writes, which it may overwrite."""
REPORT_MARK = "<!-- generator: bertkit -->"
"""What each report says, as a comment."""
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
            # By device and inode, since links and other spellings lead to the same file.
            if output.samefile(file):
                raise UsageError(f"--output is {what}", f"nothing was written; {_ANOTHER}", file=output)


def check_page(output: str | Path, inputs: Iterable[tuple[str, Path]] = ()) -> Path:
    """Return the path of a page that is to be written; `inputs` are those of `refuse_inputs`.

    Raises:
        UsageError: it has another ending than .html, is a file that is read, or one that bertkit did not write.
        ResourceError: its folder is missing.
    """
    file = typed_path(output)
    if file.suffix.lower() not in (".html", ".htm"):
        raise UsageError("the page is HTML", f"name it {file.name}.html", file=file)
    check_folder_of(file)
    refuse_inputs(file, inputs)
    if file.exists() and not is_own(file):
        raise UsageError("the file exists already, and is no page of bertkit's", _ANOTHER, file=file)
    return file


def check_folder_of(file: Path, option: str = "--output") -> None:
    """Check that the folder of a file is there, which an option names.

    Raises:
        ResourceError: it is not.
    """
    if not file.parent.is_dir():
        raise ResourceError("no such folder", f"create it, or choose another {option}", file=file.parent)


def is_own(file: Path, mark: str = PAGE_MARK) -> bool:
    """Tell whether a file is one that bertkit has written: a page, or what else has this mark at its beginning."""
    if not file.is_file():
        return False
    with file.open("rb") as stream:
        return mark.encode() in stream.read(4096)


def claimed(output: Path, *, wait: bool = False) -> AbstractContextManager[None]:
    """Hold the lock of an output file; with `wait`, once the process that holds it has released it.

    The lock is a file next to it, `.NAME.lock`: it holds for every user and every machine that can write this output,
    and needs no permission that writing does not need. It is deleted afterwards.

    Raises:
        UsageError: If the output is a folder, a pipe or a device.
        ResourceError: If another process is writing it, or it cannot be written.
    """
    check_output(output)
    return _locked_beside(output, wait=wait)


def check_output(output: Path) -> None:
    """Check that an output is a file that can be overwritten, or does not exist.

    Raises:
        UsageError: If the output is a folder, a pipe or a device.
        ResourceError: If the file is write-protected.
    """
    if output.exists() and not output.is_file():
        kind = "a folder" if output.is_dir() else "a pipe or device"
        raise UsageError(f"{kind}, not a file", _ANOTHER, file=output)
    if output.exists() and not os.access(output, os.W_OK):
        raise ResourceError("the file is write-protected", _ANOTHER, file=output)


def claimed_folder(output: Path) -> AbstractContextManager[None]:
    """Hold the lock of a folder that is to be created, as `claimed` does; the folders above it are created.

    Raises:
        ResourceError: If another process is writing it, or it cannot be created.
    """
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(error, output) from None
    return _locked_beside(output)


@contextmanager
def building(folder: Path) -> Iterator[Path]:
    """Hold the lock of a folder, and yield one that takes its name; see `claimed_folder` and `staged`."""
    with claimed_folder(folder), staged(folder) as staging:
        yield staging


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """Yield a folder beside one, which takes its name once everything is in it; the caller holds `claimed_folder`.

    Raises:
        UsageError: there is something in the folder, or it is a file.
        OSError: a write is refused.
    """
    refuse_existing(folder)
    real = folder.resolve()
    staging = real.with_name(f".{real.name}.building")
    shutil.rmtree(staging, ignore_errors=True)  # of a killed process
    try:
        staging.mkdir()
        yield staging
        refuse_existing(folder)
        staging.rename(real)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    sync_folder(real.parent)


def refuse_existing(folder: Path, *beside: Path) -> None:
    """Check that a folder is not there yet, or empty.

    Args:
        folder: to be written.
        beside: what else the command writes.

    Raises:
        UsageError: there is something in it, or it is a file or the working directory.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir()) or folder.samefile(Path.cwd())):
        sweep_locks([folder, *beside])
        raise UsageError("it exists already, and is kept as it is", "name a new folder", file=folder)


def sweep_locks(outputs: Iterable[Path]) -> None:
    """Delete the locks that a killed process has left of outputs which will not be written now."""
    for output in outputs:
        if _lock_beside(output).exists():
            with suppress(ResourceError), _locked_beside(output):  # which deletes it
                pass


def was_interrupted(output: Path) -> bool:
    """Tell whether a process that claimed an output was killed before it was written."""
    return _lock_beside(output).exists() and not output.exists()


def sweep_temporaries(file: Path) -> None:
    """Delete what killed processes left of `files.replacing` a file; no other process may be writing it."""
    temporary = re.compile(rf"\.{re.escape(file.name)}\.\d+\.[0-9a-f]{{8}}\.tmp")
    for entry in file.parent.iterdir():
        if temporary.fullmatch(entry.name):
            entry.unlink(missing_ok=True)


@contextmanager
def _locked_beside(output: Path, *, wait: bool = False) -> Iterator[None]:
    def refuse(holder: str) -> ResourceError:
        return ResourceError(f"{holder} is writing this output", f"wait for it, or {_ANOTHER}", file=output)

    lock = _lock_beside(output)
    with ExitStack() as held:
        try:
            held.enter_context(locked(lock, refuse=None if wait else refuse))
        except OSError as error:
            raise unwritable(error, output) from None
        # Delete the lock while it is held: afterwards, another process may hold it.
        held.callback(_delete_lock, lock)
        yield


def _lock_beside(output: Path) -> Path:
    path = output.resolve()  # the same lock, whatever links lead there
    return path.with_name(f".{path.name}.lock")


def _delete_lock(lock: Path) -> None:
    """Delete a lock file; one that cannot be deleted is not an error, because the output is complete."""
    with suppress(OSError):
        lock.unlink(missing_ok=True)


def unwritable(error: OSError, output: Path) -> ResourceError:
    """Build the error for an output that the system does not let one write."""
    return ResourceError(f"cannot be written: {error.strerror}", _ANOTHER, file=output)

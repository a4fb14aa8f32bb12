"""Output files of commands, which are never an input, and are written by one process at a time."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

from bertkit.errors import ResourceError, UsageError
from bertkit.recipe.sections import expand_path
from bertkit.storage.files import hold_lock, sync_folder

PAGE_MARK = '<meta name="generator" content="bertkit">'
"""Mark of each page that bertkit writes, which it can overwrite."""
REPORT_MARK = "<!-- generator: bertkit -->"
"""Mark of each report, as a comment."""
_ANOTHER = "choose another --output"


def check_not_inputs(output: Path, inputs: Iterable[tuple[str, Path]]) -> None:
    """Check that an output file is not an input file, also if links lead to it.

    Args:
        output: File to write.
        inputs: Name in messages and path of each input file.

    Raises:
        UsageError: If the output is one of the inputs.
    """
    for name, file in inputs:
        with suppress(OSError):  # One of the two files does not exist.
            # Compare device and inode, because links and other spellings lead to the same file.
            if output.samefile(file):
                raise UsageError(f"--output is {name}", f"nothing was written; {_ANOTHER}", file=output)


def check_page(output: str | Path, inputs: Iterable[tuple[str, Path]] = ()) -> Path:
    """Return the path of a page to write; `inputs` are as in `check_not_inputs`.

    Raises:
        UsageError: If its ending is not .html, it is an input, or bertkit did not write the existing file.
        ResourceError: If its folder is missing.
    """
    file = expand_path(output)
    if file.suffix.lower() not in (".html", ".htm"):
        raise UsageError("the page is HTML", f"name it {file.stem}.html", file=file)
    check_parent_exists(file)
    check_not_inputs(file, inputs)
    if file.exists() and not is_written_by_bertkit(file):
        raise UsageError("the file exists already, and bertkit did not write it", _ANOTHER, file=file)
    return file


def check_parent_exists(file: Path, option: str = "--output") -> None:
    """Check that the folder of a file exists; messages name the option.

    Raises:
        ResourceError: If it does not exist.
    """
    if not file.parent.is_dir():
        raise ResourceError("no such folder", f"create it, or choose another {option}", file=file.parent)


def is_written_by_bertkit(file: Path, mark: str = PAGE_MARK) -> bool:
    """Return whether bertkit wrote a file, which then has this mark at its start."""
    if not file.is_file():
        return False
    with file.open("rb") as stream:
        return mark.encode() in stream.read(4096)


def lock_output(output: Path, *, wait: bool = False) -> AbstractContextManager[None]:
    """Hold the lock of an output file; with `wait`, once the process that holds it has released it.

    The lock is a file next to it, `.NAME.lock`: it holds for every user and every machine that can write this output,
    and needs no permission that writing does not need. It is deleted afterwards.

    Raises:
        UsageError: If the output is a folder, a pipe or a device.
        ResourceError: If another process is writing it, or it cannot be written.
    """
    check_output(output)
    return _hold_lock(output, wait=wait)


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


def lock_output_folder(output: Path) -> AbstractContextManager[None]:
    """Hold the lock of a folder that is to be created, as `lock_output` does; the folders above it are created.

    Raises:
        ResourceError: If another process is writing it, or it cannot be created.
    """
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(error, output) from None
    return _hold_lock(output)


@contextmanager
def create_folder_atomically(folder: Path) -> Iterator[Path]:
    """Hold the lock of a new folder, and yield a temporary folder that becomes it when the block ends.

    See `lock_output_folder` and `stage_folder`.
    """
    with lock_output_folder(folder), stage_folder(folder) as staging:
        yield staging


@contextmanager
def stage_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to the output when the block ends, under `lock_output_folder`.

    Raises:
        UsageError: If the output is a file, or a folder that is not empty.
        OSError: If a write fails.
    """
    check_empty(folder)
    # If a link leads to an empty folder, the link stays, and its target is replaced.
    real = folder.resolve()
    staging = real.with_name(f".{real.name}.building")
    shutil.rmtree(staging, ignore_errors=True)  # leftovers of a killed process
    try:
        staging.mkdir()
        yield staging
        # Another program may have written to the folder in the meantime. A rename replaces an empty folder only.
        check_empty(folder)
        with suppress(FileNotFoundError):
            real.rmdir()  # On Windows, a rename does not replace an empty folder.
        staging.rename(real)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    sync_folder(real.parent)


def check_empty(folder: Path, *outputs: Path) -> None:
    """Check that a folder does not exist, or is empty.

    Args:
        folder: Folder to write.
        outputs: Other files that the command writes, whose leftover locks are deleted if the check fails.

    Raises:
        UsageError: If it is not empty, or is a file or the working directory.
    """
    # If the working directory were replaced, the user's shell would be left in a deleted folder.
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir()) or folder.samefile(Path.cwd())):
        delete_leftover_locks([folder, *outputs])
        raise UsageError("the folder exists already, and bertkit does not replace it", "name a new folder", file=folder)


def delete_leftover_locks(outputs: Iterable[Path]) -> None:
    """Delete the locks of a killed process for outputs that will not be written now."""
    for output in outputs:
        if _lock_path(output).exists():
            with suppress(ResourceError), _hold_lock(output):  # The end of the block deletes the lock.
                pass


def was_interrupted(output: Path) -> bool:
    """Return whether a process that locked an output was killed before it wrote the output."""
    return _lock_path(output).exists() and not output.exists()


def delete_leftover_files(file: Path) -> None:
    """Delete temporary files that killed processes left; no other process may be writing the file."""
    temporary = re.compile(rf"\.{re.escape(file.name)}\.\d+\.[0-9a-f]{{8}}\.tmp")
    for entry in file.parent.iterdir():
        if temporary.fullmatch(entry.name):
            entry.unlink(missing_ok=True)


@contextmanager
def _hold_lock(output: Path, *, wait: bool = False) -> Iterator[None]:
    def make_error(holder: str) -> ResourceError:
        return ResourceError(f"{holder} is writing this output", f"wait for it, or {_ANOTHER}", file=output)

    lock = _lock_path(output)
    with ExitStack() as held:
        try:
            held.enter_context(hold_lock(lock, make_error=None if wait else make_error))
        except OSError as error:
            raise write_error(error, output) from None
        # Delete the lock while it is held: afterwards, another process may hold it.
        held.callback(_delete_lock, lock)
        yield


def _lock_path(output: Path) -> Path:
    path = output.resolve()  # The lock is the same if links lead to the output.
    return path.with_name(f".{path.name}.lock")


def _delete_lock(lock: Path) -> None:
    """Delete a lock file; a failure is not an error, because the output is complete."""
    with suppress(OSError):
        lock.unlink(missing_ok=True)


def write_error(error: OSError, output: Path) -> ResourceError:
    """Build the error for an output that the system does not let one write."""
    return ResourceError(f"cannot be written: {error.strerror}", _ANOTHER, file=output)

"""Run folders are deleted whole: renamed in one step, then emptied, so that a kill leaves no half run.

Of a run that stays, the optimizer states can go, which only a resume would read.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bertkit.errors import ResourceError, UsageError
from bertkit.storage import files, runs
from bertkit.storage.checkpoints import trim
from bertkit.storage.files import disk_errors
from bertkit.storage.seeds import find_seeds, is_seeds_folder, seed_folder

_PREFIX = ".removed-"
_RECORDS = f"*/{runs.RECORD}"


def check_removable(folder: Path) -> None:
    """Check, without writing, that a folder is a run, or one of seeds, which nobody is writing.

    What a killed removal has left of a run may be removed, too.

    Raises:
        UsageError: it is something else, a link, or holds the working directory.
        ResourceError: a process is writing it.
    """
    if not folder.exists() and _aside(folder).is_dir():
        return
    if folder.is_symlink():
        raise UsageError("a link to a folder elsewhere", f"name that folder: {folder.resolve()}", file=folder)
    if not folder.is_dir():
        raise UsageError("no such folder", "`bertkit runs list` shows the runs", file=folder)
    if not (folder / runs.RECORD).is_file() and not is_seeds_folder(folder):
        raise UsageError("not a run folder, so it is not deleted", "`bertkit runs list` shows the runs", file=folder)
    if Path.cwd().is_relative_to(folder.resolve()):
        raise UsageError("the working directory is in it", "change to another directory", file=folder)
    for part in _parts(folder):
        if files.is_locked(part / runs.LOCK):
            raise _refuse_written(part, "a process")


def remove_run(folder: Path) -> None:
    """Delete a run folder, or one of seeds, for which `check_removable` raises nothing.

    Raises:
        ResourceError: a process is writing it, or a file cannot be deleted; repeating goes on.
    """
    aside = _aside(folder)
    try:
        if aside.is_dir():
            shutil.rmtree(aside)
        if folder.is_dir():
            with ExitStack() as held:
                for part in _parts(folder):
                    held.enter_context(files.locked(part / runs.LOCK, refuse=partial(_refuse_written, part)))
                # at once: from here on it is no run, whatever happens to this process
                folder.rename(aside)
            files.sync_folder(folder.parent)
            shutil.rmtree(aside)
    except OSError as error:
        what = f"cannot be deleted: {error.strerror}"
        raise ResourceError(what, "delete it by hand, or repeat the command", file=error.filename or folder) from None


def find_trimmable(folder: Path) -> list[Path]:
    """Return the finished runs that a folder is or holds.

    Raises:
        UsageError: there is none.
        ResourceError: a record is damaged.
    """
    parts = [folder] if (folder / runs.RECORD).is_file() else sorted(file.parent for file in folder.glob(_RECORDS))
    states = {part: (runs.read_record(part) or {}).get("status") for part in parts}
    finished = [part for part, state in states.items() if state == "finished"]
    if not parts:
        raise UsageError("not a run folder, and none is in it", "`bertkit runs list` shows the runs", file=folder)
    if not finished:
        what = f"the run is not finished ({states[parts[0]]}): it would resume from its optimizer states"
        raise UsageError(what, "repeat the command that started it, or `bertkit runs rm` deletes it", file=parts[0])
    return finished


def trim_run(folder: Path) -> int:
    """Delete the optimizer states of a run that `find_trimmable` returned, and return how many bytes that frees.

    Raises:
        ResourceError: a process is writing it, or a file cannot be written or deleted.
    """
    with files.locked(folder / runs.LOCK, refuse=partial(_refuse_written, folder)), disk_errors(folder):
        return trim(folder)


def _aside(folder: Path) -> Path:
    return folder.with_name(f"{_PREFIX}{folder.name}")


def _parts(folder: Path) -> list[Path]:
    """Return a folder and the runs in it, each with a lock of its own."""
    return [folder, *(seed_folder(folder, seed) for seed in find_seeds(folder))]


def _refuse_written(folder: Path, holder: str) -> ResourceError:
    return ResourceError(f"{holder} is writing this run", "stop it first, or wait for it", file=folder)

"""Run folders are deleted whole: renamed in one step, then emptied, so that a kill leaves no half run."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bertkit.errors import ResourceError, UsageError
from bertkit.storage import files, runs
from bertkit.storage.seeds import find_seeds, is_seeds_folder, seed_folder

_PREFIX = ".removed-"


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


def _aside(folder: Path) -> Path:
    return folder.with_name(f"{_PREFIX}{folder.name}")


def _parts(folder: Path) -> list[Path]:
    """Return a folder and the runs in it, each with a lock of its own."""
    return [folder, *(seed_folder(folder, seed) for seed in find_seeds(folder))]


def _refuse_written(folder: Path, holder: str) -> ResourceError:
    return ResourceError(f"{holder} is writing this run", "stop it first, or wait for it", file=folder)

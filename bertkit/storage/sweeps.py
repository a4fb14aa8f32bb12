"""A folder of a sweep: run folders of one recipe under different settings, and a summary of them.

runs/cola-sweep/
├── space.json              what is searched and how; written first
├── trial-0001.json ...     the settings of each trial, written before it starts
├── trial-0001/ ...         ordinary run folders
├── report.html
└── sweep.json              the trials, their scores and the best; written last
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from bertkit.errors import ResourceError, UsageError
from bertkit.storage import files, fingerprints, runs

SPACE = "space.json"
SUMMARY = "sweep.json"
_TRIAL = "trial-"
_NAME = "the folder of the sweep"
_SCHEMA = 1


def trial_folder(folder: Path, number: int) -> Path:
    """Return the run folder of a trial.

    >>> trial_folder(Path("runs/cola-sweep"), 7)
    PosixPath('runs/cola-sweep/trial-0007')
    """
    return folder / f"{_TRIAL}{number:04}"


def find_trials(folder: Path) -> list[int]:
    """List the trials whose settings are known, in order."""
    numbers = [file.stem.removeprefix(_TRIAL) for file in folder.glob(f"{_TRIAL}*.json")]
    return sorted(int(number) for number in numbers if number.isdecimal())


def read_settings(folder: Path, number: int) -> dict[str, Any] | None:
    """Read the settings of a trial, recipe key -> value; None where it has none yet."""
    content = _read_file(_settings_file(folder, number))
    return None if content is None else dict(content["settings"])


def write_settings(folder: Path, number: int, settings: Mapping[str, Any]) -> None:
    """Write the settings of a trial, whole or not at all."""
    _write_file(_settings_file(folder, number), {"settings": settings})


def write_summary(folder: Path, summary: Mapping[str, Any]) -> None:
    """Write the summary of a sweep, whole or not at all."""
    _write_file(folder / SUMMARY, summary)


def check_folder(folder: Path, space: Mapping[str, Any]) -> None:
    """Check, without writing, that a folder may be used for a sweep of this space.

    Raises:
        UsageError: it holds a run, another sweep, or something else.
        ResourceError: it is a file.
    """
    there, unfinished = _read_file(folder / SPACE), files.temporary_of(folder / SPACE).name
    runs.check_several(folder, "a sweep", is_ours=there is not None, name=_NAME, ignored=unfinished)
    if there is None:
        return
    changed = runs.differences({key: there.get(key) for key in space}, json.loads(files.to_json(space)))
    if changed:
        what = f"the folder holds another sweep ({'; '.join(changed)})"
        remedy = f"--output {runs.free_name(folder)} for a new sweep, or --fresh to move the old one aside"
        raise UsageError(what, remedy, file=folder)


def foresee_claim(folder: Path, *, join: bool) -> None:
    """Check, without writing, what `claimed_sweep` would refuse now of a folder that `check_folder` accepts."""
    if join and not (folder / SPACE).is_file():
        raise UsageError("there is no sweep to join", "leave --join out to begin it", file=folder)
    if not join and (holder := files.holder_of(folder / runs.LOCK)):
        raise _held(folder, holder)


@contextmanager
def claimed_sweep(folder: Path, space: Mapping[str, Any], *, fresh: bool, join: bool) -> Iterator[None]:
    """Create the folder and hold its lock; with `join`, work beside the process that holds it.

    With `fresh`, an earlier sweep is moved aside first.

    Raises:
        UsageError: as `check_folder` does, or nothing is there to join.
        ResourceError: it cannot be written, or another process is at work on it.
    """
    if fresh and (folder / SPACE).is_file():
        with _locked(folder), ExitStack() as idle:
            for number in find_trials(folder):
                if not claim_trial(folder, number, idle):
                    raise ResourceError("another process trains a trial of this sweep", "wait for it", file=folder)
            runs.move_aside(folder)
    check_folder(folder, space)
    foresee_claim(folder, join=join)
    if join:
        yield
        return
    with runs.claimed_several(folder, _NAME, _locked):
        if not (folder / SPACE).is_file():
            _write_file(folder / SPACE, space)
        yield


def choosing(folder: Path) -> AbstractContextManager[None]:
    """Wait until no other process chooses a trial, and hold the lock to choose one."""
    return files.locked(folder / ".choosing.lock")


def claim_trial(folder: Path, number: int, held: ExitStack) -> bool:
    """Take a trial and hold its lock in `held`; False where another process has it.

    The system releases the lock when the process ends, however it ends: no trial stays taken by a dead one. It is held
    around the lock of the run folder, which a run takes only once its rows are read.
    """
    try:
        held.enter_context(files.locked(folder / f".{_TRIAL}{number:04}.lock", refuse=ResourceError))
    except ResourceError:
        return False
    return True


def _locked(folder: Path) -> AbstractContextManager[None]:
    return files.locked(folder / runs.LOCK, refuse=partial(_held, folder))


def _held(folder: Path, holder: str) -> ResourceError:
    return ResourceError(f"{holder} is at work on this sweep", "--join shares the work with it", file=folder)


def _settings_file(folder: Path, number: int) -> Path:
    return folder / f"{_TRIAL}{number:04}.json"


def _read_file(file: Path) -> dict[str, Any] | None:
    """Read an object that `_write_file` has written; None where there is no such file."""
    damaged = ResourceError("a file of the sweep is damaged", "--fresh moves the folder aside", file=file)
    return fingerprints.read_signed(file, damaged)


def _write_file(file: Path, content: Mapping[str, Any]) -> None:
    fingerprints.write_signed(file, {"schema_version": _SCHEMA, **content})

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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertkit.errors import ResourceError, UsageError
from bertkit.storage import files, fingerprints, runs

SPACE = "space.json"
SUMMARY = "sweep.json"
_TRIAL = "trial-"
_SCHEMA = 1


def trial_folder(folder: Path, number: int) -> Path:
    """Return the run folder of a trial.

    >>> trial_folder(Path("runs/cola-sweep"), 7)
    PosixPath('runs/cola-sweep/trial-0007')
    """
    return folder / f"{_TRIAL}{number:04}"


def trial_of(name: str) -> int:
    """Return the number of a run folder.

    >>> trial_of("trial-0007")
    7
    """
    return int(name.removeprefix(_TRIAL))


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


def write_space(folder: Path, space: Mapping[str, Any]) -> None:
    """Write what a sweep searches, unless an earlier command has."""
    if not (folder / SPACE).is_file():
        _write_file(folder / SPACE, space)


def check_space(folder: Path, space: Mapping[str, Any]) -> None:
    """Check that a folder holds no sweep of another space.

    Raises:
        UsageError: If it does.
    """
    before = _read_file(folder / SPACE)
    # JSON turns tuples into lists and keys into text.
    searched = json.loads(files.to_json(space))
    if before is not None and (changes := runs.compare_identities({key: before.get(key) for key in space}, searched)):
        what = f"the folder holds another sweep ({'; '.join(map(str, changes))})"
        remedy = f"--output {runs.free_name(folder)} for a new sweep, or --fresh to move the old one aside"
        raise UsageError(what, remedy, file=folder)


def _settings_file(folder: Path, number: int) -> Path:
    return folder / f"{_TRIAL}{number:04}.json"


def _read_file(file: Path) -> dict[str, Any] | None:
    """Read an object that `_write_file` has written; None where there is no such file."""
    damaged = ResourceError("a file of the sweep is damaged", "--fresh moves the folder aside", file=file)
    return fingerprints.read_signed(file, damaged)


def _write_file(file: Path, content: Mapping[str, Any]) -> None:
    fingerprints.write_signed(file, {"schema_version": _SCHEMA, **content})

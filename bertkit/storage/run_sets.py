"""Folders of several runs: the seeds of a recipe, and the trials of a sweep.

runs/cola-seeds/
├── seed-1/, seed-2/ ...    ordinary run folders
├── report.html
└── seeds.json              seeds, scores and summary; written last

runs/cola-sweep/
├── space.json              searched keys and the search method; written first
├── trial-0001.json ...     settings of each trial, written before it starts
├── trial-0001/ ...         ordinary run folders
├── report.html
└── sweep.json              trials, scores and the best trial; written last
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertkit.errors import ResourceError, UsageError
from bertkit.storage import files, runs
from bertkit.storage.fingerprints import read_with_checksum, write_with_checksum

SEEDS = "seeds.json"
SWEEP = "sweep.json"
SPACE = "space.json"
_SCHEMA = 1


def parse_run_index(name: str) -> int:
    """Return the seed, or the number of the trial, of a run folder.

    >>> parse_run_index("seed-3"), parse_run_index("trial-0007")
    (3, 7)
    """
    return int(name.rpartition("-")[2])


def write_summary(file: Path, summary: Mapping[str, Any]) -> None:
    """Write the summary of a folder of runs atomically, with a checksum."""
    metadata = {"schema_version": _SCHEMA, "command": runs.command(), "finished": runs.now()}
    # A folder that contains its own path could not be moved.
    write_with_checksum(file, {**metadata, **{name: value for name, value in summary.items() if name != "folder"}})


# --- Seeds ---


def seed_folder(folder: Path, seed: int) -> Path:
    """Return the run folder of a seed.

    >>> seed_folder(Path("runs/cola-seeds"), 3)
    PosixPath('runs/cola-seeds/seed-3')
    """
    return folder / f"seed-{seed}"


def seed_folders(folder: Path) -> list[Path]:
    """List the run folders of the seeds in a folder, finished or not, by seed."""
    entries = folder.glob("seed-*")
    seeds = [entry for entry in entries if entry.is_dir() and re.fullmatch("seed-(0|[1-9][0-9]*)", entry.name)]
    return sorted(seeds, key=lambda entry: parse_run_index(entry.name))


def is_seeds_folder(folder: Path) -> bool:
    """Return whether a folder holds seeds, finished or not."""
    is_run = (folder / runs.RECORD).is_file()
    return not is_run and ((folder / SEEDS).is_file() or bool(seed_folders(folder)))


def read_seeds(folder: Path) -> dict[str, Any] | None:
    """Read the summary of a folder of seeds, or return None if it is missing.

    Raises:
        ResourceError: If it is damaged.
    """
    message = "the summary of the seeds is damaged"
    damaged = ResourceError(message, "repeat the command that wrote it", file=folder / SEEDS)
    return read_with_checksum(folder / SEEDS, damaged)


def list_members(summary: Mapping[str, Any]) -> list[str]:
    """List the run folders of a summary that make up an ensemble.

    These are the finished runs that have not failed or, if fewer than two of them have not, all finished runs.
    """
    finished = [run for run in summary["runs"] if run["status"] == "finished"]
    good = [run["folder"] for run in finished if not run["failure"]]
    return good if len(good) > 1 else [run["folder"] for run in finished]


# --- Sweeps ---


def name_trial(index: int) -> str:
    """Return the name of the run folder of a trial.

    >>> name_trial(7)
    'trial-0007'
    """
    return f"trial-{index:04}"


def find_trials(folder: Path) -> list[str]:
    """List the names of the trials whose settings are known, in order."""
    names = [file.stem for file in folder.glob("trial-*.json") if file.stem.removeprefix("trial-").isdecimal()]
    return sorted(names, key=parse_run_index)


def read_settings(folder: Path, trial: str) -> dict[str, Any] | None:
    """Read the settings of a trial as recipe key -> value, or return None if it has none yet."""
    content = _read_file(folder / f"{trial}.json")
    return None if content is None else dict(content["settings"])


def write_settings(folder: Path, trial: str, settings: Mapping[str, Any]) -> None:
    """Write the settings of a trial."""
    write_with_checksum(folder / f"{trial}.json", {"schema_version": _SCHEMA, "settings": settings})


def write_space(folder: Path, space: Mapping[str, Any]) -> None:
    """Write the search space of a sweep, unless an earlier command did."""
    if not (folder / SPACE).is_file():
        write_with_checksum(folder / SPACE, {"schema_version": _SCHEMA, **space})


def check_space(folder: Path, space: Mapping[str, Any]) -> None:
    """Check that a folder holds no sweep of another space.

    Raises:
        UsageError: If it does.
    """
    before = _read_file(folder / SPACE)
    # JSON turns tuples into lists and keys into text.
    searched = json.loads(files.to_json(space))
    if before is not None and (changes := runs.compare_identities({key: before.get(key) for key in space}, searched)):
        message = f"the folder holds another sweep ({'; '.join(map(str, changes))})"
        remedy = f"use --output {runs.free_name(folder)} for a new sweep, or --restart to move the old one aside"
        raise UsageError(message, remedy, file=folder)


def _read_file(file: Path) -> dict[str, Any] | None:
    return read_with_checksum(
        file, ResourceError("a file of the sweep is damaged", "--restart moves the folder aside", file=file)
    )

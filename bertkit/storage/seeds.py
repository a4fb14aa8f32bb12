"""A folder of seeds: run folders of one recipe that differ in the seed alone, and a summary of them.

runs/cola-seeds/
├── seed-1/, seed-2/ ...    ordinary run folders
├── report.html, README.md
└── seeds.json              which seeds, their scores and the summary; written last
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertkit.errors import ResourceError
from bertkit.storage import fingerprints, runs

SUMMARY = "seeds.json"
_SCHEMA = 1
_SEED = "seed-"


def seed_folder(folder: Path, seed: int) -> Path:
    """Return the run folder of a seed.

    >>> seed_folder(Path("runs/cola-seeds"), 3)
    PosixPath('runs/cola-seeds/seed-3')
    """
    return folder / f"{_SEED}{seed}"


def seed_of(name: str) -> int:
    """Return the seed of a run folder.

    >>> seed_of("seed-3")
    3
    """
    return int(name.removeprefix(_SEED))


def find_seeds(folder: Path) -> list[int]:
    """List the seeds whose run folders are in a folder, finished or not, in order."""
    names = [entry.name.removeprefix(_SEED) for entry in folder.glob(f"{_SEED}*") if entry.is_dir()]
    return sorted(int(name) for name in names if name.isdecimal() and str(int(name)) == name)


def seed_folders(folder: Path) -> list[Path]:
    """List the run folders of the seeds in a folder, finished or not, in order."""
    return [seed_folder(folder, seed) for seed in find_seeds(folder)]


def is_seeds_folder(folder: Path) -> bool:
    """Tell whether a folder is one of seeds, finished or not."""
    is_run = (folder / runs.RECORD).is_file()
    return not is_run and ((folder / SUMMARY).is_file() or bool(find_seeds(folder)))


def read_seeds(folder: Path) -> dict[str, Any] | None:
    """Read the summary of a folder of seeds; None where there is none.

    Raises:
        ResourceError: it is damaged.
    """
    what = "the summary of the seeds is damaged"
    damaged = ResourceError(what, "repeat the command that wrote it", file=folder / SUMMARY)
    return fingerprints.read_signed(folder / SUMMARY, damaged)


def members_of(summary: Mapping[str, Any]) -> list[str]:
    """List the run folders of a summary that make up an ensemble.

    These are the finished runs that have not failed; where these are fewer than two, all that are finished.
    """
    finished = [run for run in summary["runs"] if run["status"] == "finished"]
    good = [run["folder"] for run in finished if not run["failure"]]
    return good if len(good) > 1 else [run["folder"] for run in finished]


def write_seeds(folder: Path, summary: Mapping[str, Any]) -> None:
    """Write the summary of a folder of seeds, whole or not at all."""
    fingerprints.write_signed(folder / SUMMARY, {"schema_version": _SCHEMA, **summary})

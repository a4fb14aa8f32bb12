"""Checksums of what a run publishes: written with its record, compared before a model of the run is used."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertkit.errors import ModelError, ResourceError
from bertkit.storage import checkpoints, runs
from bertkit.storage.exports import check_export, compare_files, is_exported
from bertkit.storage.runs import RunRecord
from bertkit.storage.seeds import find_seeds, seed_folder

_ONLY_TO_RESUME = ("optimizer", "scheduler", "scaler", "rng_state", "trainer_state", "training_args")
"""How the names of a checkpoint's files begin that no model is loaded from."""
_RECIPE = "recipe.yaml"
_OF_HUB = "snapshots"
"""The name of the folder of the hub's cache that commits are in, with only what is read of each."""


def check_model(folder: Path) -> None:
    """Check a model folder of bertkit against the checksums that were written with it; any other folder passes.

    A finished run has them in its record, also for the models in its subfolders, and a checkpoint in its manifest.

    Raises:
        ModelError: a file is missing or has changed, or the run or the checkpoint is not finished.
    """
    real = folder.resolve()  # `.` has a folder above it too
    if is_exported(real):
        check_export(folder)
    elif (real / checkpoints.MANIFEST).is_file():
        _check_checkpoint(folder)
    elif (real / runs.RECORD).is_file():
        _check_run(folder)
    elif seeds := find_seeds(real):
        remedy = f"name one of its runs: {seed_folder(folder, seeds[0])}"
        raise ModelError("a folder of seeds, not one model", remedy, file=folder)
    elif (real.parent / runs.RECORD).is_file():
        if real.name.startswith("checkpoint-"):
            raise ModelError("the checkpoint was not finished", "name another one of the run", file=folder)
        files = _read_record(real.parent).get("files", {})
        compare_files(folder, _directly_in(f"{real.name}/", files), f"restore it, or {_unchecked(real.parent)}")


def _check_checkpoint(folder: Path) -> None:
    files = checkpoints.read_manifest(folder)["files"]
    expected = {name: entry for name, entry in files.items() if not name.startswith(_ONLY_TO_RESUME)}
    compare_files(folder, expected, f"name another checkpoint, or remove {checkpoints.MANIFEST} to use it unchecked")


def _check_run(folder: Path) -> None:
    record = _read_record(folder)
    if record.get("status", "finished") != "finished":
        newest, _ = checkpoints.newest_whole(folder)
        remedy = "repeat the command that started it" + (f", or name its newest checkpoint: {newest}" if newest else "")
        raise ModelError(f"the run is not finished ({record['status']})", remedy, file=folder)
    expected = _directly_in("", record.get("files", {}))
    if folder.parent.name == _OF_HUB or not (folder / _RECIPE).exists():
        expected = {name: entry for name, entry in expected.items() if (folder / name).exists()}
    if not (folder / runs.TRAINING_ROWS).exists():  # it may be left out of what is published
        expected.pop(runs.TRAINING_ROWS, None)
    best = folder / (record.get("best_checkpoint") or "")
    instead = f"name {best} instead" if best != folder and best.is_dir() else "restore it"
    compare_files(folder, expected, f"{instead}, or {_unchecked(folder)}")


def _read_record(run: Path) -> RunRecord:
    try:
        return runs.read_record(run) or {}
    except ResourceError as error:
        raise ModelError(error.what, f"restore it, or {_unchecked(run)}", file=error.file) from None


def _unchecked(run: Path) -> str:
    return f"remove {run / runs.RECORD} to use the model unchecked"


def _directly_in(prefix: str, files: Mapping[str, Any]) -> dict[str, Any]:
    """Return the files of one folder, by their names there."""
    names = {name.removeprefix(prefix): entry for name, entry in files.items() if name.startswith(prefix)}
    return {name: entry for name, entry in names.items() if "/" not in name}

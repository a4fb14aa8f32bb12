"""Checkpoints that count only once they are complete.

The Trainer writes a checkpoint file by file, and a kill between two files leaves a folder that looks like a checkpoint.
So a manifest with the size and SHA-256 of every file is written last, in one atomic step: a folder without a valid
manifest is not a checkpoint.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from bertkit.errors import ModelError
from bertkit.storage.files import sync_folder
from bertkit.storage.fingerprints import is_whole, list_files, read_signed, write_signed

MANIFEST = "bertkit-manifest.json"
BY_SIGNAL = "by_signal"
"""Whether a checkpoint is there because a signal asked for it, between those that every such run saves."""
OPTIMIZER = "optimizer.pt"
"""Two thirds of a checkpoint, which nothing but a resume reads."""
_SCHEMA = 1


def checkpoint_folder(run: Path, step: int) -> Path:
    """Return the folder of the checkpoint of a step."""
    return run / f"checkpoint-{step}"


def commit(folder: Path, facts: dict[str, Any]) -> None:
    """Complete a checkpoint: flush its files to disk, then write the manifest with their checksums and `facts`."""
    # Every file is on disk before the manifest, so a manifest that survives a power cut has its files. The folder's
    # name is an entry of its parent, which is flushed too.
    files = [file for file in folder.rglob("*") if file.is_file() and file.name != MANIFEST]
    mask = os.umask(0)  # the system tells the mask only to whoever sets it
    os.umask(mask)
    for file in files:
        file.chmod(0o666 & ~mask)  # safetensors creates files that only their owner may read
    listed = list_files(folder, [str(file.relative_to(folder)) for file in files])
    write_signed(folder / MANIFEST, {"schema_version": _SCHEMA, **facts, "files": listed})
    sync_folder(folder.parent)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest that `commit` wrote.

    Raises:
        ModelError: If it is damaged or missing.
    """
    damaged = ModelError(f"{MANIFEST} is damaged", "name another checkpoint", file=folder)
    manifest = read_signed(folder / MANIFEST, damaged)
    if manifest is None:
        raise ModelError("it was not finished", "name another checkpoint", file=folder)
    return manifest


def find_fault(folder: Path) -> str | None:
    """Describe why a checkpoint cannot be used; None for a complete one."""
    try:
        manifest = read_manifest(folder)
    except ModelError as error:
        return error.what
    if manifest["schema_version"] != _SCHEMA:
        return f"{MANIFEST} has schema {manifest['schema_version']}, this bertkit reads {_SCHEMA}"
    for name, expected in manifest["files"].items():
        file = folder / name
        if file.is_symlink() or not file.is_file():
            return f"{name} is missing"
        if not is_whole(file, expected):
            return f"{name} does not match its checksum"
    return None


def newest_whole(run: Path, *, to_train: bool = False) -> tuple[Path | None, list[str]]:
    """Find the newest complete checkpoint, and list why each newer one was skipped.

    With `to_train`, one that was trimmed is skipped too, unless training ended with it.
    """
    skipped: list[str] = []
    # Checksums are computed from the newest on, and end with the first whole one: older ones cost nothing.
    for folder in reversed(_by_step(run)):
        fault = find_fault(folder) or (_find_lack(folder) if to_train else None)
        if fault is None:
            return folder, skipped
        skipped.append(f"skipping {folder.name}: {fault}")
    return None, skipped


def newest_model(folder: Path) -> Path | None:
    """Find the checkpoint of the most steps in a folder that holds a model, also one that another program wrote."""
    return next((each for each in reversed(_by_step(folder)) if (each / "config.json").is_file()), None)


def trim(run: Path) -> int:
    """Delete the optimizer states in a run's checkpoints, which stay complete, and return how many bytes that frees.

    A manifest no longer lists the file when it is deleted, so that a kill in between leaves a complete checkpoint.
    """
    freed = 0
    for folder, manifest in _list_manifests(run):
        file = folder / OPTIMIZER
        # The manifest first: a kill in between leaves a complete checkpoint and a file too many.
        if manifest["files"].pop(OPTIMIZER, None):
            write_signed(folder / MANIFEST, manifest)
        if file.is_file():
            freed += file.stat().st_size
            file.unlink()
    return freed


def most_bytes(weights: int, checkpoint: int, saves: int, kept: int) -> int:
    """Return the most that a run has on disk at a time, from the sizes of its weights and of a checkpoint.

    Of the checkpoints that are saved, so many are kept. One more is whole before another is deleted, and the end copies
    the weights of the best.
    """
    return max(min(saves, kept + 1) * checkpoint, kept * checkpoint + weights) if saves else 0


def written_bytes(run: Path) -> int:
    """Return the size of a run's checkpoints."""
    return sum(file.stat().st_size for folder in _by_step(run) for file in folder.rglob("*") if file.is_file())


def discard_unfinished(run: Path) -> None:
    """Delete the checkpoints of which only a part was written, and so free its space."""
    for folder in _by_step(run):
        if not (folder / MANIFEST).is_file():
            shutil.rmtree(folder, ignore_errors=True)


def clear(folder: Path) -> None:
    """Remove what is where a checkpoint will be written, so that the files of two are never mixed."""
    if folder.exists():
        discard(folder)


def keep_only(run: Path, steps: Iterable[int]) -> None:
    """Delete all checkpoints except those of the given steps, and the remains of earlier deletions."""
    kept = {checkpoint_folder(run, step) for step in steps}
    for folder in _by_step(run):
        if folder not in kept:
            discard(folder)
    for leftover in run.glob(".discarded-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def discard_signalled(run: Path, last: int) -> None:
    """Delete the checkpoints that a signal asked for, but that of the last step: a run that went on has no use for."""
    for folder, manifest in _list_manifests(run):
        if manifest.get(BY_SIGNAL) and folder != checkpoint_folder(run, last):
            discard(folder)


def discard(folder: Path) -> None:
    """Delete a checkpoint, its manifest first, so that a half-deleted one never counts as complete."""
    (folder / MANIFEST).unlink(missing_ok=True)
    # renamed in one step and then deleted file by file: no search for checkpoints finds the new name after a kill
    aside = folder.with_name(f".discarded-{folder.name}")
    shutil.rmtree(aside, ignore_errors=True)
    folder.rename(aside)
    # `keep_only` deletes what could not be deleted now
    shutil.rmtree(aside, ignore_errors=True)


def _list_manifests(run: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield each checkpoint that has a manifest, and that."""
    for folder in _by_step(run):
        with suppress(ModelError):
            yield folder, read_manifest(folder)


def _find_lack(folder: Path) -> str | None:
    """Describe why training cannot go on from a complete checkpoint."""
    manifest = read_manifest(folder)
    is_trimmed = OPTIMIZER not in manifest["files"] and not manifest.get("finished")
    return "its optimizer states were deleted" if is_trimmed else None


def _by_step(run: Path) -> list[Path]:
    folders = [folder for folder in run.glob("checkpoint-*") if folder.name.rpartition("-")[2].isdigit()]
    return sorted(folders, key=lambda folder: int(folder.name.rpartition("-")[2]))

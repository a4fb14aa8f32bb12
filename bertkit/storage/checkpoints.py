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
from bertkit.storage.fingerprints import is_complete, list_files, read_with_checksum, write_with_checksum

MANIFEST = "bertkit-manifest.json"
BY_SIGNAL = "by_signal"
"""Whether a checkpoint was saved because of a signal, in addition to the regular checkpoints."""
OPTIMIZER = "optimizer.pt"
"""File with two thirds of a checkpoint's size, which only a resumed run reads."""
_SCHEMA = 1


def checkpoint_folder(run: Path, step: int) -> Path:
    """Return the folder of the checkpoint of a step."""
    return run / f"checkpoint-{step}"


def commit(folder: Path, facts: dict[str, Any]) -> None:
    """Complete a checkpoint: flush its files to disk, then write the manifest with their checksums and `facts`."""
    # Every file is on disk before the manifest, so a manifest that survives a power cut has its files. The folder's
    # name is an entry of its parent, which is flushed too.
    files = [file for file in folder.rglob("*") if file.is_file() and file.name != MANIFEST]
    mask = os.umask(0)  # The mask can only be read by setting it.
    os.umask(mask)
    for file in files:
        file.chmod(0o666 & ~mask)  # safetensors creates files that only their owner may read
    listed = list_files(folder, [file.relative_to(folder).as_posix() for file in files])
    write_with_checksum(folder / MANIFEST, {"schema_version": _SCHEMA, **facts, "files": listed})
    sync_folder(folder.parent)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest that `commit` wrote.

    Raises:
        ModelError: If it is damaged or missing.
    """
    damaged = ModelError(f"{MANIFEST} is damaged", "name another checkpoint", file=folder)
    manifest = read_with_checksum(folder / MANIFEST, damaged)
    if manifest is None:
        raise ModelError("it was not finished", "name another checkpoint", file=folder)
    return manifest


def find_defect(folder: Path) -> str | None:
    """Return why a checkpoint cannot be used, or None if it is complete."""
    try:
        manifest = read_manifest(folder)
    except ModelError as error:
        return error.message
    if manifest["schema_version"] != _SCHEMA:
        return f"{MANIFEST} has schema {manifest['schema_version']}, this bertkit reads {_SCHEMA}"
    for name, expected in manifest["files"].items():
        file = folder / name
        if file.is_symlink() or not file.is_file():
            return f"{name} is missing"
        if not is_complete(file, expected):
            return f"{name} does not match its checksum"
    return None


def get_last_checkpoint(run: Path, *, to_train: bool = False) -> tuple[Path | None, list[str]]:
    """Return the newest complete checkpoint or None, and the reasons why newer checkpoints were skipped.

    With `to_train`, trimmed checkpoints are skipped too, unless training ended with them.
    """
    skipped: list[str] = []
    # Start with the newest, so that no checksums of checkpoints before the newest complete one are computed.
    for folder in reversed(_by_step(run)):
        reason = find_defect(folder) or (_find_lack(folder) if to_train else None)
        if reason is None:
            return folder, skipped
        skipped.append(f"skipping {folder.name}: {reason}")
    return None, skipped


def find_last_model(folder: Path) -> Path | None:
    """Return the last checkpoint in a folder that has a model, also of another program, or None."""
    return next((path for path in reversed(_by_step(folder)) if (path / "config.json").is_file()), None)


def delete_optimizer_states(run: Path) -> int:
    """Delete the optimizer states in a run's checkpoints, which stay complete, and return the number of freed bytes."""
    freed = 0
    for folder, manifest in _list_manifests(run):
        file = folder / OPTIMIZER
        # Write the manifest first: a kill in between leaves a complete checkpoint and an unlisted file.
        if manifest["files"].pop(OPTIMIZER, None):
            write_with_checksum(folder / MANIFEST, manifest)
        if file.is_file():
            freed += file.stat().st_size
            file.unlink()
    return freed


def max_disk_usage(weight_bytes: int, checkpoint_bytes: int, saved: int, max_kept: int) -> int:
    """Return the maximum bytes that a run has on disk at the same time.

    A new checkpoint is complete before an old one is deleted, and at the end the weights of the best are copied.

    Args:
        weight_bytes: Size of the weights.
        checkpoint_bytes: Size of a checkpoint.
        saved: Number of checkpoints that are saved.
        max_kept: Number of checkpoints that are kept.
    """
    return max(min(saved, max_kept + 1) * checkpoint_bytes, max_kept * checkpoint_bytes + weight_bytes) if saved else 0


def written_bytes(run: Path) -> int:
    """Return the size of a run's checkpoints."""
    return sum(file.stat().st_size for folder in _by_step(run) for file in folder.rglob("*") if file.is_file())


def discard_unfinished(run: Path) -> None:
    """Delete incomplete checkpoints to free their space."""
    for folder in _by_step(run):
        if not (folder / MANIFEST).is_file():
            shutil.rmtree(folder, ignore_errors=True)


def clear(folder: Path) -> None:
    """Delete an old folder of a new checkpoint, so that their files are never mixed."""
    if folder.exists():
        discard(folder)


def keep_only(run: Path, steps: Iterable[int]) -> None:
    """Delete all checkpoints except at the given steps, and the remains of earlier deletions."""
    needed = {checkpoint_folder(run, step) for step in steps}
    for folder in _by_step(run):
        if folder not in needed:
            discard(folder)
    for leftover in run.glob(".discarded-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def discard_signalled(run: Path, last: int) -> None:
    """Delete the checkpoints that were saved because of a signal, except the last; a resumed run does not need them."""
    for folder, manifest in _list_manifests(run):
        if manifest.get(BY_SIGNAL) and folder != checkpoint_folder(run, last):
            discard(folder)


def discard(folder: Path) -> None:
    """Delete a checkpoint, its manifest first, so that a half-deleted one never counts as complete."""
    (folder / MANIFEST).unlink(missing_ok=True)
    # Rename the folder in one step before its files are deleted, so that a search after a kill does not find it.
    aside = folder.with_name(f".discarded-{folder.name}")
    shutil.rmtree(aside, ignore_errors=True)
    folder.rename(aside)
    # `keep_only` deletes the files that could not be deleted now.
    shutil.rmtree(aside, ignore_errors=True)


def _list_manifests(run: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the checkpoints that have a manifest, with their manifests."""
    for folder in _by_step(run):
        with suppress(ModelError):
            yield folder, read_manifest(folder)


def _find_lack(folder: Path) -> str | None:
    """Return why training cannot resume from a complete checkpoint, or None if it can."""
    manifest = read_manifest(folder)
    is_trimmed = OPTIMIZER not in manifest["files"] and not manifest.get("finished")
    return "its optimizer states were deleted" if is_trimmed else None


def _by_step(run: Path) -> list[Path]:
    folders = [folder for folder in run.glob("checkpoint-*") if folder.name.rpartition("-")[2].isdigit()]
    # As text, checkpoint-1000 would come before checkpoint-900.
    return sorted(folders, key=lambda folder: int(folder.name.rpartition("-")[2]))

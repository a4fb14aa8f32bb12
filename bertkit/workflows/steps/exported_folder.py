"""What stands beside the graph in an exported folder, and its manifest."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bertkit.evaluation.calibration import CALIBRATION_FILE, read_calibration, write_calibration
from bertkit.evaluation.checkpoint import Checkpoint, SavedCheckpoint
from bertkit.modeling.sentence.modules import SETTINGS, is_sentence_folder
from bertkit.recipe import write_yaml
from bertkit.storage import runs
from bertkit.storage.checksums import list_files
from bertkit.storage.exports import MANIFEST, Export, write_export

if TYPE_CHECKING:
    from bertkit.modeling.inference.graphs.convert import Converted

_COPIED = (runs.TRAINING_ROWS, "baselines.json", "modules.json", SETTINGS)
_UNLISTED = (MANIFEST, CALIBRATION_FILE)  # a calibration may come later, and names the files that it is of
_IN_RECORD = ("status", "identity", "machine", "tuned", "split_file", "baselines", "best_step")


def describe_export(saved: SavedCheckpoint, before: Checkpoint, converted: Converted, backend: str) -> Export:
    """Return what the manifest says of a graph."""
    from bertkit.exported import tokenizer_settings

    return Export(
        backend=backend,
        file=converted.file,
        task=saved.recipe.task,
        reads=converted.reads,
        inputs=converted.inputs,
        outputs=converted.outputs,
        tokenizer=tokenizer_settings(before.setup.tokenizer),
        options=dict(before.setup.recipe.options),
        probabilities=converted.probabilities,
        record={name: saved.record[name] for name in _IN_RECORD if name in saved.record},
        versions=runs.versions(),
    )


def write_beside(folder: Path, saved: SavedCheckpoint, before: Checkpoint) -> None:
    """Write the tokenizer, the config, the recipe, and of the run what scoring needs."""
    before.setup.tokenizer.save_pretrained(folder)
    shutil.copyfile(saved.folder / "config.json", folder / "config.json")
    copied = [saved.folder / name for name in _COPIED]
    if is_sentence_folder(saved.folder):
        copied += [file for file in saved.folder.glob("*/config.json") if not file.parent.name.startswith(".")]
        copied += list(saved.folder.glob("sentence_*_config.json"))
    for file in filter(Path.is_file, copied):
        target = folder / file.relative_to(saved.folder)
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(file, target)
    write_yaml(saved.recipe.model_dump(mode="json", exclude_defaults=True), folder / "recipe.yaml")
    calibration = read_calibration(saved.folder, saved.recipe.task)
    if calibration is not None:
        from bertkit.modeling.load import fingerprint

        write_calibration(folder, replace(calibration, model=fingerprint(folder)))


def write_manifest(folder: Path, export: Export) -> None:
    """Write the manifest of a folder over all files that are in it."""
    files = [file for file in folder.rglob("*") if file.is_file() and file.name not in _UNLISTED]
    write_export(folder, export, list_files(folder, [str(file.relative_to(folder)) for file in files]))

"""Write what stands beside the weights of a pruned model, so that it is a run where it was made of one."""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.compression.choose_units import Kept
from bertkit.compression.target_shape import Shape
from bertkit.data.rows import Split
from bertkit.evaluation.baselines import BASELINES_FILE, make_result
from bertkit.evaluation.checkpoint import Checkpoint, SavedCheckpoint
from bertkit.evaluation.scoring import Scored, write_predictions
from bertkit.modeling.checkpoint import fingerprint
from bertkit.modeling.sentence.folder import ENCODER_SETTINGS, MODULES, SETTINGS, read_entries
from bertkit.recipe.yaml import write_yaml
from bertkit.storage import runs
from bertkit.storage.files import write_json
from bertkit.storage.fingerprints import list_files
from bertkit.storage.runs import RunRecord, take, without_folder

PRUNED_FILE = "pruned.json"
_RECIPE, _IGNORE = "recipe.yaml", ".gitignore"
_OF_RUN = ("identity_version", "machine", "platform", "rows", "split_file", "tuned", "baselines")
"""Keys of a run's record that hold for what is pruned of it."""

Scoring = tuple[SavedCheckpoint, Checkpoint, Scored, Split]
"""The checkpoint before, the pruned one, its predictions, and their rows."""


@dataclass(frozen=True)
class PrunedFacts:
    """What was pruned, and how."""

    model: str
    source: Path
    folder: Path
    kept: Kept
    shape: Shape
    tokens: Sequence[int] | None
    """Ids before, in the order of the new ones."""
    began: float
    """When, by `time.perf_counter`."""


def publish(published: PrunedFacts, folder: Path, scoring: Scoring | None) -> None:
    """Write all that is not weights, config or tokenizer into the folder of a pruned model; without rows, less."""
    _copy_modules(published.source, folder)
    facts = {
        "model": published.model,
        "fingerprint": fingerprint(published.source),
        "layers": published.kept.layers,
        "heads": published.kept.heads,
        "neurons": published.kept.neurons,
        "tokens": published.tokens,
    }
    write_json(folder / PRUNED_FILE, facts)
    if scoring is not None:
        _publish_run(published, folder, *scoring)
    # safetensors creates files that only their owner can read
    mode = (folder / PRUNED_FILE).stat().st_mode
    for file in folder.rglob("*.safetensors"):
        file.chmod(mode)


def _publish_run(
    published: PrunedFacts, folder: Path, saved: SavedCheckpoint, checkpoint: Checkpoint, scored: Scored, split: Split
) -> None:
    recipe = scored.setup.recipe.model_copy(update={"model": published.model})
    write_yaml(saved.kept(recipe).model_dump(mode="json", exclude_defaults=True), folder / _RECIPE)
    for name in (runs.TRAINING_ROWS, BASELINES_FILE, _IGNORE):
        if (published.source / name).is_file():
            shutil.copyfile(published.source / name, folder / name)
    if not saved.record:
        return
    written = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
    private = {BASELINES_FILE, _IGNORE, PRUNED_FILE}
    details = checkpoint.task.details(scored.predictions, split.rows, scored.setup)
    write_predictions(folder, split, scored.predictions, details)
    seconds = round(time.perf_counter() - published.began, 3)
    scores = dataclasses.replace(
        make_result(checkpoint.task, split, scored, details, {}), model=published.model, seconds=seconds
    )
    shape = {name: value for name, value in dataclasses.asdict(published.shape).items() if value and name != "layers"}
    pruned: dict[str, Any] = {"from": fingerprint(published.source), "layers": published.kept.layers, **shape}
    record: RunRecord = {
        **take(saved.record, *_OF_RUN),
        "status": "finished",
        "started": runs.now(),
        "finished": runs.now(),
        "seconds": seconds,
        "model": published.model,
        "command": runs.command(),
        "versions": runs.versions(),
        "identity": {**saved.record.get("identity", {}), "pruned": pruned},
        "results": [without_folder(scores)],
        "files": list_files(folder, [name for name in written if name not in private]),
    }
    runs.write_record(folder, record)


def _copy_modules(source: Path, folder: Path) -> None:
    """Copy what a folder of sentence-transformers has beside its encoder, unless its head has written that."""
    if not (source / MODULES).is_file() or (folder / MODULES).is_file():
        return
    for name in (SETTINGS, *(file.name for file in source.glob("sentence_*_config.json")), ENCODER_SETTINGS):
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    for _, _, path in read_entries(source / MODULES):
        if path and (source / path).is_dir():
            shutil.copytree(source / path, folder / path, dirs_exist_ok=True)
    shutil.copyfile(source / MODULES, folder / MODULES)

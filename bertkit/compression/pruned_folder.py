"""Comparison of a pruned model with the original model, and the files next to its weights.

If the original model is a run, the folder of the pruned model is a run too: `eval`, `compare` and `push` accept it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bertkit.compression.choose_units import PruningPlan
from bertkit.compression.target_shape import PruningTarget
from bertkit.data.rows import Split
from bertkit.evaluation.baselines import BASELINES_FILE, make_result
from bertkit.evaluation.checkpoint import Checkpoint, CheckpointInfo, open_checkpoint
from bertkit.evaluation.parity import compare_scored, measure_latency
from bertkit.evaluation.scoring import EvalOutput, find_intervals, score_split, write_predictions
from bertkit.hardware.speed import InferenceSpeed
from bertkit.metrics.intervals import Interval
from bertkit.metrics.paired import Difference
from bertkit.modeling.checkpoint import fingerprint, get_weight_bytes
from bertkit.modeling.sentence.folder import ENCODER_SETTINGS, MODULES, ROUTER, SETTINGS, read_entries
from bertkit.progress import stage
from bertkit.recipe.yaml import write_yaml
from bertkit.storage import runs
from bertkit.storage.files import null_for_nan, write_json
from bertkit.storage.fingerprints import list_files
from bertkit.storage.runs import RunRecord, as_portable_record, select_entries

PRUNED_FILE = "pruned.json"
_RECIPE, _IGNORE = "recipe.yaml", ".gitignore"
_KEPT_KEYS = ("identity_version", "machine", "platform", "rows", "split_file", "tuned", "baselines")
"""Keys of a run's record that are also valid for its pruned model."""


@dataclass(frozen=True)
class PrunedSide:
    """Size of a model before or after pruning, and its speed (see `InferenceSpeed`) and scores on validation rows."""

    parameters: int
    disk_bytes: int
    row_seconds: float | None = None
    rows_per_second: float | None = None
    scores: dict[str, float | None] = field(default_factory=dict)
    intervals: dict[str, Interval] = field(default_factory=dict)
    spread: float | None = None
    """Relative difference between the slowest and the fastest round of timing."""


@dataclass(frozen=True)
class ComparedSides:
    """Comparison of the original with the pruned model on the validation rows: scores and speeds, in this order."""

    after: Checkpoint
    scored: tuple[EvalOutput, EvalOutput]
    paces: list[InferenceSpeed]
    differences: dict[str, Difference]
    """Metric -> score after minus score before, on the same rows."""

    def describe(self, index: int, parameters: int, folder: Path) -> PrunedSide:
        """Return the figures of the model before (index 0) or after (1) pruning, whose weights are in a folder."""
        scored = self.scored[index]
        return PrunedSide(
            parameters=parameters,
            disk_bytes=get_weight_bytes(folder),
            **self.paces[index]._asdict(),
            scores=null_for_nan(scored.scores),
            intervals=find_intervals(self.after.task, scored).bounds,
        )


def compare(saved: CheckpointInfo, before: Checkpoint, folder: Path, validation: Split) -> ComparedSides:
    """Load a pruned model, score it and the original model on the same rows, and time both in turns.

    Args:
        saved: Checkpoint of the original model.
        before: Original model.
        folder: Folder of the pruned model.
        validation: Rows to score.

    Raises:
        ModelError: If the pruned model does not load.
    """
    # 1. Load the model from the folder, as users will. The folder has no record yet, so the options that were tuned for
    #    the original model come from its context.
    pruned = open_checkpoint(saved.recipe.model_copy(update={"model": str(folder)}), saved.task, folder)
    after = pruned.load(before.machine, inference=True, calibrated=False)
    after = replace(after, context=replace(before.context, tokenizer=after.context.tokenizer))

    # 2. Score and time both models.
    first, second = (score_split(checkpoint, validation) for checkpoint in (before, after))
    paces = measure_latency([(before, first), (after, second)])
    with stage("comparing", total=1):
        differences = compare_scored(saved.task, first, second)
    return ComparedSides(after, (first, second), paces, differences)


@dataclass(frozen=True)
class PruningMetadata:
    """Origin of a pruned model, and the units that it keeps."""

    model: str
    source: Path
    units: PruningPlan
    shape: PruningTarget
    tokens: Sequence[int] | None
    """Original token ids in the order of the new ids, or None if the vocabulary is complete."""
    start_time: float
    """Start of the command, in seconds of `time.perf_counter`."""


def write_pruned_files(metadata: PruningMetadata, folder: Path) -> None:
    """Write the files of a pruned model that do not depend on rows, next to its weights, config and tokenizer."""
    _copy_modules(metadata.source, folder)
    origin = {
        "model": metadata.model,
        "fingerprint": fingerprint(metadata.source),
        "layers": metadata.units.layers,
        "heads": metadata.units.heads,
        "neurons": metadata.units.neurons,
        "tokens": metadata.tokens,
    }
    write_json(folder / PRUNED_FILE, origin)
    # safetensors creates files that only their owner can read. Other files show the mode that the user's umask gives.
    mode = (folder / PRUNED_FILE).stat().st_mode
    for file in folder.rglob("*.safetensors"):
        file.chmod(mode)


def write_pruned_run(
    metadata: PruningMetadata, folder: Path, saved: CheckpointInfo, comparison: ComparedSides, split: Split
) -> None:
    """Write the recipe and, if the original model is a run, the predictions and the record of a pruned model."""
    # 1. Write the recipe, and copy the files that stay valid: training rows and baselines do not depend on the model.
    task, scored = saved.task, comparison.scored[1]
    recipe = scored.context.recipe.model_copy(update={"model": metadata.model})
    write_yaml(saved.restore_limit(recipe).model_dump(mode="json", exclude_defaults=True), folder / _RECIPE)
    for name in (runs.TRAINING_ROWS, BASELINES_FILE, _IGNORE):
        if (metadata.source / name).is_file():
            shutil.copyfile(metadata.source / name, folder / name)
    if not saved.record:
        return

    # 2. Write the predictions. The other files are listed before, because the record has checksums of them.
    written = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
    private = {BASELINES_FILE, _IGNORE, PRUNED_FILE}
    details = task.details(scored.predictions, split.rows, scored.context)
    write_predictions(folder, split, scored.predictions, details)
    seconds = round(time.perf_counter() - metadata.start_time, 3)

    # 3. Write the record. Its identity includes the shape, so that no command resumes the folder as the original run.
    scores = replace(make_result(task, split, scored, details, {}), model=metadata.model, seconds=seconds)
    shape = {name: value for name, value in asdict(metadata.shape).items() if value and name != "layers"}
    pruned: dict[str, Any] = {"from": fingerprint(metadata.source), "layers": metadata.units.layers, **shape}
    record: RunRecord = {
        **select_entries(saved.record, *_KEPT_KEYS),
        "status": "finished",
        "started": runs.now(),
        "finished": runs.now(),
        "seconds": seconds,
        "model": metadata.model,
        "command": runs.command(),
        "versions": runs.versions(),
        "identity": {**saved.record.get("identity", {}), "pruned": pruned},
        "results": [as_portable_record(scores)],
        "files": list_files(folder, [name for name in written if name not in private]),
    }
    runs.write_record(folder, record)


def _copy_modules(source: Path, folder: Path) -> None:
    """Copy the other modules of a sentence-transformers folder, unless the head has already written them."""
    if not (source / MODULES).is_file() or (folder / MODULES).is_file():
        return
    for name in (SETTINGS, ROUTER, *(file.name for file in source.glob("sentence_*_config.json")), ENCODER_SETTINGS):
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    for _, _, path in read_entries(source / MODULES):
        if path and (source / path).is_dir():
            shutil.copytree(source / path, folder / path, dirs_exist_ok=True)
    shutil.copyfile(source / MODULES, folder / MODULES)

"""Comparison of a pruned model with the original model, and the other files in the folder of the pruned model.

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
class ModelFigures:
    """Size of a model before or after pruning, with its speed (see `InferenceSpeed`) and scores on validation rows."""

    parameters: int
    disk_bytes: int
    row_seconds: float | None = None
    rows_per_second: float | None = None
    scores: dict[str, float | None] = field(default_factory=dict)
    intervals: dict[str, Interval] = field(default_factory=dict)
    spread: float | None = None
    """Additional time of the slowest round of timing, as a fraction of the fastest round."""


@dataclass(frozen=True)
class PruningComparison:
    """Results of the original and the pruned model, in this order, on the validation rows."""

    pruned: Checkpoint
    eval_outputs: tuple[EvalOutput, EvalOutput]
    speeds: list[InferenceSpeed]
    differences: dict[str, Difference]
    """Metric -> score after minus score before, on the same rows."""

    def describe(self, index: int, parameters: int, folder: Path) -> ModelFigures:
        """Return the figures of the model before (index 0) or after pruning (index 1), with weights in `folder`."""
        eval_output = self.eval_outputs[index]
        return ModelFigures(
            parameters=parameters,
            disk_bytes=get_weight_bytes(folder),
            **self.speeds[index]._asdict(),
            scores=null_for_nan(eval_output.scores),
            intervals=find_intervals(self.pruned.task, eval_output).bounds,
        )


def compare(info: CheckpointInfo, original: Checkpoint, folder: Path, validation: Split) -> PruningComparison:
    """Load a pruned model, score it and the original model on the same rows, and time both alternately.

    Args:
        info: Checkpoint of the original model.
        original: Original model.
        folder: Folder of the pruned model.
        validation: Rows to score.

    Raises:
        ModelError: If the pruned model does not load.
    """
    # 1. Load the model from the folder, as users will. The folder has no record yet, so take the tuned options from the
    #    context of the original model.
    pruned_info = open_checkpoint(info.recipe.model_copy(update={"model": str(folder)}), info.task, folder)
    pruned = pruned_info.load(original.machine, inference=True, calibrated=False)
    pruned = replace(pruned, context=replace(original.context, tokenizer=pruned.context.tokenizer))

    # 2. Score and time both models.
    original_output, pruned_output = (score_split(checkpoint, validation) for checkpoint in (original, pruned))
    speeds = measure_latency([(original, original_output), (pruned, pruned_output)])
    with stage("comparing", total=1):
        differences = compare_scored(info.task, original_output, pruned_output)
    return PruningComparison(pruned, (original_output, pruned_output), speeds, differences)


@dataclass(frozen=True)
class PruningMetadata:
    """Origin of a pruned model, and the units that it keeps."""

    model: str
    source: Path
    units: PruningPlan
    shape: PruningTarget
    tokens: Sequence[int] | None
    """Original token ids in the order of the new ids, or None if the vocabulary is not pruned."""
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
    # safetensors creates files that only their owner can read. Copy the mode of another file, which follows the umask.
    mode = (folder / PRUNED_FILE).stat().st_mode
    for file in folder.rglob("*.safetensors"):
        file.chmod(mode)


def write_pruned_run(
    metadata: PruningMetadata, folder: Path, info: CheckpointInfo, comparison: PruningComparison, split: Split
) -> None:
    """Write the recipe and, if the original model is a run, the predictions and the record of a pruned model."""
    # 1. Write the recipe, and copy the files that stay valid: training rows and baselines do not depend on the model.
    task, eval_output = info.task, comparison.eval_outputs[1]
    recipe = eval_output.context.recipe.model_copy(update={"model": metadata.model})
    write_yaml(info.restore_limit(recipe).model_dump(mode="json", exclude_defaults=True), folder / _RECIPE)
    for name in (runs.TRAINING_ROWS, BASELINES_FILE, _IGNORE):
        if (metadata.source / name).is_file():
            shutil.copyfile(metadata.source / name, folder / name)
    if not info.record:
        return

    # 2. Write the predictions. First list the other files, whose checksums are part of the record.
    file_names = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
    private = {BASELINES_FILE, _IGNORE, PRUNED_FILE}
    details = task.details(eval_output.predictions, split.rows, eval_output.context)
    write_predictions(folder, split, eval_output.predictions, details)
    seconds = round(time.perf_counter() - metadata.start_time, 3)

    # 3. Write the record. Its identity includes the shape, so no command resumes the folder as the original run.
    scores = replace(make_result(task, split, eval_output, details, {}), model=metadata.model, seconds=seconds)
    shape = {name: value for name, value in asdict(metadata.shape).items() if value and name != "layers"}
    pruning: dict[str, Any] = {"from": fingerprint(metadata.source), "layers": metadata.units.layers, **shape}
    record: RunRecord = {
        **select_entries(info.record, *_KEPT_KEYS),
        "status": "finished",
        "started": runs.now(),
        "finished": runs.now(),
        "seconds": seconds,
        "model": metadata.model,
        "command": runs.command(),
        "versions": runs.versions(),
        "identity": {**info.record.get("identity", {}), "pruned": pruning},
        "results": [as_portable_record(scores)],
        "files": list_files(folder, [name for name in file_names if name not in private]),
    }
    runs.write_record(folder, record)


def _copy_modules(source: Path, folder: Path) -> None:
    """Copy the modules after the encoder of a sentence-transformers folder, unless they are already written."""
    if not (source / MODULES).is_file() or (folder / MODULES).is_file():
        return
    for name in (SETTINGS, ROUTER, *(file.name for file in source.glob("sentence_*_config.json")), ENCODER_SETTINGS):
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    for _, _, path in read_entries(source / MODULES):
        if path and (source / path).is_dir():
            shutil.copytree(source / path, folder / path, dirs_exist_ok=True)
    shutil.copyfile(source / MODULES, folder / MODULES)

"""Score a checkpoint on a split."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from bertkit import hub
from bertkit.data.labels import name_split
from bertkit.data.rows import Split
from bertkit.data.sources import ALL, is_validation, read_splits
from bertkit.errors import DataError, ResourceError
from bertkit.evaluation.checkpoint import checkpoint_labels, load_checkpoint
from bertkit.evaluation.scoring import Result, find_intervals, score_split, write_predictions
from bertkit.progress import SILENT, Progress
from bertkit.recipe import Recipe
from bertkit.storage import runs
from bertkit.storage.fingerprints import file_fingerprint
from bertkit.tasks import Task, load_task


def evaluate(
    recipe: Recipe,
    *,
    split: str | None = None,
    output: Path | None = None,
    progress: Progress = SILENT,
) -> list[Result]:
    """Score the checkpoint `recipe.model` on its recipe's validation splits, or on `split`.

    With `output`, a folder, predictions are written there under the names they have in a run folder.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    task = load_task(recipe)
    folder = hub.find_model(recipe.model)
    labels = checkpoint_labels(recipe, task, folder)
    record = runs.read_record(folder)
    splits = _splits_to_score(recipe, task, split, record)
    if task.NAMED:
        splits = {name: name_split(each, task.COLUMNS.gold, labels) for name, each in splits.items()}
    if output is not None:
        _make_folder(output)
    checkpoint = load_checkpoint(recipe, task, folder, labels)
    results = []
    for name, each in splits.items():
        start = time.perf_counter()
        scored = score_split(checkpoint.model, task, checkpoint.setup, each, checkpoint.precision, progress)
        details = task.details(scored.predictions, each.rows, checkpoint.setup)
        intervals = find_intervals(task, scored)
        seconds = time.perf_counter() - start
        if output is not None and runs.is_main_process():
            write_predictions(output, each, scored.predictions, details)
        results.append(
            Result(
                recipe.name,
                recipe.model,
                name,
                scored.scores,
                len(each.rows),
                seconds,
                intervals,
                source=each.source,
                warnings=details.warnings,
                tables=details.tables,
            )
        )
    return results


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResourceError(
            f"not a folder to write to: {error.strerror}", "choose another --output", file=folder
        ) from None


def _splits_to_score(recipe: Recipe, task: Task, split: str | None, record: dict[str, Any] | None) -> dict[str, Split]:
    def read(row: Any) -> Any:
        return task.read(row, recipe)

    file = Path(recipe.data.source).expanduser()
    one_file = file.is_file() and recipe.data.split_column is None and not recipe.data.files
    if split is None and one_file and file_fingerprint(file) != (record or {}).get("split_file"):
        split = ALL  # not the file the run held rows of out, so all of it is new
    found = read_splits(recipe, task.COLUMNS, read, is_validation if split is None else lambda name: name == split)
    if not found:
        raise DataError(f"no split {split or 'validation'!r} in {recipe.data.source}", "name one with --split")
    return found

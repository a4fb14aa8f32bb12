"""Runs scored again, on the rows of a file that none of them was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bertkit.data.rows import Split
from bertkit.data.sources import ALL, unsplit_file
from bertkit.errors import DataError, UsageError, shorten
from bertkit.evaluation.checkpoint import SavedCheckpoint, find_checkpoint
from bertkit.evaluation.scoring import run_model
from bertkit.evaluation.stored import StoredRun, StoredSystem, recipe_of
from bertkit.progress import Progress, stage
from bertkit.recipe import Recipe
from bertkit.workflows.evaluate import splits_to_score
from bertkit.workflows.steps.training_rows import judge_training_rows


def predict_unseen(
    systems: Sequence[StoredSystem], source: str, split: str | None, progress: Progress
) -> tuple[list[StoredSystem], Recipe, list[str]]:
    """Predict the rows of a source that no run of the systems was trained on, each run with its own recipe and columns.

    Args:
        systems: runs whose models are there.
        source: a file, of which all rows are taken, or another source of rows as ``data.source`` names one.
        split: which rows of it to take.
        progress: shows how far the work is.

    Returns:
        the systems with these predictions instead of those that they have stored; the recipe of the first run with
        this source; and notes on rows that were left out, and on labels that a run does not have.

    Raises:
        UsageError: a system is a file of predictions, which no model is known of.
        DataError: all rows are training rows.
        BertkitError: of the kind that fits, for a source or a model that does not load.
    """
    for run in (run for system in systems for run in system.runs):
        if not run.record:
            raise UsageError("a file of predictions has no model to score", "name run folders", file=run.file)
    saved = [[find_checkpoint(_on(run, source)) for run in system.runs] for system in systems]
    labels = tuple(dict.fromkeys(name for of_system in saved for one in of_system for name in one.labels))
    with stage(progress, f"reading {source}", total=1):
        read = [[_read(replace(one, labels=labels), split) for one in of_system] for of_system in saved]
    trained = [{part.lines[row] for part in parts for row in part.training_rows} for parts in read]
    seen, count = set().union(*trained), len(read[0][0].rows)
    each = ", ".join(f"{system.name} {len(lines):,}" for system, lines in zip(systems, trained, strict=True))
    notes = (
        [f"left out of {source}: {len(seen):,} of {count:,} rows that a run was trained on ({each})."] if seen else []
    )
    if len(seen) == count:
        what = f"all {count:,} rows are training rows of one run or another ({each})"
        raise DataError(what, "name a file with rows that are new to all of them: --on FILE", file=source)
    predicted = []
    for system, of_system, parts in zip(systems, saved, read, strict=True):
        runs = [
            _predict(run, one, part, seen, labels, progress)
            for run, one, part in zip(system.runs, of_system, parts, strict=True)
        ]
        predicted.append(replace(system, runs=runs))
        if missing := [name for name in labels if name not in of_system[0].labels]:
            notes.append(f"{system.name} does not know {shorten(', '.join(missing))}: it answers no such row right.")
    recipe = saved[0][0].recipe
    return predicted, recipe.model_copy(update={"labels": list(labels)}) if recipe.labels else recipe, notes


def _on(run: StoredRun, source: str) -> Recipe:
    """Return the recipe of a run with its model, and with all rows of another source."""
    recipe = recipe_of(run, {"model": str(run.file.parent), "data.source": source})
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"files": {}, "limit": None})})


def _read(saved: SavedCheckpoint, split: str | None) -> Split:
    """Read the rows to score, with those marked that the run was trained on."""
    chosen = split or (ALL if unsplit_file(saved.recipe.data) else "validation")
    return judge_training_rows(saved, splits_to_score(saved, chosen), "keep")[chosen]


def _predict(
    run: StoredRun,
    saved: SavedCheckpoint,
    split: Split,
    left_out: set[int],
    labels: Sequence[str],
    progress: Progress,
) -> StoredRun:
    """Predict rows as `eval` does, but without their gold values: a run need not have all labels."""
    from bertkit.tokens.feature_cache import encode_split

    gold = saved.task.COLUMNS.gold
    numbers = [index for index, line in enumerate(split.lines) if line not in left_out]
    rows = split.select(numbers)
    inputs = replace(rows, rows=[{name: row[name] for name in row if name != gold} for row in rows.rows])
    with stage(progress, f"loading {saved.recipe.model_name}"):
        checkpoint = saved.load(inference=True)
    features = encode_split(inputs, checkpoint.setup, saved.task.encode)
    outputs, _ = run_model(checkpoint, features, progress, f"scoring {run.name}")
    predictions = saved.task.decode(outputs, features, inputs.rows, checkpoint.setup)
    records = [
        {"id": number, **row, **prediction}
        for number, row, prediction in zip(numbers, rows.rows, predictions, strict=True)
    ]
    record: dict[str, Any] = {**run.record, "split": split.name, "identity": {**run.record["identity"]}}
    if saved.task.NAMED:
        record["identity"]["labels"] = list(labels)
    return replace(run, record=record, predictions=records)

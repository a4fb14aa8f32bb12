"""Compare finished runs by their stored predictions: differences, their intervals and p values, and their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from bertkit.data.rows import Split
from bertkit.data.sources import ALL, find_unsplit_file
from bertkit.errors import DataError, UsageError, shorten
from bertkit.evaluation.checkpoint import CheckpointInfo, find_checkpoint
from bertkit.evaluation.differences import Changes, SystemScores, find_changes
from bertkit.evaluation.gates import WorseGate, compare_systems, judge_systems
from bertkit.evaluation.scoring import decode_rows, find_positive_label, run_model
from bertkit.evaluation.splits import count_trained, resolve_overlap, splits_to_score
from bertkit.evaluation.stored_predictions import (
    StoredPredictionScorer,
    StoredRun,
    StoredSystem,
    align,
    find_changed_scores,
    find_scorer,
    read_column,
    read_recipe,
    read_rows,
    read_system,
)
from bertkit.metrics.intervals import count_examples, find_intervals
from bertkit.metrics.paired import Difference, correct_differences
from bertkit.metrics.registry import describe_positive_label
from bertkit.progress import stage
from bertkit.recipe.records import Recipe
from bertkit.recipe.sections import expand_path
from bertkit.reports.cases import Case
from bertkit.reports.text import ONE_SEED
from bertkit.storage.disk import offload_to_disk
from bertkit.storage.run_list import list_settings, read_log
from bertkit.storage.runs import RunRecord
from bertkit.tokens.feature_cache import encode_split


@dataclass(frozen=True)
class ComparedSystem:
    """A compared run or folder of seeds, with its scores: means over seeds if it has several."""

    name: str
    seeds: list[int | None]
    scores: dict[str, float]
    intervals: dict[str, tuple[float, float] | None]
    seed_scores: dict[str, list[float]] = field(default_factory=dict)
    """Metric -> its score for each seed; empty for a single run."""


@dataclass(frozen=True)
class Comparison:
    """Systems compared with the first, which is the baseline, on the same rows."""

    recipe: str
    task: str
    split: str
    rows: int
    units: int
    """Number of rows, or of queries if these were resampled."""
    best_metric: str
    systems: list[ComparedSystem]
    differences: dict[str, dict[str, Difference]]
    """Name of a system -> metric -> its difference from the baseline."""
    changes: dict[str, Changes]
    """Name of a system -> rows and slices in which it differs from the baseline."""
    settings: list[dict[str, str]]
    """Settings that differ between the runs: `setting`, and the value of each system by its name."""
    notes: list[str]
    folders: dict[str, list[str]]
    """Name of a system -> the folders of its runs."""
    gates: list[Case] = field(default_factory=list)


def compare(
    paths: Sequence[str | Path],
    *,
    recipe: Recipe | None = None,
    split: str | None = None,
    on: str | None = None,
    by: str | None = None,
    max_rows: int = 5,
    gate: WorseGate | None = None,
) -> Comparison:
    """Compare runs with the first of them; see `bertkit.metrics.paired`.

    Args:
        paths: At least two run folders, folders of seeds, or outputs of `bertkit eval --output`.
        recipe: Recipe whose metrics are compared; by default the first run's.
        split: Split whose predictions are compared; by default the first validation split.
        on: File or another source of rows. The runs are scored on its rows, except the training rows of any run.
        by: Column of the data to slice by.
        max_rows: Number of rows that are won, and lost, to show.
        gate: Largest acceptable loss, in all rows and in each slice of `by`.

    Raises:
        BertkitError: If predictions, rows or models cannot be read; see `bertkit.errors`.
    """
    if len(paths) < 2:
        raise UsageError("one run cannot be compared", "name two or more")
    if len({expand_path(path).resolve() for path in paths}) < len(paths):
        raise UsageError("a run is named twice", "name each run only once")

    # 1. Read the stored predictions; no model is loaded. With `on`, the models answer the rows of the file instead.
    with stage("reading the predictions", total=1):
        systems = [read_system(path, None if on else split) for path in paths]
        _check_seeds(systems)
    notes: list[str] = []
    if on is not None:
        systems, run_recipe, notes = predict_unseen(systems, on, split)
        recipe = recipe.model_copy(update={"data": run_recipe.data}) if recipe else run_recipe

    # 2. Read the rows. Scores are paired, so all systems are sorted into the order of the first system's rows.
    with stage("reading the rows", total=1):
        scorer, reference = find_scorer(systems, recipe), systems[0].runs[0]
        systems = [
            replace(system, runs=[align(run, reference, scorer.task) for run in system.runs]) for system in systems
        ]
        rows = read_rows(reference, scorer.task)
        extra = {} if by is None else {by: read_column(by, scorer, systems[0].runs[0], rows)}

    # 3. Compare predictions with gold values once: all resamples only index and add up these arrays.
    sides = [
        SystemScores([run.predictions for run in system.runs], [scorer.compare(run, rows) for run in system.runs])
        for system in systems
    ]
    scorer, left_out = _leave_out_unstored(scorer, systems, sides)
    positive = find_positive_label(scorer.task, scorer.recipe, scorer.labels)
    notes += [*left_out, *describe_positive_label(scorer.recipe.metrics, positive)]
    if gate:
        gate.choose(scorer, sides[0])  # An unknown metric is an error before the resampling, which takes longer.
    notes += [f"{system.name}: left out {', '.join(system.unfinished)}." for system in systems if system.unfinished]
    notes += [ONE_SEED] * (not systems[0].has_seeds and any(system.runs[0].seed is not None for system in systems))

    # 4. Compare each system with the first.
    names = _short_names([system.name for system in systems])
    differences: dict[str, dict[str, Difference]] = {}
    changes: dict[str, Changes] = {}
    for name, side in zip(names[1:], sides[1:], strict=True):
        with stage(f"comparing {name} with {names[0]}", total=1):
            differences[name] = compare_systems(scorer, sides[0], side)
            changes[name] = find_changes(scorer, rows, (sides[0], side), extra, max_rows)
    # Gates correct p values themselves, so they read the uncorrected ones.
    gates = judge_systems(scorer, rows, dict(zip(names, sides, strict=True)), differences, extra, gate)
    # With several systems, some p-value is low by chance. So the tests of a metric are corrected together (Holm 1979).
    corrected: dict[str, dict[str, Difference]] = {name: {} for name in differences}
    for metric in differences[names[1]]:
        family = correct_differences([by_metric[metric] for by_metric in differences.values()])
        for name, difference in zip(differences, family, strict=True):
            corrected[name][metric] = difference

    # 5. Collect the result. Seeds share their settings, so the first run of a system shows them.
    first_runs = {name: system.runs[0] for name, system in zip(names, systems, strict=True)}
    return Comparison(
        recipe=scorer.recipe.name,
        task=scorer.recipe.task,
        split=on or systems[0].runs[0].split,
        rows=len(rows),
        units=count_examples(sides[0].row_scores[0]),
        best_metric=scorer.recipe.best_metric,
        systems=[_describe_system(scorer, *parts) for parts in zip(names, systems, sides, strict=True)],
        differences=corrected,
        changes=changes,
        settings=count_trained({name: run.file.parent for name, run in first_runs.items()})
        + list_settings({name: run.record for name, run in first_runs.items()}),
        notes=notes,
        folders={
            name: [str(run.file.parent) for run in system.runs] for name, system in zip(names, systems, strict=True)
        },
        gates=gates,
    )


def _check_seeds(systems: Sequence[StoredSystem]) -> None:
    """Check that all systems are single runs, or all have at least two seeds."""
    single = [system for system in systems if not system.has_seeds]
    if single and len(single) < len(systems):
        several = next(system for system in systems if system.has_seeds)
        message = f"{single[0].name} is one run, and {several.name} has several seeds"
        remedy = f"train it with --seeds, or name one run: {several.runs[0].name}"
        raise UsageError(message, remedy)
    for system in systems:
        if system.has_seeds and len(system.runs) < 2:
            message = f"only {system.runs[0].name} is finished, and the spread of seeds needs at least two"
            raise UsageError(message, "repeat the command that trains them", file=system.name)


def _leave_out_unstored(
    scorer: StoredPredictionScorer, systems: Sequence[StoredSystem], sides: Sequence[SystemScores]
) -> tuple[StoredPredictionScorer, list[str]]:
    """Leave out the metrics that stored predictions do not determine: those that differ from the record of their run.

    Raises:
        DataError: If the best metric would be left out.
    """
    # A metric can need more than the stored predictions, such as probabilities. So each run is scored again.
    changed: dict[str, StoredRun] = {}
    for system, side in zip(systems, sides, strict=True):
        for run, row_scores in zip(system.runs, side.row_scores, strict=True):
            changed |= dict.fromkeys(find_changed_scores(run, scorer.score(row_scores)), run)
    unchanged = [name for name in scorer.recipe.metrics if name not in changed]
    best = scorer.recipe.best_metric
    if best in changed:
        message = f"the stored predictions do not give the {best} that the run recorded"
        remedy = "score the model again with `bertkit eval --output DIR`, and compare that folder"
        raise DataError(message, remedy, file=changed[best].file)
    recipe = scorer.recipe.model_copy(update={"metrics": unchanged})
    notes = [f"{', '.join(changed)}: left out, because stored predictions do not determine it."] if changed else []
    return replace(scorer, recipe=recipe), notes


def _describe_system(
    scorer: StoredPredictionScorer, name: str, system: StoredSystem, side: SystemScores
) -> ComparedSystem:
    """Collect the scores of a system, with the intervals over rows of a single run."""
    per_run = [scorer.score(row_scores) for row_scores in side.row_scores]
    scores = {metric: float(np.mean([scores[metric] for scores in per_run])) for metric in per_run[0]}
    if system.has_seeds:
        seed_scores = {metric: [float(scores[metric]) for scores in per_run] for metric in scores}
        return ComparedSystem(name, [run.seed for run in system.runs], scores, {}, seed_scores)
    row_scores = side.row_scores[0]
    intervals = find_intervals(scorer.task.METRICS, per_run[0], row_scores, scorer.score)
    return ComparedSystem(name, [system.runs[0].seed], scores, intervals.ends)


def _short_names(names: Sequence[str]) -> list[str]:
    """Return paths without their common parent folders.

    >>> _short_names(["runs/a", "runs/b"]), _short_names(["runs/a/seed-1", "runs/b/seed-1"])
    (['a', 'b'], ['a/seed-1', 'b/seed-1'])
    """
    parts = [Path(name).parts for name in names]
    # Count the parent folders that all paths share. The loop ends because no two paths are equal.
    shared = 0
    while len({name_parts[: shared + 1] for name_parts in parts}) == 1:
        shared += 1
    return [
        str(Path(*name_parts[shared:])) if len(name_parts) > shared else name
        for name_parts, name in zip(parts, names, strict=True)
    ]


def write_page(file: Path, compared: Comparison) -> None:
    """Write a page with scores, curves, settings and rows of compared runs."""
    from bertkit.reports.compare import write_compared

    logs = {name: [read_log(Path(folder)) for folder in folders] for name, folders in compared.folders.items()}
    write_compared(file, compared, logs)


def predict_unseen(
    systems: Sequence[StoredSystem], source: str, split: str | None
) -> tuple[list[StoredSystem], Recipe, list[str]]:
    """Predict the rows of a source that no run of the systems was trained on, each run with its own recipe and columns.

    Args:
        systems: Runs with their models.
        source: File, which is read completely, or another source of rows as in ``data.source``.
        split: Split of the source.

    Returns:
        The systems with these predictions instead of the stored ones; the recipe of the first run with this source; and
        notes on rows that were left out, and on labels that a run does not have.

    Raises:
        UsageError: If a system is a file of predictions, whose model is unknown.
        DataError: If all rows are training rows.
        BertkitError: If the source or a model cannot be loaded; see `bertkit.errors`.
    """
    # 1. Find the model of each run: one list of checkpoints per system.
    checkpoints: list[list[CheckpointInfo]] = []
    for system in systems:
        checkpoints.append([])
        for run in system.runs:
            if not run.record:
                raise UsageError("a file of predictions has no model to score", "name run folders", file=run.file)
            recipe = read_recipe(run, {"model": run.model, "data.source": source})
            data = recipe.data.model_copy(update={"files": {}, "limit": None})
            checkpoints[-1].append(find_checkpoint(recipe.model_copy(update={"data": data})))

    # 2. Read the rows once per run, because each recipe has its own columns. A label that one run lacks is still a
    #    label of the rows, so all runs read them with the labels of all runs.
    labels = tuple(dict.fromkeys(name for members in checkpoints for saved in members for name in saved.labels))
    splits: list[list[Split]] = []
    with stage(f"reading {source}", total=1):
        for members in checkpoints:
            splits.append([])
            for saved in members:
                split_name = split or (ALL if find_unsplit_file(saved.recipe.data) else "validation")
                to_score = splits_to_score(replace(saved, labels=labels), split_name)
                splits[-1].append(resolve_overlap(replace(saved, labels=labels), to_score, "mark")[split_name])

    # 3. Leave out the training rows of any run, so that every system answers the same rows. Lines of the file identify
    #    rows, because each run has read the same file.
    trained = [{part.lines[row] for part in parts for row in part.training_rows} for parts in splits]
    seen, count = set().union(*trained), len(splits[0][0].rows)
    counts = ", ".join(f"{system.name} {len(lines):,}" for system, lines in zip(systems, trained, strict=True))
    notes = []
    if seen:
        notes.append(f"left out of {source}: {len(seen):,} of {count:,} rows that a run was trained on ({counts}).")
    if len(seen) == count:
        message = f"all {count:,} rows are training rows of one run or another ({counts})"
        raise DataError(message, "name a file with rows that are new to all of them: --data FILE", file=source)

    # 4. Predict the remaining rows.
    predicted = []
    for system, members, parts in zip(systems, checkpoints, splits, strict=True):
        runs = [_predict_rows(*job, seen, labels) for job in zip(system.runs, members, parts, strict=True)]
        predicted.append(replace(system, runs=runs))
        if missing := [name for name in labels if name not in members[0].labels]:
            notes.append(f"{system.name} does not know {shorten(', '.join(missing))}: it answers no such row right.")
    recipe = checkpoints[0][0].recipe
    return predicted, recipe.model_copy(update={"labels": list(labels)}) if recipe.labels else recipe, notes


def _predict_rows(
    run: StoredRun, saved: CheckpointInfo, split: Split, left_out: set[int], labels: Sequence[str]
) -> StoredRun:
    """Predict rows as `eval` does, but without their gold values: a run need not have all labels."""
    indices = [index for index, line in enumerate(split.lines) if line not in left_out]
    rows = split.select(indices)
    inputs = rows.drop_column(saved.task.COLUMNS.gold)
    with stage(f"loading {saved.recipe.model_name}"):
        checkpoint = saved.load(inference=True)
    features = encode_split(inputs, checkpoint.context, saved.task.encode)
    outputs, _ = run_model(checkpoint, features, f"scoring {run.name}")
    predictions = decode_rows(saved.task, outputs, features, inputs.rows, checkpoint.context)
    records = offload_to_disk(
        {"id": index, **row, **prediction}
        for index, row, prediction in zip(indices, rows.rows, predictions, strict=True)
    )
    # The result looks like a stored run of these rows, with the labels of all systems.
    record: RunRecord = {**run.record, "split": split.name, "identity": {**run.record["identity"]}}
    if saved.task.HAS_LABEL_NAMES:
        record["identity"]["labels"] = list(labels)
    return replace(run, record=record, predictions=records)

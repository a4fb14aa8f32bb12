"""Compare finished runs by their stored predictions: scores, differences with intervals and p-values, and rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from bertkit.data.rows import Split
from bertkit.data.sources import ALL, unsplit_file
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
    """A compared run or folder of seeds. The scores of a folder are means over its seeds."""

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
    """Number of resampled units: rows, or queries of a ranking."""
    best_metric: str
    systems: list[ComparedSystem]
    differences: dict[str, dict[str, Difference]]
    """Name of a system -> metric -> its difference from the baseline."""
    changes: dict[str, Changes]
    """Name of a system -> rows and slices in which it differs from the baseline."""
    settings: list[dict[str, str]]
    """Settings that differ between the runs: ``setting``, and name of a system -> its value."""
    notes: list[str]
    folders: dict[str, list[str]]
    """Name of a system -> the folders of its runs."""
    gates: list[Case] = field(default_factory=list)


def compare(
    paths: Sequence[str | Path],
    *,
    recipe: Recipe | None = None,
    split: str | None = None,
    data: str | None = None,
    by: str | None = None,
    max_rows: int = 5,
    gate: WorseGate | None = None,
) -> Comparison:
    """Compare runs with the first run; see `bertkit.metrics.paired`.

    Args:
        paths: At least two run folders, folders of seeds, or outputs of `bertkit eval --output`.
        recipe: Recipe whose metrics are compared; by default the first run's.
        split: Split whose predictions are compared; by default the first validation split.
        data: File or another source of rows that the runs are scored on, without the training rows of any run.
        by: Column of the data to slice by.
        max_rows: Maximum number of won rows, and of lost rows, to show.
        gate: Largest acceptable loss, in all rows and in each slice of `by`.

    Raises:
        BertkitError: If predictions, rows or models cannot be read; see `bertkit.errors`.
    """
    if len(paths) < 2:
        raise UsageError("one run cannot be compared", "name two or more")
    if len({expand_path(path).resolve() for path in paths}) < len(paths):
        raise UsageError("a run is named twice", "name each run only once")

    # 1. Read the stored predictions; no model is loaded. With `data`, the models predict the rows of the file instead.
    with stage("reading the predictions", total=1):
        systems = [read_system(path, None if data else split) for path in paths]
        _check_seeds(systems)
    notes: list[str] = []
    if data is not None:
        systems, run_recipe, notes = predict_unseen(systems, data, split)
        recipe = recipe.model_copy(update={"data": run_recipe.data}) if recipe else run_recipe

    # 2. Read the rows. Scores are paired, so sort the rows of all systems into the order of the first system.
    with stage("reading the rows", total=1):
        scorer, reference = find_scorer(systems, recipe), systems[0].runs[0]
        systems = [
            replace(system, runs=[align(run, reference, scorer.task) for run in system.runs]) for system in systems
        ]
        rows = read_rows(reference, scorer.task)
        slice_columns = {} if by is None else {by: read_column(by, scorer, systems[0].runs[0], rows)}

    # 3. Compare predictions with gold values once; resamples only index and sum these arrays.
    system_scores = [
        SystemScores([run.predictions for run in system.runs], [scorer.compare(run, rows) for run in system.runs])
        for system in systems
    ]
    scorer, metric_notes = _drop_unstored_metrics(scorer, systems, system_scores)
    positive = find_positive_label(scorer.task, scorer.recipe, scorer.labels)
    notes += [*metric_notes, *describe_positive_label(scorer.recipe.metrics, positive)]
    if gate:
        # An unknown metric is an error before the resampling, which takes longer.
        gate.choose(scorer, system_scores[0])
    notes += [f"{system.name}: left out {', '.join(system.unfinished)}." for system in systems if system.unfinished]
    notes += [ONE_SEED] * (not systems[0].has_seeds and any(system.runs[0].seed is not None for system in systems))

    # 4. Compare each system with the first.
    names = _short_names([system.name for system in systems])
    differences: dict[str, dict[str, Difference]] = {}
    changes: dict[str, Changes] = {}
    for name, scores in zip(names[1:], system_scores[1:], strict=True):
        with stage(f"comparing {name} with {names[0]}", total=1):
            differences[name] = compare_systems(scorer, system_scores[0], scores)
            changes[name] = find_changes(scorer, rows, (system_scores[0], scores), slice_columns, max_rows)
    # Gates correct p values themselves, so they read the uncorrected ones.
    scores_by_name = dict(zip(names, system_scores, strict=True))
    gates = judge_systems(scorer, rows, scores_by_name, differences, slice_columns, gate)
    # With several systems, some p-value is low by chance, so correct all tests of a metric together (Holm 1979).
    corrected_differences: dict[str, dict[str, Difference]] = {name: {} for name in differences}
    for metric in differences[names[1]]:
        family = correct_differences([by_metric[metric] for by_metric in differences.values()])
        for name, difference in zip(differences, family, strict=True):
            corrected_differences[name][metric] = difference

    # 5. Collect the result. The seeds of a system have the same settings, so read them from its first run.
    first_runs = {name: system.runs[0] for name, system in zip(names, systems, strict=True)}
    return Comparison(
        recipe=scorer.recipe.name,
        task=scorer.recipe.task,
        split=data or systems[0].runs[0].split,
        rows=len(rows),
        units=count_examples(system_scores[0].row_scores[0]),
        best_metric=scorer.recipe.best_metric,
        systems=[_describe_system(scorer, *parts) for parts in zip(names, systems, system_scores, strict=True)],
        differences=corrected_differences,
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
    run_systems = [system for system in systems if not system.has_seeds]
    if run_systems and len(run_systems) < len(systems):
        seed_system = next(system for system in systems if system.has_seeds)
        message = f"{run_systems[0].name} is one run, and {seed_system.name} has several seeds"
        remedy = f"train it with --seeds, or name one run: {seed_system.runs[0].name}"
        raise UsageError(message, remedy)
    for system in systems:
        if system.has_seeds and len(system.runs) < 2:
            message = f"only {system.runs[0].name} is finished, and the spread of seeds needs at least two"
            raise UsageError(message, "repeat the command that trains them", file=system.name)


def _drop_unstored_metrics(
    scorer: StoredPredictionScorer, systems: Sequence[StoredSystem], system_scores: Sequence[SystemScores]
) -> tuple[StoredPredictionScorer, list[str]]:
    """Drop the metrics whose score from the stored predictions differs from the recorded score of a run.

    Such a metric needs more than the stored predictions, for example probabilities.

    Returns:
        The scorer without these metrics, and notes about them.

    Raises:
        DataError: If the best metric would be dropped.
    """
    runs_by_metric: dict[str, StoredRun] = {}
    for system, scores in zip(systems, system_scores, strict=True):
        for run, row_scores in zip(system.runs, scores.row_scores, strict=True):
            runs_by_metric |= dict.fromkeys(find_changed_scores(run, scorer.score(row_scores)), run)
    metrics = [name for name in scorer.recipe.metrics if name not in runs_by_metric]
    best_metric = scorer.recipe.best_metric
    if best_metric in runs_by_metric:
        message = f"the stored predictions do not give the {best_metric} that the run recorded"
        remedy = "score the model again with `bertkit eval --output DIR`, and compare that folder"
        raise DataError(message, remedy, file=runs_by_metric[best_metric].file)
    notes = [f"{name}: left out, because stored predictions do not determine it." for name in runs_by_metric]
    return replace(scorer, recipe=scorer.recipe.model_copy(update={"metrics": metrics})), notes


def _describe_system(
    scorer: StoredPredictionScorer, name: str, system: StoredSystem, system_scores: SystemScores
) -> ComparedSystem:
    """Collect the scores of a system; only a single run gets intervals over rows."""
    run_scores = [scorer.score(row_scores) for row_scores in system_scores.row_scores]
    scores = {metric: float(np.mean([scores[metric] for scores in run_scores])) for metric in run_scores[0]}
    if system.has_seeds:
        seed_scores = {metric: [float(scores[metric]) for scores in run_scores] for metric in scores}
        return ComparedSystem(name, [run.seed for run in system.runs], scores, {}, seed_scores)
    intervals = find_intervals(scorer.task.METRICS, run_scores[0], system_scores.row_scores[0], scorer.score)
    return ComparedSystem(name, [system.runs[0].seed], scores, intervals.ends)


def _short_names(names: Sequence[str]) -> list[str]:
    """Return paths without their common parent folders.

    >>> _short_names(["runs/a", "runs/b"]), _short_names(["runs/a/seed-1", "runs/b/seed-1"])
    (['a', 'b'], ['a/seed-1', 'b/seed-1'])
    """
    parts = [Path(name).parts for name in names]
    # Count the parent folders that all paths share. The loop ends because no two paths are equal.
    num_shared = 0
    while len({name_parts[: num_shared + 1] for name_parts in parts}) == 1:
        num_shared += 1
    return [
        str(Path(*name_parts[num_shared:])) if len(name_parts) > num_shared else name
        for name_parts, name in zip(parts, names, strict=True)
    ]


def write_page(file: Path, comparison: Comparison) -> None:
    """Write a page with scores, curves, settings and rows of compared runs."""
    from bertkit.reports.compare import write_comparison

    logs = {name: [read_log(Path(folder)) for folder in folders] for name, folders in comparison.folders.items()}
    write_comparison(file, comparison, logs)


def predict_unseen(
    systems: Sequence[StoredSystem], source: str, split: str | None
) -> tuple[list[StoredSystem], Recipe, list[str]]:
    """Predict the rows of a source that no run was trained on. Each run reads them with its own recipe and columns.

    Args:
        systems: Runs with their models.
        source: File, which is read completely, or another source of rows as in ``data.source``.
        split: Split of the source.

    Returns:
        Systems with these predictions instead of the stored ones; recipe of the first run with this source; and notes
        on rows that were left out, and on labels that a run does not have.

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
            checkpoints[-1].append(find_checkpoint(recipe.changed("data", files={}, limit=None)))

    # 2. Read the rows once per run, because recipes can have different columns. Accept the labels of all runs: a row
    #    whose label one run lacks is scored too.
    labels = tuple(dict.fromkeys(name for members in checkpoints for info in members for name in info.labels))
    splits: list[list[Split]] = []
    with stage(f"reading {source}", total=1):
        for members in checkpoints:
            splits.append([])
            for info in members:
                split_name = split or (ALL if unsplit_file(info.recipe.data) else "validation")
                to_score = splits_to_score(replace(info, labels=labels), split_name)
                splits[-1].append(resolve_overlap(replace(info, labels=labels), to_score, "mark")[split_name])

    # 3. Leave out the training rows of any run, so that every system answers the same rows. All runs read the same
    #    file, so line numbers identify rows.
    training_lines = [{part.lines[row] for part in parts for row in part.training_rows} for parts in splits]
    seen_lines, count = set().union(*training_lines), len(splits[0][0].rows)
    counts = ", ".join(f"{system.name} {len(lines):,}" for system, lines in zip(systems, training_lines, strict=True))
    notes = []
    if seen_lines:
        notes.append(
            f"left out of {source}: {len(seen_lines):,} of {count:,} rows that a run was trained on ({counts})."
        )
    if len(seen_lines) == count:
        message = f"all {count:,} rows are training rows of a run ({counts})"
        raise DataError(message, "name a file with rows that are new to all runs: --data FILE", file=source)

    # 4. Predict the remaining rows.
    predicted_systems = []
    for system, members, parts in zip(systems, checkpoints, splits, strict=True):
        run_parts = zip(system.runs, members, parts, strict=True)
        runs = [_predict_rows(run, info, split, seen_lines, labels) for run, info, split in run_parts]
        predicted_systems.append(replace(system, runs=runs))
        if missing_labels := [name for name in labels if name not in members[0].labels]:
            names = shorten(", ".join(missing_labels))
            notes.append(f"{system.name} was not trained on {names}: rows with these labels count as wrong.")
    recipe = checkpoints[0][0].recipe
    return predicted_systems, recipe.model_copy(update={"labels": list(labels)}) if recipe.labels else recipe, notes


def _predict_rows(
    run: StoredRun, info: CheckpointInfo, split: Split, seen_lines: set[int], labels: Sequence[str]
) -> StoredRun:
    """Predict rows as `eval` does. Gold values are ignored, because a run may lack some of the labels."""
    indices = [index for index, line in enumerate(split.lines) if line not in seen_lines]
    rows = split.select(indices)
    inputs = rows.without(info.task.COLUMNS.gold)
    with stage(f"loading {info.recipe.model_name}"):
        checkpoint = info.load(inference=True)
    features = encode_split(inputs, checkpoint.context, info.task.encode)
    outputs, _ = run_model(checkpoint, features, f"scoring {run.name}")
    predictions = decode_rows(info.task, outputs, features, inputs.rows, checkpoint.context)
    records = offload_to_disk(
        {"id": index, **row, **prediction}
        for index, row, prediction in zip(indices, rows.rows, predictions, strict=True)
    )
    record: RunRecord = {**run.record, "split": split.name, "identity": {**run.record["identity"]}}
    if info.task.HAS_LABEL_NAMES:
        record["identity"]["labels"] = list(labels)
    return replace(run, record=record, predictions=records)

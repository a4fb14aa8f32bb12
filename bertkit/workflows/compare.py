"""Compare finished runs by their stored predictions: differences, how sure they are, and where they come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from bertkit.data.rows import Split
from bertkit.data.sources import ALL, unsplit_file
from bertkit.errors import DataError, UsageError, shorten
from bertkit.evaluation.checkpoint import SavedCheckpoint, find_checkpoint
from bertkit.evaluation.differences import Changes, Extra, Side, find_changes
from bertkit.evaluation.gates import WorseGate, compare_sides, judge_systems
from bertkit.evaluation.scoring import decode_rows, find_positive_label, run_model
from bertkit.evaluation.splits import count_trained, judge_training_rows
from bertkit.evaluation.stored import (
    Scorer,
    StoredRun,
    StoredSystem,
    find_changed_scores,
    find_scorer,
    read_system,
    recipe_of,
)
from bertkit.evaluation.stored.rows import align, read_column, read_rows
from bertkit.metrics.basic import describe_positive_label
from bertkit.metrics.intervals import count_units, find_intervals, take
from bertkit.metrics.paired import Difference, holm
from bertkit.progress import stage
from bertkit.recipe import Recipe, Row, typed_path
from bertkit.reports.cases import Case
from bertkit.reports.text import ONE_SEED
from bertkit.storage.cache import spool
from bertkit.storage.run_list import list_settings, read_log
from bertkit.storage.runs import RunRecord
from bertkit.tokens.feature_cache import encode_split
from bertkit.workflows.evaluate import splits_to_score


@dataclass(frozen=True)
class CompareSettings:
    """What is looked at, beside what always is.

    Args:
        by: a column of the data to slice by.
        shown: how many rows that are won, and lost, to show.
        gate: by how much no run may be worse than the first, in all rows and in each slice of `by`.
    """

    by: str | None = None
    shown: int = 5
    gate: WorseGate | None = None


@dataclass(frozen=True)
class ComparedSystem:
    """One of the compared runs, or folders of seeds: its scores, means over seeds where it has several."""

    name: str
    seeds: list[int | None]
    scores: dict[str, float]
    intervals: dict[str, tuple[float, float] | None]
    seed_scores: dict[str, list[float]] = field(default_factory=dict)
    """Metric -> its score for each seed; empty for a single run."""


@dataclass(frozen=True)
class Comparison:
    """Several systems beside the first, which is the baseline, on the same rows."""

    recipe: str
    task: str
    split: str
    rows: int
    units: int
    """What was resampled: rows, or queries."""
    best_metric: str
    systems: list[ComparedSystem]
    differences: dict[str, dict[str, Difference]]
    """Name of a system -> metric -> its difference from the baseline."""
    changes: dict[str, Changes]
    """Name of a system -> where it differs from the baseline."""
    settings: list[dict[str, str]]
    """What differs between the runs: `setting`, and the value of each system by its name."""
    notes: list[str]
    folders: dict[str, list[str]]
    """Name of a system -> the folders of its runs."""
    gates: list[Case] = field(default_factory=list)


def compare(
    paths: Sequence[str | Path],
    settings: CompareSettings = CompareSettings(),
    *,
    recipe: Recipe | None = None,
    split: str | None = None,
    on: str | None = None,
) -> Comparison:
    """Compare runs with the first of them; see `bertkit.metrics.paired`.

    Args:
        paths: run folders, folders of seeds, or what `bertkit eval --output` has written; at least two.
        settings: what is looked at.
        recipe: whose metrics to compare; that of the first run by default.
        split: whose predictions to compare; the first validation split by default.
        on: a file, or another source of rows: the runs are scored on those of its rows that none was trained on.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    if len(paths) < 2:
        raise UsageError("one run has nothing to be compared with", "name two or more")
    if len({typed_path(path).resolve() for path in paths}) < len(paths):
        raise UsageError("a run is named twice", "name each once")
    # Without --on, nothing is computed: the predictions of the runs are on disk, and no model is loaded.
    with stage("reading the predictions", total=1):
        systems = [read_system(path, None if on else split) for path in paths]
        _check_seeds(systems)
    notes: list[str] = []
    # With --on, the models answer the rows of the file first, and their answers take the place of stored ones.
    if on is not None:
        systems, of_run, notes = predict_unseen(systems, on, split)
        recipe = recipe.model_copy(update={"data": of_run.data}) if recipe else of_run
    with stage("reading the rows", total=1):
        # Scores are paired, so all systems answer the same rows in the same order: those of the first that has rows.
        scorer = find_scorer(systems, recipe)
        reference = next((run for one in systems for run in one.runs if run.has_rows), systems[0].runs[0])
        bare = [run.name for one in systems for run in one.runs if not run.has_rows]
        notes += [f"{name}: it has no rows, and is read as answers to those of {reference.name}." for name in bare]
        systems = [replace(one, runs=[align(run, reference, scorer.task) for run in one.runs]) for one in systems]
        rows = read_rows(reference, scorer.task)
        by = settings.by
        extra = {} if by is None else {by: read_column(by, scorer, systems[0].runs[0], rows)}
    compared = _compare_systems(scorer, systems, rows, extra, settings)
    return replace(compared, split=on or compared.split, notes=notes + compared.notes)


def _compare_systems(
    scorer: Scorer, systems: Sequence[StoredSystem], rows: Sequence[Row], extra: Extra, settings: CompareSettings
) -> Comparison:
    # Predictions are compared with gold values once; all resamples below only index and add up these arrays.
    sides = [
        Side([run.predictions for run in system.runs], [scorer.compare(run, rows) for run in system.runs])
        for system in systems
    ]
    scorer, notes = _leave_out_unstored(scorer, systems, sides)
    positive = find_positive_label(scorer.task, scorer.recipe, scorer.labels)
    notes += describe_positive_label(scorer.recipe.metrics, positive)
    if settings.gate:
        # a wrong name is told before anything is compared
        settings.gate.choose(scorer, sides[0])
    notes += [f"{system.name}: left out {', '.join(system.unfinished)}." for system in systems if system.unfinished]
    notes += [ONE_SEED] * (not systems[0].has_seeds and any(system.runs[0].seed is not None for system in systems))
    names = _short_names([system.name for system in systems])
    first_runs = {name: system.runs[0] for name, system in zip(names, systems, strict=True)}
    # Each system is compared with the first alone; the p values of all these tests are corrected together at the end.
    differences: dict[str, dict[str, Difference]] = {}
    changes: dict[str, Changes] = {}
    for name, side in zip(names[1:], sides[1:], strict=True):
        with stage(f"comparing {name} with {names[0]}", total=1):
            differences[name] = compare_sides(scorer, sides[0], side)
            changes[name] = find_changes(scorer, rows, (sides[0], side), extra, settings.shown)
    return Comparison(
        recipe=scorer.recipe.name,
        task=scorer.recipe.task,
        split=systems[0].runs[0].split,
        rows=len(rows),
        units=count_units(sides[0].judged[0]),
        best_metric=scorer.recipe.best_metric,
        systems=[
            _describe_system(scorer, name, system, side)
            for name, system, side in zip(names, systems, sides, strict=True)
        ],
        differences=_correct_p_values(differences),
        changes=changes,
        settings=count_trained({name: run.file.parent for name, run in first_runs.items()})
        + list_settings({name: run.record for name, run in first_runs.items()}),
        notes=notes,
        folders={
            name: [str(run.file.parent) for run in system.runs] for name, system in zip(names, systems, strict=True)
        },
        gates=judge_systems(scorer, rows, dict(zip(names, sides, strict=True)), differences, extra, settings.gate),
    )


def _check_seeds(systems: Sequence[StoredSystem]) -> None:
    """Check that all systems are single runs, or all have at least two seeds."""
    single = [system for system in systems if not system.has_seeds]
    if single and len(single) < len(systems):
        several = next(system for system in systems if system.has_seeds)
        what = f"{single[0].name} is one run, and {several.name} has several seeds"
        remedy = f"train it with --seeds, or name one run: {several.runs[0].name}"
        raise UsageError(what, remedy)
    for system in systems:
        if system.has_seeds and len(system.runs) < 2:
            what = f"only {system.runs[0].name} is finished, and the spread of seeds takes at least two"
            raise UsageError(what, "repeat the command that trains them", file=system.name)


def _leave_out_unstored(
    scorer: Scorer, systems: Sequence[StoredSystem], sides: Sequence[Side]
) -> tuple[Scorer, list[str]]:
    """Leave out the metrics that stored predictions do not determine: those that differ from the record of their run.

    Raises:
        DataError: no metric is left, or the one that counts is left out.
    """
    # A metric may need more than what is stored, as one that reads probabilities does. Scoring each run again tells.
    changed: dict[str, StoredRun] = {}
    for system, side in zip(systems, sides, strict=True):
        for run, judged in zip(system.runs, side.judged, strict=True):
            changed |= dict.fromkeys(find_changed_scores(run, scorer.score(judged)), run)
    unchanged = [name for name in scorer.recipe.metrics if name not in changed]
    best = scorer.recipe.best_metric
    if best in changed:
        what = f"the predictions do not have the {best} that the run has recorded: they are not those that it wrote"
        remedy = "score the model again with `bertkit eval --output DIR`, and compare that folder"
        raise DataError(what, remedy, file=changed[best].file)
    recipe = scorer.recipe.model_copy(update={"metrics": unchanged})
    notes = [f"{', '.join(changed)}: left out, for stored predictions do not determine it."] if changed else []
    return replace(scorer, recipe=recipe), notes


def _describe_system(scorer: Scorer, name: str, system: StoredSystem, side: Side) -> ComparedSystem:
    """Collect the scores of a system, with the intervals over rows of a single run."""
    per_run = [scorer.score(judged) for judged in side.judged]
    scores = {metric: float(np.mean([scores[metric] for scores in per_run])) for metric in per_run[0]}
    if system.has_seeds:
        own = {metric: [float(scores[metric]) for scores in per_run] for metric in scores}
        return ComparedSystem(name, [run.seed for run in system.runs], scores, {}, own)
    judged = side.judged[0]
    found = find_intervals(per_run[0], lambda rows: scorer.score(take(judged, rows)), count_units(judged))
    return ComparedSystem(name, [system.runs[0].seed], scores, found.ends)


def _correct_p_values(differences: dict[str, dict[str, Difference]]) -> dict[str, dict[str, Difference]]:
    """Correct the p of several comparisons with one baseline, metric by metric; a single one needs no correction."""
    if len(differences) < 2:
        return differences
    corrected = {name: dict(of_system) for name, of_system in differences.items()}
    for metric in next(iter(differences.values())):
        p_values = holm([of_system[metric].p for of_system in differences.values()])
        for of_system, p in zip(corrected.values(), p_values, strict=True):
            of_system[metric] = replace(of_system[metric], p_holm=p)
    return corrected


def _short_names(names: Sequence[str]) -> list[str]:
    """Return paths without the folders above that all of them share.

    >>> _short_names(["runs/a", "runs/b"]), _short_names(["runs/a/seed-1", "runs/b/seed-1"])
    (['a', 'b'], ['a/seed-1', 'b/seed-1'])
    """
    parts = [Path(name).parts for name in names]
    shared = 0
    while len({of_name[: shared + 1] for of_name in parts}) == 1:
        shared += 1
    return [
        str(Path(*of_name[shared:])) if len(of_name) > shared else name
        for of_name, name in zip(parts, names, strict=True)
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
        systems: runs whose models are there.
        source: a file, of which all rows are taken, or another source of rows as ``data.source`` names one.
        split: which rows of it to take.

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
    # A label that one run lacks is still a label of the rows: all runs read them with the labels of all.
    saved = [[find_checkpoint(_with_source(run, source)) for run in system.runs] for system in systems]
    labels = tuple(dict.fromkeys(name for of_system in saved for one in of_system for name in one.labels))
    with stage(f"reading {source}", total=1):
        read = [[_read_unseen(replace(one, labels=labels), split) for one in of_system] for of_system in saved]
    # What any run was trained on is left out for all, so that every system answers the same rows.
    trained = [{part.lines[row] for part in parts for row in part.training_rows} for parts in read]
    seen, count = set().union(*trained), len(read[0][0].rows)
    counts = ", ".join(f"{system.name} {len(lines):,}" for system, lines in zip(systems, trained, strict=True))
    notes = (
        [f"left out of {source}: {len(seen):,} of {count:,} rows that a run was trained on ({counts})."] if seen else []
    )
    if len(seen) == count:
        what = f"all {count:,} rows are training rows of one run or another ({counts})"
        raise DataError(what, "name a file with rows that are new to all of them: --on FILE", file=source)
    predicted = []
    for system, of_system, parts in zip(systems, saved, read, strict=True):
        runs = [
            _predict_unseen(run, one, part, seen, labels)
            for run, one, part in zip(system.runs, of_system, parts, strict=True)
        ]
        predicted.append(replace(system, runs=runs))
        if missing := [name for name in labels if name not in of_system[0].labels]:
            notes.append(f"{system.name} does not know {shorten(', '.join(missing))}: it answers no such row right.")
    recipe = saved[0][0].recipe
    return predicted, recipe.model_copy(update={"labels": list(labels)}) if recipe.labels else recipe, notes


def _with_source(run: StoredRun, source: str) -> Recipe:
    """Return the recipe of a run with its model, and with all rows of another source."""
    recipe = recipe_of(run, {"model": run.model, "data.source": source})
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"files": {}, "limit": None})})


def _read_unseen(saved: SavedCheckpoint, split: str | None) -> Split:
    """Read the rows to score, with those marked that the run was trained on."""
    chosen = split or (ALL if unsplit_file(saved.recipe.data) else "validation")
    return judge_training_rows(saved, splits_to_score(saved, chosen), "keep")[chosen]


def _predict_unseen(
    run: StoredRun, saved: SavedCheckpoint, split: Split, left_out: set[int], labels: Sequence[str]
) -> StoredRun:
    """Predict rows as `eval` does, but without their gold values: a run need not have all labels."""
    gold = saved.task.COLUMNS.gold
    numbers = [index for index, line in enumerate(split.lines) if line not in left_out]
    rows = split.select(numbers)
    inputs = rows.without(gold)
    with stage(f"loading {saved.recipe.model_name}"):
        checkpoint = saved.load(inference=True)
    features = encode_split(inputs, checkpoint.setup, saved.task.encode)
    outputs, _ = run_model(checkpoint, features, f"scoring {run.name}")
    predictions = decode_rows(saved.task, outputs, features, inputs.rows, checkpoint.setup)
    records = spool(
        {"id": number, **row, **prediction}
        for number, row, prediction in zip(numbers, rows.rows, predictions, strict=True)
    )
    # From here on it passes for a stored run of these rows, whose labels are those of all systems.
    record: RunRecord = {**run.record, "split": split.name, "identity": {**run.record["identity"]}}
    if saved.task.NAMED:
        record["identity"]["labels"] = list(labels)
    return replace(run, record=record, predictions=records)

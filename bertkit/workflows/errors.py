"""Wrong rows of a run, and slices with significantly more errors than the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bertkit.analysis.outcomes import SORTS, RowAnswer, find_outcomes
from bertkit.analysis.slices import ComparedSlice, collect_words, compare_groups, find_slices
from bertkit.data.sources import use_recorded_data
from bertkit.errors import BertkitError, UsageError
from bertkit.evaluation.splits import read_task_splits
from bertkit.evaluation.stored_predictions import (
    StoredPredictionScorer,
    StoredRun,
    find_scorer,
    read_column,
    read_rows,
    read_system,
)
from bertkit.metrics.slices import choose_test
from bertkit.progress import stage
from bertkit.recipe.load import FOLDER_RECIPE, load_recipe
from bertkit.recipe.records import Recipe
from bertkit.recipe.sections import Row
from bertkit.storage import runs
from bertkit.storage.disk import sort_on_disk
from bertkit.tasks import Task


@dataclass(frozen=True, kw_only=True)
class Mistakes:
    """Wrong rows of a run, and its slices."""

    recipe: str
    task: str
    split: str
    rows: int
    units: int
    """Number of rows, or of queries."""
    what: str
    """Meaning of a rate."""
    test: str
    slices: list[ComparedSlice]
    """Sorted by p; slices that were not tested are last."""
    notes: list[str]
    run: str
    rate: float
    wrong: int
    """Number of units with an error."""
    scores: dict[str, float]
    mistakes: Sequence[RowAnswer]
    """All wrong rows, sorted."""


def find_errors(
    path: str | Path,
    *,
    split: str | None = None,
    by: Sequence[str] = (),
    sort: str = "confidence",
    recipe: Recipe | None = None,
) -> Mistakes:
    """Find the wrong answers of a run in its stored predictions.

    Args:
        path: A run folder, or the output of `bertkit eval --output`.
        split: Split whose predictions are read.
        by: Columns of the data to slice by.
        sort: Order of the wrong rows: ``confidence``, ``length``, ``label`` or ``error``.
        recipe: Recipe of the task; the run's by default.

    Raises:
        BertkitError: If the predictions or the rows cannot be read; see `bertkit.errors`.
    """
    # 1. Compare the stored predictions with the gold values.
    with stage("reading the predictions", total=1):
        scorer, run, rows = read_predictions(path, split, recipe)
        outcomes = find_outcomes(scorer, run, rows)

    # 2. Test which slices, such as long texts or one label, have more errors than the other rows. One slice has the
    #    rows with words that no training row has, if the training rows can still be read.
    with stage("testing slices", total=1):
        slice_columns = {column: read_column(column, scorer, run, rows) for column in by}
        training_words, notes = _read_training_words(run, scorer.task)
        groups = find_slices(scorer, rows, outcomes.units, known_words=training_words, extra=slice_columns)
        slices = compare_groups(outcomes, groups)

    # 3. Collect the result. Sort wrong rows on disk, because there can be millions.
    return Mistakes(
        recipe=scorer.recipe.name,
        task=scorer.recipe.task,
        split=run.split,
        rows=len(rows),
        units=len(outcomes.units),
        what=outcomes.rate_name,
        test=choose_test(outcomes.errors, outcomes.decisions)[0],
        slices=slices,
        notes=notes,
        run=str(path),
        rate=outcomes.rate,
        wrong=int((outcomes.errors > 0).sum()),
        scores={name: float(value) for name, value in scorer.score(scorer.compare(run, rows)).items()},
        mistakes=sort_on_disk((answer for answer in outcomes.answers if answer.error > 0), SORTS[sort]),
    )


def read_predictions(
    path: str | Path, split: str | None = None, recipe: Recipe | None = None
) -> tuple[StoredPredictionScorer, StoredRun, Sequence[Row]]:
    """Read the stored predictions of a run, the scorer of its task, and its rows.

    Raises:
        UsageError: If the path is a folder of seeds.
        BertkitError: If the predictions cannot be read; see `bertkit.errors`.
    """
    system = read_system(path, split)
    if system.has_seeds:
        raise UsageError("a folder of seeds", f"name one of them: {system.runs[0].name}", file=system.name)
    scorer, run = find_scorer([system], recipe), system.runs[0]
    return scorer, run, read_rows(run, scorer.task)


def _read_training_words(run: StoredRun, task: Task) -> tuple[set[str] | None, list[str]]:
    """Return the words of the rows that the model was trained on, or None and a note if these cannot be read."""
    folder, reason = Path(run.model), "the model is not a run of bertkit"
    try:
        # The recipe of an evaluation has the scored rows as its data, so the recipe of the model's run is read instead.
        if run.model and (record := runs.read_record(folder)):
            recipe = use_recorded_data(load_recipe(str(folder / FOLDER_RECIPE)), record["identity"])
            splits = read_task_splits(recipe, task, lambda name: name == "train")
            if "train" in splits:
                return collect_words(splits["train"].rows, task.COLUMNS), []
            reason = "there is no train split"
    except BertkitError as error:
        reason = error.message
    return None, [f"Rare words are words that occur once in these rows; the training rows are unknown: {reason}."]

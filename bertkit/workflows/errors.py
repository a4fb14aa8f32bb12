"""What a run gets wrong, where its mistakes crowd, which small changes flip its answers; where two runs differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path
from typing import Any

from bertkit.errors import BertkitError, UsageError
from bertkit.evaluation.checkpoint import open_trained
from bertkit.evaluation.splits import read_task_splits
from bertkit.evaluation.stored import Scorer, StoredRun, find_scorer, read_system
from bertkit.evaluation.stored.rows import align, read_column, read_rows
from bertkit.insight.mistakes.outcomes import Outcomes, RowAnswer, find_outcomes, sort_answers, sort_pairs
from bertkit.insight.mistakes.robustness import Robustness, measure_robustness, write_cases_file
from bertkit.insight.mistakes.slices import ComparedSlice, compare_groups, find_slices, words_of
from bertkit.metrics import Numbers
from bertkit.metrics.slices import choose_test
from bertkit.progress import stage
from bertkit.recipe import Recipe, Row, typed_path
from bertkit.storage import runs


@dataclass(frozen=True)
class ErrorSettings:
    """What is looked at, beside what always is."""

    split: str | None = None
    by: Sequence[str] = ()
    """Columns of the data to slice by."""
    sort: str = "confidence"
    """``confidence``, ``length``, ``label`` or ``error``."""
    robustness: bool = False
    """Change the inputs a little, and predict them again; needs the model."""
    limit: int = 500
    """Rows whose inputs are changed."""
    cases: Path | None = None
    """File to write with tests to start from: the wrong rows, and small changes."""


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What is found in the answers to the same rows, of one run or of two."""

    recipe: str
    task: str
    split: str
    rows: int
    units: int
    """Rows, or queries."""
    what: str
    """What is a rate."""
    test: str
    slices: list[ComparedSlice]
    """The smallest p first; those that were not tested last. Of two runs, rates are the second's less the first's."""
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Mistakes(Findings):
    """What a run gets wrong."""

    run: str
    rate: float
    wrong: int
    """Units with an error."""
    scores: dict[str, float]
    mistakes: Sequence[RowAnswer]
    """All wrong rows, sorted."""
    robustness: Robustness | None = None


@dataclass(frozen=True, kw_only=True)
class Disagreement(Findings):
    """Where the answers of two runs differ: which is wrong where the other is right, or less wrong."""

    first: str
    second: str
    rates: tuple[float, float]
    both_right: int
    both_wrong: int
    only_first_wrong: Sequence[tuple[RowAnswer, RowAnswer]]
    """The answers of both to the units where the first is more wrong, sorted."""
    only_second_wrong: Sequence[tuple[RowAnswer, RowAnswer]]


def find_errors(
    path: str | Path, settings: ErrorSettings = ErrorSettings(), *, recipe: Recipe | None = None
) -> Mistakes:
    """Find what a run gets wrong, from the predictions that it has stored.

    Args:
        path: a run folder, or what `bertkit eval --output` has written.
        settings: what is looked at.
        recipe: whose task it is; that of the run by default.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    _check_settings(settings)
    # Only robustness needs the model; all else is read from the predictions that the run has stored.
    folder = _find_model(path) if settings.robustness else None
    with stage("reading the predictions", total=1):
        scorer, (run,), rows = read_predictions([path], settings.split, recipe)
        outcomes = find_outcomes(scorer, run, rows)
    findings = _compare_slices(scorer, run, rows, outcomes, None, settings)
    if settings.cases is not None:
        write_cases_file(settings.cases, str(path), outcomes.wrong_rows(rows))
    robustness = None
    if folder is not None:
        robustness = measure_robustness(open_trained(str(folder)).recipe, rows, limit=settings.limit)
    return Mistakes(
        **findings,
        run=str(path),
        rate=outcomes.rate,
        wrong=int((outcomes.errors > 0).sum()),
        scores={name: float(value) for name, value in scorer.score(scorer.compare(run, rows)).items()},
        mistakes=sort_answers((answer for answer in outcomes.answers if answer.error > 0), settings.sort),
        robustness=robustness,
    )


def find_disagreement(
    first: str | Path, second: str | Path, settings: ErrorSettings = ErrorSettings(), *, recipe: Recipe | None = None
) -> Disagreement:
    """Find where two runs differ on the same rows; `bertkit.workflows.compare` tells which is better.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    _check_settings(settings)
    if settings.robustness or settings.cases:
        raise UsageError(f"--{'robustness' if settings.robustness else 'write-cases'} is for one run", "name one")
    if typed_path(first).resolve() == typed_path(second).resolve():
        raise UsageError("a run is named twice", "name two that differ")
    with stage("reading the predictions", total=1):
        scorer, runs, rows = read_predictions([first, second], settings.split, recipe)
        aligned = [runs[0], align(runs[1], runs[0], scorer.task)]
        sides = [find_outcomes(scorer, run, rows) for run in aligned]
    difference = sides[1].errors - sides[0].errors
    # a tagger's decisions depend on what it predicts: those of both runs count half
    shared = replace(sides[0], decisions=(sides[0].decisions + sides[1].decisions) / 2)
    only_first, only_second = (
        sort_pairs(compress(zip(sides[0].answers, sides[1].answers, strict=True), is_worse), settings.sort, side)
        for side, is_worse in enumerate((difference < 0, difference > 0))
    )
    return Disagreement(
        **_compare_slices(scorer, runs[0], rows, shared, difference, settings),
        first=str(first),
        second=str(second),
        rates=(sides[0].rate, sides[1].rate),
        both_right=int(((sides[0].errors == 0) & (sides[1].errors == 0)).sum()),
        both_wrong=int(((sides[0].errors > 0) & (sides[1].errors > 0)).sum()),
        only_first_wrong=only_first,
        only_second_wrong=only_second,
    )


def _check_settings(settings: ErrorSettings) -> None:
    if settings.limit < 1:
        raise UsageError(f"--limit {settings.limit} leaves no rows", "give at least 1")


def _find_model(path: str | Path) -> Path:
    """Return the folder of a run whose model can predict again.

    Raises:
        UsageError: it is no run.
    """
    folder = typed_path(path)
    if folder.is_file() or runs.read_record(folder) is None:
        what = "changed rows are predicted again, which needs the model of a run"
        raise UsageError(what, "name a run folder, or leave --robustness out", file=folder)
    return folder


def read_predictions(
    paths: Sequence[str | Path], split: str | None = None, recipe: Recipe | None = None
) -> tuple[Scorer, list[StoredRun], Sequence[Row]]:
    """Read the predictions that runs of one task have stored, what scores them, and their rows.

    Raises:
        UsageError: a folder of seeds.
        BertkitError: any other of the kind that fits; see `bertkit.errors`.
    """
    systems = [read_system(path, split) for path in paths]
    for system in systems:
        if system.has_seeds:
            raise UsageError("a folder of seeds", f"name one of them: {system.runs[0].name}", file=system.name)
    scorer = find_scorer(systems, recipe)
    runs = [system.runs[0] for system in systems]
    return scorer, runs, read_rows(runs[0], scorer.task)


def _compare_slices(
    scorer: Scorer,
    run: StoredRun,
    rows: Sequence[Row],
    outcomes: Outcomes,
    difference: Numbers | None,
    settings: ErrorSettings,
) -> dict[str, Any]:
    """Compare slices of the units by their errors, or by the `difference` of those of two runs.

    Returns:
        The fields of `Findings`.
    """
    with stage("testing slices", total=1):
        extra = {by: read_column(by, scorer, run, rows) for by in settings.by}
        # New words are those that no training row has, where these can still be read.
        known, notes = _training_words(scorer, run)
        groups = find_slices(scorer, rows, outcomes.units, known_words=known, extra=extra)
        return {
            "recipe": scorer.recipe.name,
            "task": scorer.recipe.task,
            "split": run.split,
            "rows": len(rows),
            "units": len(outcomes.units),
            "what": outcomes.what,
            "test": choose_test(outcomes.errors if difference is None else difference, outcomes.decisions)[0],
            "slices": compare_groups(outcomes, groups, errors=difference),
            "notes": notes,
        }


def _training_words(scorer: Scorer, run: StoredRun) -> tuple[set[str] | None, list[str]]:
    """Return the words of the training rows; None and a note where these cannot be read."""
    recipe, task = scorer.recipe, scorer.task
    try:
        if not run.record:
            raise UsageError("stored predictions do not say what their model was trained on")
        splits = read_task_splits(recipe, task, lambda name: name == "train")
        return words_of(splits["train"].rows, task.COLUMNS), []
    except (BertkitError, KeyError) as error:
        why = error.what if isinstance(error, BertkitError) else "there is no train split"
        return None, [f"Words count as rare that occur once in these rows, for the training rows are not there: {why}."]

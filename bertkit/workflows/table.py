"""Tabulate finished runs by model and task: scores, intervals, seeds, and a test of each model against the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from bertkit.errors import BertkitError, UsageError, shorten
from bertkit.metrics.intervals import Interval
from bertkit.metrics.paired import Difference, apply_holm
from bertkit.metrics.registry import is_lower_better
from bertkit.progress import get_progress, stage
from bertkit.recipe.sections import expand_path
from bertkit.storage import runs
from bertkit.storage.run_list import RunSummary, find_runs, list_settings, summarize
from bertkit.storage.run_sets import read_seeds, seed_folders


@dataclass(frozen=True)
class TableCell:
    """Score of a model on a task: the `best_metric` of the recipe, on the split that selected the best step."""

    row: str
    task: str
    metric: str
    folder: str
    score: float | None
    """Score of the run, or the mean over seeds."""
    interval: Interval = None
    """95% interval; for several seeds, it covers the variance over seeds and over rows."""
    seeds: int = 1
    standard_deviation: float | None = None
    """Standard deviation over the seeds."""
    is_best: bool = False
    """Whether no other model has a better score on the same rows."""
    difference: Difference | None = None
    """Difference from the first model on the same rows; ``p_holm`` is set if the task has several differences."""
    lower_is_better: bool = False
    rows_digest: str = field(default="", repr=False)
    """Fingerprint of the scored rows."""

    @property
    def p(self) -> float | None:
        """P-value, corrected if several models are compared with the first."""
        if self.difference is None:
            return None
        return self.difference.p if self.difference.p_holm is None else self.difference.p_holm


@dataclass(frozen=True)
class RunsTable:
    """Table whose rows are models or folders, and whose columns are tasks; pairs without a run have no cell."""

    rows: list[str]
    tasks: list[tuple[str, str]]
    """Columns, as pairs of a task and its metric."""
    cells: list[TableCell]
    notes: list[str]

    def cell(self, row: str, task: tuple[str, str]) -> TableCell | None:
        """Return the cell of a row and a column, or None if the pair has no run."""
        return next((c for c in self.cells if (c.row, (c.task, c.metric)) == (row, task)), None)


def tabulate(paths: Sequence[str | Path], *, rows: Literal["model", "folder"] = "model") -> RunsTable:
    """Tabulate finished runs, and test the models of each task against the first; see `bertkit.metrics.paired`.

    Args:
        paths: Run folders, folders of seeds, or folders that contain them.
        rows: Label of a run's row: ``model`` (the model that the run started from) or ``folder`` (its path in `paths`).

    Raises:
        UsageError: If a path has no runs, no run is finished, or two runs belong to the same row and task.
    """
    # 1. Find the runs. Leave out unfinished runs, with a note; for a folder of seeds, use the finished seeds.
    summaries = [(str(path), run) for path in paths for run in _find_summaries(expand_path(path))]
    finished = {run.folder: (path, run) for path, run in summaries if "finished" in run.state}
    notes = [
        f"{run.folder}: left out ({run.state})." for _, run in summaries if run.state != "finished" and not run.seeds
    ]
    notes += [f"{run.folder}: {run.state}." for _, run in summaries if run.state != "finished" and run.seeds]
    if not finished:
        raise UsageError("no run is finished", "`bertkit runs list` shows how runs ended", file=str(paths[0]))

    # 2. Make a cell per run. Rows and columns are in the order of the paths.
    names = _shorten_names([run.model for _, run in finished.values()])
    cells = [_make_cell(names[run.model] if rows == "model" else path, run) for path, run in finished.values()]
    tasks = list(dict.fromkeys((cell.task, cell.metric) for cell in cells))
    labels = list(dict.fromkeys(cell.row for cell in cells))

    # 3. Test column by column, because only runs of the same task have the same rows.
    tested_cells = []
    for index, task in enumerate(tasks):
        with stage(f"comparing {task[0]}", total=1):
            column = [cell for cell in cells if (cell.task, cell.metric) == task]
            _check_pairs(column)
            column, column_notes = _test_column(sorted(column, key=lambda cell: labels.index(cell.row)), labels[0])
            tested_cells += column
            notes += column_notes
            get_progress().update(index, {})
    return RunsTable(labels, tasks, tested_cells, notes)


def _find_summaries(folder: Path) -> list[RunSummary]:
    """Return the summary of a run or of a folder of seeds, or of all runs that a folder contains."""
    if (run := summarize(folder)) is not None:
        return [run]
    summaries = [run for run in find_runs(folder) if run.recipe]
    if not summaries:
        raise UsageError("no runs in this folder", "`bertkit runs list` shows the runs", file=folder)
    return summaries


def _shorten_names(models: Sequence[str]) -> dict[str, str]:
    """Return the last part of each model's name, or the complete name if two models have the same last part."""
    names = {model: Path(model).name for model in models}
    return {model: name if list(names.values()).count(name) == 1 else model for model, name in names.items()}


def _make_cell(row: str, run: RunSummary) -> TableCell:
    """Return the cell of a run or of a folder of seeds, without comparisons."""
    folder, score, interval, seeds, deviation = Path(run.folder), run.score, run.interval, run.seeds or 1, None
    # All seeds are scored on the same rows, so the first finished run shows which rows these are.
    records = filter(None, map(runs.read_record, seed_folders(folder) if run.seeds else [folder]))
    record = next(record for record in records if record["status"] == "finished")
    result: Mapping[str, Any] = (record.get("results") or [{}])[0]
    splits = ((read_seeds(folder) if run.seeds else None) or {"splits": []})["splits"]
    # The summary with the interval over seeds is written when all seeds have been trained.
    if splits and (spread := splits[0]["spreads"].get(run.metric)) is not None:
        score, interval, seeds = spread["mean"], spread["interval"], spread["runs"]
        deviation = spread["standard_deviation"]
    return TableCell(
        row=row,
        task=run.recipe,
        metric=run.metric,
        folder=run.folder,
        score=score,
        interval=(interval[0], interval[1]) if interval else None,
        seeds=seeds,
        standard_deviation=deviation,
        lower_is_better=run.lower_is_better or is_lower_better(run.metric),
        rows_digest=str(record["identity"].get("data", {}).get(result.get("split", "validation"), "")),
    )


def _check_pairs(column: Sequence[TableCell]) -> None:
    """Check that each row has at most one run of a task."""
    cells_by_row: dict[str, TableCell] = {}
    for cell in column:
        first_cell = cells_by_row.setdefault(cell.row, cell)
        if first_cell is not cell:
            records = {run.folder: runs.read_record(Path(run.folder)) or {} for run in (first_cell, cell)}
            settings = [row["setting"] for row in list_settings(records)]
            message = f"{first_cell.folder} and {cell.folder} are both {cell.task} with {cell.row}"
            names = shorten(", ".join(settings) or "nothing", 80)
            remedy = "name one of them, or --rows folder; runs of `finetune --seeds` are averaged"
            raise UsageError(f"{message}, and differ in {names}", remedy)


def _test_column(column: list[TableCell], first: str) -> tuple[list[TableCell], list[str]]:
    """Mark the best score of a task and test each model against the first; if this fails, a note gives the reason."""
    task = column[0].task
    if len({cell.rows_digest for cell in column}) > 1:
        return column, [f"{task}: scored on different rows, so not compared."]
    if len(column) < 2:
        return column, []
    scores = [cell.score for cell in column if cell.score is not None]
    best = (min if column[0].lower_is_better else max)(scores, default=None)
    column = [replace(cell, is_best=cell.score is not None and cell.score == best) for cell in column]
    if column[0].row != first:
        return column, [f"{task}: not tested, because {first} has no run."]
    try:
        return [column[0], *_compare_column(column)], []
    except BertkitError as error:
        return column, [f"{task}: not tested: {error.message}."]


def _compare_column(column: Sequence[TableCell]) -> list[TableCell]:
    """Test the other models of a task against the first, by stored predictions.

    Raises:
        BertkitError: If the predictions do not determine the metric, or if one model has a single run and another
            several seeds.
    """
    from bertkit.evaluation.differences import SystemScores
    from bertkit.evaluation.gates import compare_systems
    from bertkit.evaluation.stored_predictions import align, find_changed_scores, find_scorer, read_rows, read_system

    # 1. Read the predictions.
    systems = [read_system(cell.folder, None) for cell in column]
    counts = [len(system.runs) for system in systems]
    if min(counts) == 1 and max(counts) > 1:
        raise UsageError("one model has a single run, and another several seeds", "train each with --seeds")
    scorer, metric = find_scorer(systems, None), column[0].metric
    scorer = replace(scorer, recipe=scorer.recipe.model_copy(update={"metrics": [metric], "best_metric": metric}))

    # 2. Score the predictions. Tests are paired, so sort all predictions into the order of the first run's rows.
    reference = systems[0].runs[0]
    rows = read_rows(reference, scorer.task)
    system_scores = []
    for system in systems:
        aligned_runs = [align(run, reference, scorer.task) for run in system.runs]
        row_scores = [scorer.compare(run, rows) for run in aligned_runs]
        system_scores.append(SystemScores([run.predictions for run in aligned_runs], row_scores))
        for run, arrays in zip(aligned_runs, row_scores, strict=True):
            # A metric can need more than predictions, such as probabilities. The test would then use another score.
            if find_changed_scores(run, scorer.score(arrays)):
                raise UsageError(f"the stored predictions of {run.name} do not determine {metric}", "")

    # 3. Test each model against the first, and correct the p-values of the column together.
    first, *rest = system_scores
    differences = apply_holm([compare_systems(scorer, first, scores)[metric] for scores in rest])
    return [replace(cell, difference=difference) for cell, difference in zip(column[1:], differences, strict=True)]

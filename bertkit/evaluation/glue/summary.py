"""What a model scored on the tasks of GLUE, beside the scores of the BERT paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bertkit.evaluation.glue.leaderboard import (
    TASKS,
    leaderboard_average,
    missing_scores,
    paper_average,
    published_scores,
)
from bertkit.evaluation.scoring import Result
from bertkit.metrics.intervals import Interval
from bertkit.recipe.load import load_recipe
from bertkit.recipe.records import Recipe


@dataclass(frozen=True)
class GlueRun:
    """The run of a task: ``finished``, ``failed``, ``missing`` where it has no data, or ``left out``."""

    task: str
    status: str
    reason: str = ""
    """Why it has failed or is missing."""


@dataclass(frozen=True)
class GlueScore:
    """A score on validation rows, beside published scores on the rows of the test server."""

    task: str
    split: str
    metric: str
    score: float | None
    interval: Interval | None
    rows: int
    published: dict[str, float]


@dataclass(frozen=True)
class SubmissionFile:
    """A file of a submission; one that could not be made says why, and is not written."""

    name: str
    rows: int | None = None
    missing: str = ""


@dataclass(frozen=True)
class Submission:
    """The archive in the folder of all runs, None where no file could be made, and its files."""

    archive: str | None
    files: list[SubmissionFile]

    @property
    def missing(self) -> list[SubmissionFile]:
        """The files that could not be made."""
        return [file for file in self.files if file.missing]


@dataclass(frozen=True)
class GlueSummary:
    """What a model scored on the tasks of GLUE."""

    model: str
    folder: str
    runs: list[GlueRun]
    scores: list[GlueScore]
    leaderboard_average: float | None
    """Mean over all nine tasks; None where one is missing."""
    paper_average: float | None
    """Mean as in the BERT paper, without WNLI; None where a task is missing."""
    missing_scores: list[str]
    published_averages: dict[str, float]
    """Model of the BERT paper -> its average there; empty where no score can be compared, as of made-up rows."""
    warnings: list[str]
    submission: Submission | None = None
    """None if only some rows of each task are used."""

    @property
    def unfinished(self) -> list[GlueRun]:
        """The tasks without scores."""
        return [run for run in self.runs if run.status != "finished"]


def summarize(
    model: str,
    folder: str,
    recipes: Mapping[str, Recipe],
    finished: Mapping[str, Sequence[Result]],
    unfinished: Mapping[str, GlueRun],
) -> GlueSummary:
    """Summarize the runs of a folder.

    Args:
        model: the model that all runs start from.
        folder: that of the runs.
        recipes: task -> recipe of its run.
        finished: task -> results of its validation splits.
        unfinished: task -> what became of it; tasks that are in neither are left out.
    """
    by_task = {name: {result.split: result.scores for result in results} for name, results in finished.items()}
    described = [
        GlueRun(name, "finished") if name in finished else unfinished.get(name, GlueRun(name, "left out"))
        for name in TASKS
    ]
    results = [(name, result) for name in TASKS for result in finished.get(name, ())]
    scores = [score for name, result in results for score in _scores(name, result, recipes[name])]
    tasks_warned: dict[str, dict[str, None]] = {}
    for name, result in results:
        for warning in result.warnings:
            tasks_warned.setdefault(warning, {})[name] = None
    return GlueSummary(
        model=model,
        folder=folder,
        runs=described,
        scores=scores,
        leaderboard_average=leaderboard_average(by_task),
        paper_average=paper_average(by_task),
        missing_scores=missing_scores(by_task),
        published_averages=published_averages() if any(score.published for score in scores) else {},
        warnings=[f"{', '.join(names)}: {warning}" for warning, names in tasks_warned.items()],
    )


def published_averages() -> dict[str, float]:
    """Compute the averages of the BERT paper from the scores that the shipped recipes quote from it."""
    columns: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    for name, task in TASKS.items():
        recipe, metric = load_recipe(name), task.metrics[0]
        for split, test_split in task.splits.items():
            for model, score in published_scores(recipe, test_split, metric).items():
                columns.setdefault(model, {}).setdefault(name, {})[split] = {metric: score}
    averages = {model: paper_average(scores) for model, scores in columns.items()}
    return {model: average for model, average in averages.items() if average is not None}


def _scores(name: str, result: Result, recipe: Recipe) -> list[GlueScore]:
    task, data = TASKS[name], recipe.data
    test_split = task.splits.get(result.split, "")
    # Published scores are of all rows of the real task, so they stand beside no other.
    is_comparable = data.source != "demo" and data.limit is None
    return [
        GlueScore(
            task=name,
            split=result.split,
            metric=metric,
            score=result.scores.get(metric),
            interval=result.intervals.get(metric),
            rows=result.rows,
            published=published_scores(recipe, test_split, metric) if is_comparable else {},
        )
        for metric in task.metrics
    ]

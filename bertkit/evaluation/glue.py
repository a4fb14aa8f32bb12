"""The GLUE benchmark (Wang et al. 2019): tasks, averages, a summary, and the files of a submission."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from bertkit.errors import DataError
from bertkit.evaluation.run_sets import SetRun
from bertkit.evaluation.scoring import EvalResult
from bertkit.recipe.load import load_recipe
from bertkit.recipe.records import Recipe
from bertkit.storage.files import write_bytes
from bertkit.tasks import Predictions

_STSB_RANGE = (0.0, 5.0)
# A fixed date in the archive, so that equal files make equal archives.
_DATE = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class LeaderboardFile:
    """File of a submission.

    Args:
        name: Name of the file.
        rows: Number of rows that the leaderboard requires.
        split: Name of its split on the Hub.
        config: Configuration of the dataset, if it differs from the task's.
    """

    name: str
    rows: int
    split: str = "test"
    config: str = ""


@dataclass(frozen=True)
class GlueTask:
    """Task of GLUE, whose recipe has the same name."""

    name: str
    metrics: tuple[str, ...]
    """Metrics of the leaderboard, whose mean is the task's score; the BERT paper reports the first."""
    files: tuple[LeaderboardFile, ...]
    splits: Mapping[str, str] = field(default_factory=lambda: {"validation": "test"})
    """Validation split -> name of the corresponding test split in published scores."""
    writes_names: bool = False
    """Whether its files contain label names instead of label ids."""


def _read_tasks() -> dict[str, GlueTask]:
    tasks = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    for fields in tasks.values():
        files = tuple(LeaderboardFile(**file) for file in fields["files"])
        fields |= {"metrics": tuple(fields["metrics"]), "files": files}
    return {name: GlueTask(name, **fields) for name, fields in tasks.items()}


TASKS = _read_tasks()
"""Name -> task, in the order of the leaderboard."""

Scores = Mapping[str, Mapping[str, Mapping[str, float | None]]]
"""Task -> validation split -> metric -> score."""


# --- Summary ---


def summarize(model: str, recipes: Mapping[str, Recipe], runs: Mapping[str, SetRun]) -> dict[str, Any]:
    """Summarize the scores of a model on the tasks of GLUE, next to the scores of the BERT paper.

    Args:
        model: Pretrained model that all runs start from.
        recipes: Task -> recipe of its run.
        runs: Task -> its run, which is ``finished``, ``failed``, or ``missing`` if it has no rows. All other tasks are
            ``left out``.

    Returns:
        The content of ``glue.json``, with the averages of the BERT paper's models unless the rows are not comparable,
        as demo rows are not.
    """
    all_runs = [runs.get(name, SetRun(name, "left out")) for name in TASKS]
    scores = [
        score
        for run in all_runs
        for result in run.results
        for score in _list_scores(TASKS[run.name], result, recipes[run.name])
    ]
    by_task = {run.name: {result.split: result.scores for result in run.results} for run in all_runs if run.results}
    # Most tasks have the same warnings, so each warning is listed once, with its tasks.
    tasks_by_warning: dict[str, dict[str, None]] = {}
    for run in all_runs:
        for warning in (warning for result in run.results for warning in result.warnings):
            tasks_by_warning.setdefault(warning, {})[run.name] = None
    return {
        "model": model,
        "runs": [{"task": run.name, "status": run.status, "reason": run.failure or ""} for run in all_runs],
        "scores": scores,
        "leaderboard_average": leaderboard_average(by_task),
        "paper_average": paper_average(by_task),
        "missing_scores": missing_scores(by_task),
        "published_averages": published_averages() if any(score["published"] for score in scores) else {},
        "warnings": [f"{', '.join(names)}: {warning}" for warning, names in tasks_by_warning.items()],
    }


def _list_scores(task: GlueTask, result: EvalResult, recipe: Recipe) -> list[dict[str, Any]]:
    # Published scores are comparable only with scores on all rows of the task.
    is_comparable = recipe.data.source != "demo" and recipe.data.limit is None
    test_split = task.splits.get(result.split, "")
    return [
        {
            "task": task.name,
            "split": result.split,
            "metric": metric,
            "score": result.scores.get(metric),
            "interval": result.intervals.get(metric),
            "rows": result.rows,
            "published": published_scores(recipe, test_split, metric) if is_comparable else {},
        }
        for metric in task.metrics
    ]


def leaderboard_average(scores: Scores) -> float | None:
    """Compute the mean over all nine tasks, or return None if a score is missing.

    The score of a task with several metrics is their mean, and the score of MNLI is the mean of its two splits (Wang et
    al. 2019).
    """
    return _mean(
        _mean(_find_score(scores, task.name, split, metric) for split in task.splits for metric in task.metrics)
        for task in TASKS.values()
    )


def paper_average(scores: Scores) -> float | None:
    """Compute the average as in the BERT paper (Devlin et al. 2019, table 1), or return None if a score is missing.

    The average covers nine scores: both splits of MNLI, F1 of MRPC and QQP, Spearman of STS-B, but not WNLI, on which
    most models are worse than the majority class.
    """
    columns = [(task, split) for task in TASKS.values() for split in task.splits if task.name != "wnli"]
    return _mean(_find_score(scores, task.name, split, task.metrics[0]) for task, split in columns)


def missing_scores(scores: Scores) -> list[str]:
    """List the scores that the leaderboard's average lacks, as ``task``, ``task split`` or ``task metric``."""
    missing = []
    for task in TASKS.values():
        by_split = scores.get(task.name)
        if by_split is None:
            missing.append(task.name)
            continue
        missing += [f"{task.name} {split}" for split in task.splits if split not in by_split]
        for split in (split for split in task.splits if split in by_split):
            missing += [f"{task.name} {metric}" for metric in task.metrics if by_split[split].get(metric) is None]
    return missing


def published_scores(recipe: Recipe, test_split: str, metric: str) -> dict[str, float]:
    """Return the test scores that a recipe quotes from the BERT paper: model -> score."""
    return {
        entry.model: float(entry.scores()[metric])
        for entry in recipe.published
        if entry.split == test_split and metric in entry.scores()
    }


def published_averages() -> dict[str, float]:
    """Compute the averages of the BERT paper from the scores that the shipped recipes quote from it."""
    scores_by_model: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    for name, task in TASKS.items():
        recipe, metric = load_recipe(name), task.metrics[0]
        for split, test_split in task.splits.items():
            for model, score in published_scores(recipe, test_split, metric).items():
                scores_by_model.setdefault(model, {}).setdefault(name, {})[split] = {metric: score}
    averages = {model: paper_average(scores) for model, scores in scores_by_model.items()}
    return {model: average for model, average in averages.items() if average is not None}


def _find_score(scores: Scores, task: str, split: str, metric: str) -> float | None:
    return scores.get(task, {}).get(split, {}).get(metric)


def _mean(scores: Iterable[float | None]) -> float | None:
    values = list(scores)
    known_values = [value for value in values if value is not None]
    return fmean(known_values) if len(known_values) == len(values) else None


# --- Submission ---


def submission_lines(task: GlueTask, file: LeaderboardFile, labels: Sequence[str], records: Predictions) -> list[str]:
    """Return the lines of a file without its header, given the predictions of `bertkit predict`.

    Rows are sorted by their column ``idx``, if they have it.

    Raises:
        DataError: If the number of rows, an ``idx`` or a label is not what the leaderboard requires.
    """
    remedy = "use the test rows of GLUE"
    if len(records) != file.rows:
        raise DataError(f"{file.name} requires {file.rows:,} rows, got {len(records):,}", remedy)
    # The leaderboard requires each index once; predictions can have any order.
    indices = [record.get("idx", index) for index, record in enumerate(records)]
    if sorted(map(str, indices)) != sorted(map(str, range(file.rows))):
        raise DataError(f"idx is not 0 to {file.rows - 1:,} without repeats", remedy, column="idx")
    cells = {int(index): _make_cell(task, labels, record) for index, record in zip(indices, records, strict=True)}
    return [f"{index}\t{cells[index]}" for index in range(file.rows)]


def _make_cell(task: GlueTask, labels: Sequence[str], record: Mapping[str, Any]) -> str:
    prediction = record["prediction"]
    if not labels:
        if not math.isfinite(prediction):
            raise DataError("a prediction is not a finite number", "train with a lower learning rate")
        # A regression model can predict numbers outside of the range of STS-B's scores.
        return f"{min(max(prediction, _STSB_RANGE[0]), _STSB_RANGE[1]):.4f}"
    if prediction not in labels:
        raise DataError(f"the label {prediction!r} is not one of {', '.join(labels)}", "use the labels of the recipe")
    return str(prediction) if task.writes_names else str(labels.index(prediction))


def write_zip(archive: Path, files: Sequence[Path]) -> None:
    """Write the files of a submission into an archive atomically."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as stream:
        for file in files:
            stream.writestr(zipfile.ZipInfo(file.name, _DATE), file.read_bytes(), zipfile.ZIP_DEFLATED)
    write_bytes(archive, content.getvalue())

"""The GLUE benchmark: its tasks, its averages, and the files that its leaderboard reads (Wang et al. 2019)."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from bertkit.errors import DataError
from bertkit.recipe.records import Recipe
from bertkit.storage.files import write_bytes
from bertkit.tasks import Predictions

_RANGE = (0.0, 5.0)  # of STS-B
_DATE = (1980, 1, 1, 0, 0, 0)  # in the archive, so that equal files make equal archives


@dataclass(frozen=True)
class LeaderboardFile:
    """A file of a submission, and the rows that it is about."""

    name: str
    rows: int
    """The number that the leaderboard wants."""
    split: str = "test"
    """Name of the rows on the hub."""
    config: str = ""
    """Configuration of the data set, where it is not that of the task."""


@dataclass(frozen=True)
class GlueTask:
    """A task of GLUE, whose recipe has the same name."""

    name: str
    metrics: tuple[str, ...]
    """Metrics of the leaderboard, whose mean is the task's score; the first is that of the BERT paper."""
    files: tuple[LeaderboardFile, ...]
    splits: Mapping[str, str] = field(default_factory=lambda: {"validation": "test"})
    """Validation split -> what published scores call the test rows like it."""
    writes_names: bool = False
    """Whether its files have label names; otherwise they have the numbers of labels."""


def _read_tasks() -> dict[str, GlueTask]:
    tasks = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    for fields in tasks.values():
        fields |= {"metrics": tuple(fields["metrics"]), "files": tuple(LeaderboardFile(**of) for of in fields["files"])}
    return {name: GlueTask(name, **fields) for name, fields in tasks.items()}


TASKS = _read_tasks()
"""Name -> task, in the order of the leaderboard."""

FILES = [file.name for task in TASKS.values() for file in task.files]

Scores = Mapping[str, Mapping[str, Mapping[str, float | None]]]
"""Task -> validation split -> metric -> score."""


def leaderboard_average(scores: Scores) -> float | None:
    """Compute the mean over all nine tasks; None where a score is missing.

    A task with several metrics has their mean as its score, and MNLI that of its two splits (Wang et al. 2019).
    """
    return _mean(
        _mean(_find_score(scores, task.name, split, metric) for split in task.splits for metric in task.metrics)
        for task in TASKS.values()
    )


def paper_average(scores: Scores) -> float | None:
    """Compute the average of the BERT paper; None where a score is missing.

    It is the mean of nine columns: both of MNLI, F1 of MRPC and QQP, Spearman of STS-B, and no WNLI.
    """
    columns = [(task, split) for task in TASKS.values() for split in task.splits if task.name != "wnli"]
    return _mean(_find_score(scores, task.name, split, task.metrics[0]) for task, split in columns)


def missing_scores(scores: Scores) -> list[str]:
    """List the scores that the leaderboard's average lacks, by task, or by task and split or metric."""
    missing = []
    for task in TASKS.values():
        of_task = scores.get(task.name)
        if of_task is None:
            missing.append(task.name)
            continue
        missing += [f"{task.name} {split}" for split in task.splits if split not in of_task]
        of_found = [(split, metric) for split in task.splits if split in of_task for metric in task.metrics]
        missing += [f"{task.name} {metric}" for split, metric in of_found if of_task[split].get(metric) is None]
    return missing


def published_scores(recipe: Recipe, test_split: str, metric: str) -> dict[str, float]:
    """Return model -> the score of the BERT paper on the test rows, of the models whose score the recipe names."""
    return {
        entry.model: float(entry.scores()[metric])
        for entry in recipe.published
        if entry.split == test_split and metric in entry.scores()
    }


def submission_lines(task: GlueTask, file: LeaderboardFile, labels: Sequence[str], records: Predictions) -> list[str]:
    """Return the lines of a file of a submission, after its header, from predictions as `predict` makes them.

    Rows are in the order of their column ``idx``, where they have one.

    Raises:
        DataError: a number of rows, an ``idx`` or a label that the leaderboard does not take.
    """
    if len(records) != file.rows:
        what = f"{len(records):,} rows, where the leaderboard wants {file.rows:,} for {file.name}"
        raise DataError(what, "use the test rows of GLUE")
    # Predictions may come in any order; the leaderboard reads them by index, and each index once.
    indices = [record.get("idx", number) for number, record in enumerate(records)]
    if sorted(map(str, indices)) != sorted(map(str, range(file.rows))):
        raise DataError(f"idx is not 0 to {file.rows - 1:,}, each once", "use the test rows of GLUE", column="idx")
    cells = {int(index): _cell(task, labels, record) for index, record in zip(indices, records, strict=True)}
    return [f"{index}\t{cells[index]}" for index in range(file.rows)]


def write_zip(archive: Path, files: Sequence[Path]) -> None:
    """Write the files of a submission into an archive, whole or not at all."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as stream:
        for file in files:
            stream.writestr(zipfile.ZipInfo(file.name, _DATE), file.read_bytes(), zipfile.ZIP_DEFLATED)
    write_bytes(archive, content.getvalue())


def _cell(task: GlueTask, labels: Sequence[str], record: Mapping[str, Any]) -> str:
    prediction = record["prediction"]
    if not labels:
        if not math.isfinite(prediction):
            raise DataError("a prediction is not a finite number", "train with a lower learning rate")
        # STS-B ends at 0 and 5; a regression knows no ends.
        return f"{min(max(prediction, _RANGE[0]), _RANGE[1]):.4f}"
    if prediction not in labels:
        raise DataError(f"the label {prediction!r} is none of {', '.join(labels)}", "use the labels of the recipe")
    return str(prediction) if task.writes_names else str(labels.index(prediction))


def _find_score(scores: Scores, task: str, split: str, metric: str) -> float | None:
    return scores.get(task, {}).get(split, {}).get(metric)


def _mean(values: Any) -> float | None:
    known = list(values)
    return None if None in known else fmean(known)

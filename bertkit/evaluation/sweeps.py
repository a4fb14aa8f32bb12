"""The trials of a sweep: their scores, the best of them, and what to expect of it on other rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.rows import Split
from bertkit.evaluation.seeds import read_compared
from bertkit.metrics.basic import LOWER_IS_BETTER
from bertkit.metrics.seeds import expected_best
from bertkit.metrics.selection import Selection, estimate_selection, explained_share
from bertkit.recipe.space import Axis, Point, Search, name_value
from bertkit.storage.sweeps import trial_folder
from bertkit.tasks import Task
from bertkit.tokens.features import Setup

_GROUPS = 3  # of a range of real numbers, whose values all differ
_ROUNDING = 1e-6  # relative


@dataclass(frozen=True)
class Trial:
    """What came of one trial."""

    number: int
    folder: str
    """Name of its run folder in the folder of the sweep."""
    settings: Point
    status: str
    """``finished``, ``diverged``, or how far it is."""
    scores: dict[str, float | None] = field(default_factory=dict)
    """Metric -> score on the split that chose its best step; empty unless it is finished."""
    steps: int | None = None
    seconds: float = 0.0
    failure: str | None = None
    """Why it has no scores."""


@dataclass(frozen=True)
class SweepSummary:
    """The trials of a sweep, the best first, and how sure the choice is."""

    recipe: str
    model: str
    folder: str
    search: str
    space: dict[str, str]
    best_metric: str
    split: str
    rows: int
    trials: list[Trial]
    best: str | None
    """Run folder of the best trial; None where no trial is finished."""
    selection: Selection | None = None
    """What to expect of the best trial on other rows; ``chosen`` is in the order of ``trials``."""
    no_selection: str | None = None
    """Why there is no such estimate."""
    expected_best: list[float] | None = None
    """Expected best score of 1, 2, ... trials of a random search."""
    importance: dict[str, float | None] = field(default_factory=dict)
    """Key -> share of the variance of the scores that it explains alone."""
    unfinished: int = 0
    """Trials that are not trained yet, or are being trained by other processes."""

    @property
    def finished(self) -> list[Trial]:
        """The trials that have a score, the best first."""
        return [trial for trial in self.trials if trial.scores.get(self.best_metric) is not None]


def describe_trial(number: int, folder: Path, settings: Point, record: Mapping[str, Any] | None) -> Trial:
    """Return what came of a trial from the record of its run."""
    name = trial_folder(folder, number).name
    if record is None:
        return Trial(number, name, settings, "waiting")
    status, seconds = str(record["status"]), float(record.get("seconds", 0.0))
    if status != "finished":
        return Trial(number, name, settings, status, seconds=seconds, failure=record.get("error"))
    return Trial(number, name, settings, status, record["results"][0]["scores"], record.get("steps"), seconds)


def sort_trials(trials: Sequence[Trial], metric: str) -> list[Trial]:
    """Sort trials by a metric, the best first; those without a score come last."""
    sign = 1 if metric in LOWER_IS_BETTER else -1

    def rank(trial: Trial) -> tuple[bool, float, int]:
        score = trial.scores.get(metric)
        return score is None, 0.0 if score is None else sign * score, trial.number

    return sorted(trials, key=rank)


def find_selection(
    trials: Sequence[Trial],
    records: Mapping[int, Mapping[str, Any]],
    setups: Mapping[int, Setup],
    task: Task,
    split: Split,
    folder: Path,
) -> tuple[Selection | None, str | None]:
    """Estimate the score of the best trial on other rows, from the stored predictions, or say why it is not known.

    All of the trials are finished.
    """
    if len(trials) < 2:
        return None, "one trial was not chosen among others"
    if any(records[trial.number]["identity"]["data"]["validation"] != split.fingerprint() for trial in trials):
        return None, "the trials are scored on different rows"
    metric = setups[trials[0].number].recipe.best_metric
    compared = []
    for trial in trials:
        number = trial.number
        found = read_compared(folder / trial.folder, records[number], task, split, setups[number])
        if found is None or not _agrees(task.score(*found).get(metric), trial.scores[metric]):
            return None, "the stored predictions do not suffice"
        compared.append(found)

    def score(model: int, rows: np.ndarray) -> float:
        arrays, setup = compared[model]
        return task.score({name: values[rows] for name, values in arrays.items()}, setup)[metric]

    count = len(next(iter(compared[0][0].values())))  # of rows, or of queries
    selection = estimate_selection(score, len(trials), count, lower_is_better=metric in LOWER_IS_BETTER)
    return selection, None if selection else "too few rows"


def find_importance(trials: Sequence[Trial], search: Search, metric: str) -> dict[str, float | None]:
    """Compute the share of the variance of the scores that each key explains alone."""
    scores = [float(score) for trial in trials if (score := trial.scores.get(metric)) is not None]
    return {axis.key: explained_share(_group(axis, trials), scores) for axis in search.axes}


def find_expected_best(trials: Sequence[Trial], search: Search, metric: str) -> list[float] | None:
    """Estimate the expected best score of fewer trials; None unless the settings are random draws."""
    if search.method != "random" or len(trials) < 2:
        return None
    scores = [float(score) for trial in trials if (score := trial.scores.get(metric)) is not None]
    return expected_best(scores, lower_is_better=metric in LOWER_IS_BETTER)


def _group(axis: Axis, trials: Sequence[Trial]) -> list[str]:
    """Name the group of each trial: its value, or the third of the trials that its real number is in."""
    values = [trial.settings[axis.key] for trial in trials]
    if axis.values:
        return list(map(name_value, values))
    order = sorted(range(len(values)), key=values.__getitem__)
    return [str(order.index(number) * _GROUPS // len(values)) for number in range(len(values))]


def _agrees(again: float | None, stored: float | None) -> bool:
    return again is not None and stored is not None and math.isclose(again, stored, rel_tol=_ROUNDING, abs_tol=1e-9)

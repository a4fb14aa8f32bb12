"""The trials of a sweep: their scores, the best of them, and what to expect of it on other rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bertkit.data.rows import Split
from bertkit.errors import UsageError
from bertkit.evaluation.seeds import read_compared
from bertkit.metrics.intervals import Interval, count_units, take
from bertkit.metrics.registry import is_lower_better
from bertkit.metrics.seeds import (
    Selection,
    estimate_selection,
    expected_best,
    explained_share,
    mean_interval,
    resample_mean,
)
from bertkit.recipe.space import Axis, Point, Search, name_point, name_value
from bertkit.storage.runs import RunRecord
from bertkit.storage.sweeps import trial_folder
from bertkit.tasks import Compared, Task
from bertkit.tokens.features import Setup

ROW_KEYS = ("data.train_limit", "data.per_class")
"""Keys that say how many rows are trained on, and leave the validation rows as they are."""

_SEED = "training.seed"
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
    intervals: dict[str, Interval] = field(default_factory=dict)
    """Metric -> 95% interval of its score over other validation rows."""


@dataclass(frozen=True)
class StoredTrials:
    """What finished trials have stored, by their numbers, and how it is scored."""

    records: Mapping[int, RunRecord]
    setups: Mapping[int, Setup]
    task: Task
    split: Split
    folder: Path

    def metric_of(self, trial: Trial) -> str:
        """Return the metric that chooses the best step of a trial."""
        return self.setups[trial.number].recipe.best_metric

    def compare(self, trials: Sequence[Trial]) -> list[tuple[Compared, Setup]] | None:
        """Compare predictions with the gold values; None where these do not give the stored scores."""
        compared = []
        for trial in trials:
            run, number = self.folder / trial.folder, trial.number
            on_rows = read_compared(run, self.records[number], self.task, self.split, self.setups[number])
            metric = self.metric_of(trial)
            again, stored = on_rows and self.task.score(*on_rows).get(metric), trial.scores[metric]
            if on_rows is None or again is None or stored is None:
                return None
            if not math.isclose(again, stored, rel_tol=_ROUNDING, abs_tol=1e-9):
                return None
            compared.append(on_rows)
        return compared


@dataclass(frozen=True)
class CurvePoint:
    """What training on so many rows scores; the points of equal `settings` are one learning curve."""

    settings: Point
    """What was searched beside the number of rows and the seed."""
    limit: int
    """The number of rows, or of rows of each label."""
    seeds: int
    score: float
    """The mean over the seeds, which draw other rows."""
    interval: Interval
    """Interval over other validation rows; of several seeds, over other seeds too. None where it is not known."""


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
    curve: list[CurvePoint] = field(default_factory=list)
    """Learning curves one after another, by rows ascending; empty where the number of rows is not searched."""
    unfinished: int = 0
    """Trials that are not trained yet, or are being trained by other processes."""

    @property
    def finished(self) -> list[Trial]:
        """The trials that have a score, the best first."""
        return [trial for trial in self.trials if trial.scores.get(self.best_metric) is not None]


def check_scored_rows(search: Search, read: Callable[[Point], Split], gold: str) -> None:
    """Check that all points of a search are scored on the same rows, whatever is read of these.

    Rows are the same where they are the same lines of the same source and have the same gold values.

    Args:
        search: whose keys may change which rows are read.
        read: reads the rows to train on, and returns those that choose the best step.
        gold: the column of gold values.

    Raises:
        UsageError: values of a key have other rows, whose scores cannot be ranked.
        DataError: there are fewer training rows than a value asks for.
    """
    first = {axis.key: axis.extremes[0] for axis in search.axes}
    for axis in search.axes:
        values = axis.values or axis.extremes
        if axis.key in ROW_KEYS:
            read({**first, axis.key: max(values)})
            continue
        splits = [read({**first, axis.key: value}) for value in values if axis.key.startswith("data.")]
        rows = [(split.source, split.lines, [row.get(gold) for row in split.rows]) for split in splits]
        for value, scored in zip(values, rows, strict=False):
            if scored != rows[0]:
                counts = f"{len(rows[0][1]):,} and {len(scored[1]):,}"
                what = f"{name_value(values[0])} and {name_value(value)} are scored on different rows ({counts})"
                remedy = "data.train_limit draws fewer training rows alone; else one sweep per value"
                raise UsageError(f"--space {axis.key}: {what}, whose scores cannot be ranked", remedy)


def describe_trial(number: int, folder: Path, settings: Point, record: RunRecord | None) -> Trial:
    """Return what came of a trial from the record of its run."""
    name = trial_folder(folder, number).name
    if record is None:
        return Trial(number, name, settings, "waiting")
    status, seconds = str(record["status"]), float(record.get("seconds", 0.0))
    if status != "finished":
        return Trial(number, name, settings, status, seconds=seconds, failure=record.get("error"))
    result, steps = record["results"][0], record.get("steps")
    return Trial(number, name, settings, status, result["scores"], steps, seconds, intervals=result["intervals"])


def sort_trials(trials: Sequence[Trial], metric: str) -> list[Trial]:
    """Sort trials by a metric, the best first; those without a score come last."""
    sign = 1 if is_lower_better(metric) else -1

    def rank(trial: Trial) -> tuple[bool, float, int]:
        score = trial.scores.get(metric)
        return score is None, 0.0 if score is None else sign * score, trial.number

    return sorted(trials, key=rank)


def find_selection(trials: Sequence[Trial], stored: StoredTrials) -> tuple[Selection | None, str | None]:
    """Estimate the score of the best trial on other rows, from the stored predictions, or say why it is not known.

    All of the trials are finished.
    """
    if len(trials) < 2:
        return None, "one trial was not chosen among others"
    scored = {stored.records[trial.number]["identity"]["data"]["validation"] for trial in trials}
    if scored != {stored.split.fingerprint()}:
        return None, "the trials are scored on different rows"
    metric, compared = stored.metric_of(trials[0]), stored.compare(trials)
    if compared is None:
        return None, "the stored predictions do not suffice"

    def score(model: int, rows: np.ndarray) -> float:
        arrays, setup = compared[model]
        return stored.task.score(take(arrays, rows), setup)[metric]

    units = count_units(compared[0][0])
    selection = estimate_selection(score, len(trials), units, lower_is_better=is_lower_better(metric))
    return selection, None if selection else "too few rows"


def find_curve(trials: Sequence[Trial], stored: StoredTrials) -> list[CurvePoint]:
    """Compute the learning curves of finished trials, one for each combination of the other settings but the seed."""
    groups: dict[tuple[str, int], list[Trial]] = {}
    for trial in trials:
        for key in trial.settings.keys() & set(ROW_KEYS):
            groups.setdefault((name_point(_without_rows(trial)), trial.settings[key]), []).append(trial)
    points = []
    for (_, limit), group in sorted(groups.items()):
        metric = stored.metric_of(group[0])
        scores = [float(score) for trial in group if (score := trial.scores[metric]) is not None]
        interval = group[0].intervals.get(metric)
        if len(group) > 1:
            compared = stored.compare(group)
            interval = None if compared is None else _find_mean_interval(scores, compared, stored.task, metric)
        points.append(CurvePoint(_without_rows(group[0]), limit, len(group), sum(scores) / len(scores), interval))
    return points


def find_importance(trials: Sequence[Trial], search: Search, metric: str) -> dict[str, float | None]:
    """Compute the share of the variance of the scores that each key explains alone."""
    scores = [float(score) for trial in trials if (score := trial.scores.get(metric)) is not None]
    return {axis.key: explained_share(_group_trials(axis, trials), scores) for axis in search.axes}


def find_expected_best(trials: Sequence[Trial], search: Search, metric: str) -> list[float] | None:
    """Estimate the expected best score of fewer trials; None unless the settings are random draws."""
    if search.method != "random" or len(trials) < 2:
        return None
    scores = [float(score) for trial in trials if (score := trial.scores.get(metric)) is not None]
    return expected_best(scores, lower_is_better=is_lower_better(metric))


def _without_rows(trial: Trial) -> Point:
    return {key: value for key, value in trial.settings.items() if key not in (*ROW_KEYS, _SEED)}


def _find_mean_interval(
    scores: Sequence[float], compared: Sequence[tuple[Compared, Setup]], task: Task, metric: str
) -> Interval:
    def score(number: int, rows: np.ndarray) -> dict[str, float]:
        arrays, setup = compared[number]
        return {metric: task.score(take(arrays, rows), setup)[metric]}

    units = count_units(compared[0][0])
    return mean_interval(scores, resample_mean(score, len(scores), units)[metric], units)


def _group_trials(axis: Axis, trials: Sequence[Trial]) -> list[str]:
    """Name the group of each trial: its value, or the third of the trials that its real number is in."""
    values = [trial.settings[axis.key] for trial in trials]
    if axis.values:
        return list(map(name_value, values))
    order = sorted(range(len(values)), key=values.__getitem__)
    return [str(order.index(number) * _GROUPS // len(values)) for number in range(len(values))]

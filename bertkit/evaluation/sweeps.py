"""Trials of a sweep: the best trial, its expected score on other rows, and learning curves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bertkit.data.rows import Split
from bertkit.errors import UsageError
from bertkit.evaluation.run_sets import INSUFFICIENT, SetRun, StoredRuns
from bertkit.metrics.intervals import Interval, count_examples
from bertkit.metrics.registry import is_lower_better
from bertkit.metrics.seeds import Selection, estimate_expected_best, estimate_selection, explained_fraction
from bertkit.recipe.space import SweepDimension, SweepPoint, SweepSpace, name_point, name_value
from bertkit.storage.run_sets import parse_run_index

ROW_KEYS = ("data.train_limit", "data.train_rows_per_label")
"""Keys that set the number of training rows and leave the validation rows unchanged."""

_SEED = "training.seed"
_GROUPS = 3  # for a range of real numbers, whose values all differ


@dataclass(frozen=True)
class CurvePoint:
    """Score after training on `limit` rows. The points with equal `settings` form a learning curve."""

    settings: SweepPoint
    """Searched keys and their values, except the number of rows and the seed."""
    limit: int
    """Number of rows, or of rows per label."""
    seeds: int
    score: float
    """Mean over the seeds, which draw different rows."""
    interval: Interval
    """95% interval over other validation rows and, for several seeds, over other seeds; None if it is unknown."""


@dataclass(frozen=True)
class SweepSummary:
    """Trials of a sweep, the best first, and the reliability of the best score."""

    recipe: str
    model: str
    folder: str
    search: str
    space: dict[str, str]
    best_metric: str
    split: str
    rows: int
    trials: list[SetRun]
    best: str | None
    """Run folder of the best trial, or None if no trial is finished."""
    selection: Selection | None = None
    """Estimated score of the best trial on other rows; ``chosen`` has the order of ``trials``."""
    no_selection: str | None = None
    """Reason for a missing `selection`."""
    expected_best: list[float] | None = None
    """Expected best score of 1, 2, ... trials of a random search."""
    importance: dict[str, float | None] = field(default_factory=dict)
    """Key -> fraction of the variance of the scores that it explains."""
    curve: list[CurvePoint] = field(default_factory=list)
    """Learning curves, sorted by the number of rows; empty unless the number of rows is searched."""
    unfinished: int = 0
    """Number of trials that have not ended."""

    @property
    def finished(self) -> list[SetRun]:
        """Trials that have a score, the best first."""
        return [trial for trial in self.trials if trial.scores.get(self.best_metric) is not None]

    def to_dict(self) -> dict[str, Any]:
        """Return the content of ``sweep.json`` and of the printed JSON."""
        entries = [
            {
                "number": parse_run_index(trial.name),
                "folder": trial.name,
                "settings": trial.settings,
                "status": trial.status,
                "scores": trial.scores,
                "steps": trial.steps,
                "seconds": trial.seconds,
                "failure": trial.failure,
                "intervals": trial.results[0].intervals if trial.results else {},
            }
            for trial in self.trials
        ]
        return {**asdict(self), "trials": entries}


def check_scored_rows(search: SweepSpace, read: Callable[[SweepPoint], Split], gold: str) -> None:
    """Check that all points of a search are scored on the same rows: same source, lines and gold values.

    Args:
        search: Space of the sweep.
        read: Function that reads the data of a point, and returns the split that chooses the best step.
        gold: Column of the gold values.

    Raises:
        UsageError: If two values of a key have different rows, whose scores cannot be ranked.
        DataError: If there are fewer training rows than a value requires.
    """
    base_point = {axis.key: axis.extremes[0] for axis in search.axes}
    for axis in search.axes:
        values = axis.values or axis.extremes
        if axis.key in ROW_KEYS:
            # Only check that there are enough training rows: these keys leave the scored rows unchanged.
            read({**base_point, axis.key: max(values)})
            continue
        splits = [read({**base_point, axis.key: value}) for value in values if axis.key.startswith("data.")]
        rows = [(split.source, split.lines, [row.get(gold) for row in split.rows]) for split in splits]
        for value, value_rows in zip(values, rows, strict=False):
            if value_rows != rows[0]:
                counts = f"{len(rows[0][1]):,} and {len(value_rows[1]):,}"
                message = f"{name_value(values[0])} and {name_value(value)} are scored on different rows ({counts})"
                remedy = "to search the number of training rows, use data.train_limit; or start one sweep per value"
                raise UsageError(f"--space {axis.key}: {message}, whose scores cannot be ranked", remedy)


def find_selection(trials: Sequence[SetRun], stored: StoredRuns, metric: str) -> tuple[Selection | None, str | None]:
    """Estimate the score of the best of several finished trials on other rows.

    Returns:
        The estimate and None, or None and the reason why it is unknown.
    """
    if len(trials) < 2:
        return None, "there is only one trial"
    fingerprints = {stored.records[trial.name]["identity"]["data"]["validation"] for trial in trials}
    if fingerprints != {stored.split.fingerprint()}:
        return None, "the trials are scored on different rows"
    # The estimate is valid only if the stored predictions give the recorded scores.
    comparisons = []
    for trial in trials:
        comparison = stored.compare(trial)
        if comparison is None or not stored.agrees(trial, stored.task.score(*comparison), metric):
            return None, INSUFFICIENT
        comparisons.append(comparison)
    selection = estimate_selection(
        lambda model, rows: stored.score(comparisons[model], rows)[metric],
        len(trials),
        count_examples(comparisons[0][0]),
        lower_is_better=is_lower_better(metric),
    )
    return selection, None if selection else "too few rows"


def find_curve(trials: Sequence[SetRun], stored: StoredRuns, metric: str) -> list[CurvePoint]:
    """Compute the learning curves of finished trials, one per combination of the other settings except the seed."""
    groups: dict[tuple[str, int], list[SetRun]] = {}
    for trial in trials:
        for key in trial.settings.keys() & set(ROW_KEYS):
            # Trials that differ only in their seed form one point of a curve.
            groups.setdefault((name_point(_without_rows(trial)), trial.settings[key]), []).append(trial)
    points = []
    for (_, limit), group in sorted(groups.items()):
        interval = group[0].results[0].intervals.get(metric)
        # The interval of a single run covers other rows; with several seeds, it also covers other seeds.
        if len(group) > 1:
            interval, _ = stored.find_mean_intervals(group, [metric])[metric]
        scores = _list_scores(group, metric)
        points.append(CurvePoint(_without_rows(group[0]), limit, len(group), sum(scores) / len(scores), interval))
    return points


def find_importance(trials: Sequence[SetRun], search: SweepSpace, metric: str) -> dict[str, float | None]:
    """Compute the fraction of the variance of scores that each key explains on its own."""
    scores = _list_scores(trials, metric)
    return {axis.key: explained_fraction(_group_trials(axis, trials), scores) for axis in search.axes}


def estimate_best_scores(trials: Sequence[SetRun], search: SweepSpace, metric: str) -> list[float] | None:
    """Estimate the expected best score of 1, 2, ... trials, or return None unless the search is random."""
    if search.method != "random" or len(trials) < 2:
        return None
    return estimate_expected_best(_list_scores(trials, metric), lower_is_better=is_lower_better(metric))


def _list_scores(trials: Sequence[SetRun], metric: str) -> list[float]:
    return [float(score) for trial in trials if (score := trial.scores.get(metric)) is not None]


def _without_rows(trial: SetRun) -> SweepPoint:
    return {key: value for key, value in trial.settings.items() if key not in (*ROW_KEYS, _SEED)}


def _group_trials(axis: SweepDimension, trials: Sequence[SetRun]) -> list[str]:
    """Return the group of each trial: its value, or if values are a range, the third of the values that it is in."""
    values = [trial.settings[axis.key] for trial in trials]
    if axis.values:
        return list(map(name_value, values))
    # The values [0.1, 0.5, 0.2, 0.3, 0.4, 0.6] have the ranks [0, 4, 1, 2, 3, 5] and the groups [0, 2, 0, 1, 1, 2].
    sorted_indices = sorted(range(len(values)), key=values.__getitem__)
    return [str(sorted_indices.index(index) * _GROUPS // len(values)) for index in range(len(values))]

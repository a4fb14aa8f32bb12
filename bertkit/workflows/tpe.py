"""Settings that Optuna proposes from the scores of earlier trials (TPE, Bergstra et al. 2011)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bertkit.recipe.plugins import import_extra
from bertkit.recipe.space import Axis, Point, Search, name_point


@dataclass(frozen=True)
class Tried:
    """An earlier trial: its settings, and its score; None while it runs."""

    settings: Point
    score: float | None
    diverged: bool = False


def check_optuna() -> None:
    """Check that Optuna is installed.

    Raises:
        UnavailableError: it is not.
    """
    import_extra("optuna", "--search tpe needs Optuna, which is not installed", "sweep", "--search random")


def propose(search: Search, seed: int, tried: Sequence[Tried], *, lower_is_better: bool) -> Point:
    """Return settings that no earlier trial has; they follow from the seed and the earlier trials alone.

    Optuna keeps nothing: a study in memory is made anew of the trials for each proposal. One on disk would hold a
    trial that was killed as running for ever, and could contradict the run folders.
    """
    import optuna
    from optuna.trial import TrialState, create_trial

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions = {axis.key: _distribution(axis) for axis in search.axes}
    sampler = optuna.samplers.TPESampler(
        seed=(seed * 1_000_003 + len(tried)) % 2**32,
        # what other processes try now counts as poor, so that two do not try nearly the same
        constant_liar=True,
    )
    study = optuna.create_study(direction="minimize" if lower_is_better else "maximize", sampler=sampler)
    for trial in tried:
        # one that diverged counts as worse than any that did not
        is_over = TrialState.PRUNED if trial.diverged else TrialState.RUNNING
        study.add_trial(
            create_trial(
                state=is_over if trial.score is None else TrialState.COMPLETE,
                value=trial.score,
                params={axis.key: _to_optuna(axis, trial.settings[axis.key]) for axis in search.axes},
                distributions=distributions,
            )
        )
    # Axes with few values have few points, so Optuna may repeat one: a random new point takes its place.
    params = study.ask(distributions).params
    point = {axis.key: _from_optuna(axis, params[axis.key]) for axis in search.axes}
    seen = {name_point(trial.settings) for trial in tried}
    if name_point(point) not in seen:
        return point
    return next(point for point in search.points(seed) if name_point(point) not in seen)


def _distribution(axis: Axis) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if axis.scale == "list":
        return CategoricalDistribution(range(len(axis.values)))
    if axis.scale == "int":
        return IntDistribution(int(axis.low), int(axis.high))
    return FloatDistribution(axis.low, axis.high, log=axis.scale == "log")


def _to_optuna(axis: Axis, value: Any) -> Any:
    return axis.values.index(value) if axis.scale == "list" else value


def _from_optuna(axis: Axis, value: Any) -> Any:
    if axis.scale == "list":
        return axis.values[value]
    return value if axis.scale == "int" else axis.round(value)

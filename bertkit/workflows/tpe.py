"""Propose settings from the scores of earlier trials with Optuna (TPE, Bergstra et al. 2011)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bertkit.evaluation.run_sets import SetRun
from bertkit.metrics.registry import is_lower_better
from bertkit.recipe.plugins import import_extra
from bertkit.recipe.space import SweepDimension, SweepPoint, SweepSpace, name_point


def check_optuna() -> None:
    """Check that Optuna is installed.

    Raises:
        UnavailableError: If Optuna is missing.
    """
    import_extra("optuna", "--search tpe needs Optuna, which is not installed", "sweep", "use --search random")


def propose(search: SweepSpace, seed: int, trials: Sequence[SetRun], metric: str) -> SweepPoint:
    """Return settings that no earlier trial has. They depend only on the seed and the earlier trials.

    Each proposal creates a new study of the trials in memory. A study on disk would list a killed trial as running
    forever, and could contradict the run folders.
    """
    import optuna
    from optuna.trial import TrialState, create_trial

    # 1. Make a study. Its seed depends on the number of trials; otherwise, each study would draw the same numbers.
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions = {axis.key: _make_distribution(axis) for axis in search.axes}
    sampler = optuna.samplers.TPESampler(
        seed=(seed * 1_000_003 + len(trials)) % 2**32,
        # Unfinished trials count as poor ("constant liar"), so that two processes do not try nearly the same settings.
        constant_liar=True,
    )
    study = optuna.create_study(direction="minimize" if is_lower_better(metric) else "maximize", sampler=sampler)

    # 2. Add the earlier trials.
    for trial in trials:
        score = trial.scores.get(metric)
        # To Optuna, a pruned trial is worse than every other trial, so trials that diverged count as pruned.
        state_without_score = TrialState.PRUNED if trial.has_ended else TrialState.RUNNING
        study.add_trial(
            create_trial(
                state=state_without_score if score is None else TrialState.COMPLETE,
                value=score,
                params={axis.key: _to_optuna(axis, trial.settings[axis.key]) for axis in search.axes},
                distributions=distributions,
            )
        )

    # 3. Propose settings. Optuna can repeat a point of a small space; a random new point then replaces it.
    params = study.ask(distributions).params
    point = {axis.key: _from_optuna(axis, params[axis.key]) for axis in search.axes}
    names = {name_point(trial.settings) for trial in trials}
    if name_point(point) not in names:
        return point
    return next(point for point in search.points(seed) if name_point(point) not in names)


def _make_distribution(axis: SweepDimension) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if axis.scale == "list":
        return CategoricalDistribution(range(len(axis.values)))
    if axis.scale == "int":
        return IntDistribution(int(axis.low), int(axis.high))
    return FloatDistribution(axis.low, axis.high, log=axis.scale == "log")


# Optuna gets the indices of the values of a list, because it warns if categories are not simple values.
def _to_optuna(axis: SweepDimension, value: Any) -> Any:
    return axis.values.index(value) if axis.scale == "list" else value


def _from_optuna(axis: SweepDimension, value: Any) -> Any:
    if axis.scale == "list":
        return axis.values[value]
    return value if axis.scale == "int" else axis.round(value)

"""Scores of several runs: their spread, the best to expect, and how much of the best score is luck of the choice."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from bertkit.metrics.intervals import Interval

_MIN_FREEDOM = 2  # degrees; Student's quantile is 4.3 here already


@dataclass(frozen=True)
class Spread:
    """Distribution of one metric over the runs of a recipe, without runs whose score is undefined."""

    runs: int
    mean: float
    standard_deviation: float | None
    """Standard deviation of the sample, with runs - 1 in the divisor, or None for one run."""
    minimum: float
    median: float
    maximum: float
    expected_best: list[float]
    """Expected best score of 1, 2, ... runs; see `estimate_expected_best`."""
    interval: Interval = None
    """95% interval of the mean over seeds and rows together; see `mean_interval`."""
    no_interval: str | None = None
    """Why there is no interval."""


def compute_spread(
    scores: Sequence[float], *, lower_is_better: bool = False, interval: Interval = None, no_interval: str | None = None
) -> Spread | None:
    """Summarize the scores of runs, or return None if no score is a finite number.

    >>> compute_spread([0.5, 0.75]).mean, compute_spread([0.5]).standard_deviation
    (0.625, None)
    """
    finite = [score for score in scores if math.isfinite(score)]
    if not finite:
        return None
    return Spread(
        runs=len(finite),
        mean=statistics.fmean(finite),
        standard_deviation=statistics.stdev(finite) if len(finite) > 1 else None,
        minimum=min(finite),
        median=statistics.median(finite),
        maximum=max(finite),
        expected_best=estimate_expected_best(finite, lower_is_better=lower_is_better),
        interval=interval,
        no_interval=no_interval,
    )


def estimate_expected_best(scores: Sequence[float], *, lower_is_better: bool = False) -> list[float]:
    """Estimate the expected best score of 1, 2, ... runs from the scores of some.

    Dodge et al. 2019 ("Show Your Work") estimate it from draws with replacement, which is too low. This is the unbiased
    estimate of Tang et al. 2020 ("Showing Your Work Doesn't Always Work", equation 6): the mean over all choices of k
    runs, in which the i-th lowest score is the best of C(i - 1, k - 1).

    >>> estimate_expected_best([0.0, 1.0, 0.5])
    [0.5, 0.8333333333333334, 1.0]
    """
    sign = -1 if lower_is_better else 1
    ordered = sorted(sign * score for score in scores)
    count = len(ordered)
    best = []
    for size in range(1, count + 1):
        total = math.fsum(math.comb(rank, size - 1) * score for rank, score in enumerate(ordered))
        best.append(sign * total / math.comb(count, size))
    return best


def resample_means(
    score: Callable[[int, np.ndarray], dict[str, float]], seeds: int, rows: int, *, samples: int = 500
) -> dict[str, np.ndarray]:
    """Score resampled rows with all runs, and return each metric's mean over the runs in each resample, (samples,).

    Args:
        score: Takes the index of a run and row indices, (rows,), and returns metric -> value.
        seeds: Number of runs.
        rows: Number of rows.
        samples: Number of resamples.
    """
    rng = np.random.default_rng(0)
    # All runs score the same resample, so common errors on a row stay in the mean.
    scored = [
        [score(run, indices) for run in range(seeds)]
        for indices in (rng.integers(0, rows, size=rows) for _ in range(samples))
    ]
    return {
        metric: np.array([[scores[metric] for scores in runs] for runs in scored], dtype=np.float64).mean(axis=1)
        for metric in scored[0][0]
    }


def mean_interval(scores: Sequence[float], resampled: np.ndarray, rows: int) -> Interval:
    """Compute the 95% interval of a recipe's mean score, over other seeds and other rows together.

    Two variances of the mean are added: between the runs, s^2 / runs, and over resampled rows.
    Student's quantile has the degrees of freedom of Satterthwaite 1946, because few runs determine the first
    variance poorly. The effect of a run on a row is in both, so the interval is a little too wide.

    Args:
        scores: Scores of the runs on all rows, at least two.
        resampled: Means over these runs on resampled rows, as `resample_means` returns them.
        rows: Number of rows.

    Returns:
        Ends of the interval, or None for one run, one row, constant scores, or two runs that vary more than the
        rows do: with little more than one degree of freedom, an interval would be wider than the range of the metric.
    """
    from scipy import special

    finite = resampled[np.isfinite(resampled)]
    if len(scores) < 2 or rows < 2 or len(finite) < 2 or not all(map(math.isfinite, scores)):
        return None
    between = statistics.variance(scores) / len(scores)
    # A resample varies less than a sample by this factor.
    over_rows = float(finite.var(ddof=1)) * rows / (rows - 1)
    total = between + over_rows
    if total <= 0:
        return None
    freedom = total**2 / (between**2 / (len(scores) - 1) + over_rows**2 / (rows - 1))
    if freedom < _MIN_FREEDOM:
        return None
    half = float(special.stdtrit(freedom, 0.975)) * math.sqrt(total)
    mean = statistics.fmean(scores)
    return mean - half, mean + half


@dataclass(frozen=True)
class Selection:
    """Expected score on new rows of the model that scores best on some rows."""

    estimate: float
    """Score of the selected model on rows that did not select it; never better than on the rows that did."""
    chosen: list[float]
    """Fraction of the resamples in which each model was selected."""


def estimate_selection(
    score: Callable[[int, np.ndarray], float],
    models: int,
    rows: int,
    *,
    lower_is_better: bool = False,
    samples: int = 200,
    draws: int = 0,
) -> Selection | None:
    """Estimate the score of "take the best model" on new rows: choose on resampled rows, score on those left out.

    The best of n scores is too high, because the same rows select and score. So each bootstrap sample of the rows
    selects again, and the rows outside it, e^-1 of all on average, score the selection, as in BBC (Tsamardinos et al.
    2018, "Bootstrapping the out-of-sample predictions for efficient and accurate cross-validation"). They score the
    best model too, and its score is lowered by how much worse the choices are. The mean of only the choices could
    be above the best score: it would contain the difference between the best model's scores on a third of the rows
    and on all of them, which does not come from the selection.

    Args:
        score: Takes the index of a model and row indices, (rows,), and returns its score on them.
        models: Number of models.
        rows: Number of rows.
        lower_is_better: Whether the lowest score is the best.
        samples: Number of bootstrap samples.
        draws: Seed of the random draws.

    Returns:
        The estimate, or None if no selection has a score, as with one row.
    """
    rng = np.random.default_rng(draws)
    sign = -1 if lower_is_better else 1
    totals = np.array([sign * score(model, np.arange(rows)) for model in range(models)])
    if np.isnan(totals).all():
        return None
    # 1. The best model on all rows has the score that is too high.
    best = int(np.nanargmax(totals))
    counts, losses = np.zeros(models), []
    for _ in range(samples):
        # 2. Select on a resample, and compare the choice with the best model on the rows outside.
        inside = rng.integers(0, rows, size=rows)
        outside = np.setdiff1d(np.arange(rows), inside)
        values = np.array([sign * score(model, inside) for model in range(models)])
        if not len(outside) or np.isnan(values).all():
            continue
        choice = int(np.nanargmax(values))
        loss = 0.0 if choice == best else sign * (score(best, outside) - score(choice, outside))
        if math.isfinite(loss):
            counts[choice] += 1
            losses.append(loss)
    if not losses:
        return None
    # 3. Lower the score by the mean loss. By chance, choices can beat the best model outside; that is not a gain.
    estimate = sign * (float(totals[best]) - max(0.0, float(np.mean(losses))))
    return Selection(estimate, (counts / len(losses)).tolist())


def explained_fraction(groups: Sequence[Hashable], scores: Sequence[float]) -> float | None:
    """Compute the fraction of the variance of scores that one setting explains; equal values are a group.

    This is epsilon squared (Kelley 1935): the variance between groups over all variance, less what as many random
    groups would explain. It is 0 rather than negative.

    Returns:
        The fraction, or None if it is undefined or pure chance: one group, fewer than two scores per group on average,
        or constant scores.

    >>> explained_fraction([16, 16, 32, 32], [0.5, 0.5, 0.75, 0.75])
    1.0
    """
    values = np.asarray(scores, dtype=np.float64)
    names = sorted(set(groups), key=str)
    total = float(((values - values.mean()) ** 2).sum()) if len(values) else 0.0
    if not 2 <= len(names) <= len(values) / 2 or total <= 0:
        return None
    member = np.array([names.index(group) for group in groups])
    within = sum(
        float(((part := values[member == group]) - part.mean()) @ (part - part.mean())) for group in range(len(names))
    )
    # k random groups would explain k - 1 times the variance within groups per degree of freedom.
    noise = within / (len(values) - len(names))
    return max(0.0, (total - within - (len(names) - 1) * noise) / total)

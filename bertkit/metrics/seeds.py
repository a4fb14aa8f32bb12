"""Summarize the scores of several runs: distribution, expected best score, and the bias from selecting the best run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from bertkit.metrics.intervals import Interval

# With two degrees of freedom, Student's quantile is already 4.3.
_MIN_DEGREES = 2


@dataclass(frozen=True)
class Spread:
    """Distribution of one metric over the runs of a recipe; runs whose score is undefined are left out."""

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
    """Reason for a missing interval."""


def compute_spread(
    scores: Sequence[float], *, lower_is_better: bool = False, interval: Interval = None, no_interval: str | None = None
) -> Spread | None:
    """Summarize the scores of runs, or return None if no score is a finite number.

    >>> compute_spread([0.5, 0.75]).mean, compute_spread([0.5]).standard_deviation
    (0.625, None)
    """
    finite_scores = [score for score in scores if math.isfinite(score)]
    if not finite_scores:
        return None
    return Spread(
        runs=len(finite_scores),
        mean=statistics.fmean(finite_scores),
        standard_deviation=statistics.stdev(finite_scores) if len(finite_scores) > 1 else None,
        minimum=min(finite_scores),
        median=statistics.median(finite_scores),
        maximum=max(finite_scores),
        expected_best=estimate_expected_best(finite_scores, lower_is_better=lower_is_better),
        interval=interval,
        no_interval=no_interval,
    )


def estimate_expected_best(scores: Sequence[float], *, lower_is_better: bool = False) -> list[float]:
    """Estimate the expected best score of 1, 2, ..., n runs from the scores of n runs.

    This is the unbiased estimate of Tang et al. 2020 ("Showing Your Work Doesn't Always Work", equation 6): the mean
    best score of all subsets of k runs. The i-th lowest score is the best of C(i - 1, k - 1) subsets. The estimate of
    Dodge et al. 2019 ("Show Your Work") draws with replacement and is too low.

    >>> estimate_expected_best([0.0, 1.0, 0.5])
    [0.5, 0.8333333333333334, 1.0]
    """
    sign = -1 if lower_is_better else 1
    sorted_scores = sorted(sign * score for score in scores)
    count = len(sorted_scores)
    estimates = []
    for size in range(1, count + 1):
        total = math.fsum(math.comb(rank, size - 1) * score for rank, score in enumerate(sorted_scores))
        estimates.append(sign * total / math.comb(count, size))
    return estimates


def resample_means(
    score: Callable[[int, np.ndarray], dict[str, float]], runs: int, rows: int, *, samples: int = 500
) -> dict[str, np.ndarray]:
    """Score resampled rows with all runs; return each metric's mean over the runs. Shape: (samples,).

    Args:
        score: Takes the index of a run and row indices of shape (rows,), and returns metric -> value.
        runs: Number of runs.
        rows: Number of rows.
        samples: Number of resamples.
    """
    rng = np.random.default_rng(0)
    # All runs score the same resample, so that rows that are difficult for all runs vary the mean.
    draws = (rng.integers(0, rows, size=rows) for _ in range(samples))
    scores = [[score(run, indices) for run in range(runs)] for indices in draws]
    return {
        metric: np.array([[run[metric] for run in sample] for sample in scores], dtype=np.float64).mean(axis=1)
        for metric in scores[0][0]
    }


def mean_interval(scores: Sequence[float], resampled: np.ndarray, rows: int) -> Interval:
    """Compute the 95% interval of a recipe's mean score over both other seeds and other rows.

    The variance of the mean is the sum of the variance between runs, s^2 / runs, and the variance over resampled rows.
    Student's quantile has the degrees of freedom of Satterthwaite 1946, because few runs determine the first variance
    poorly. Both variances include the interaction of runs with rows, so the interval is a little too wide.

    Args:
        scores: Score of each run on all rows. Shape: (runs,).
        resampled: Mean score of these runs on resampled rows, from `resample_means`. Shape: (samples,).
        rows: Number of rows.

    Returns:
        The interval, or None for one run, one row, an undefined score, fewer than two defined resamples, equal scores,
        or fewer than two degrees of freedom, as with two runs that vary more than the rows: such an interval would be
        wider than the range of the metric.
    """
    from scipy import special

    finite_means = resampled[np.isfinite(resampled)]
    if len(scores) < 2 or rows < 2 or len(finite_means) < 2 or not all(map(math.isfinite, scores)):
        return None
    run_variance = statistics.variance(scores) / len(scores)
    # The last factor corrects that a resample varies less than a sample.
    row_variance = float(finite_means.var(ddof=1)) * rows / (rows - 1)
    total = run_variance + row_variance
    if total <= 0:
        return None
    degrees = total**2 / (run_variance**2 / (len(scores) - 1) + row_variance**2 / (rows - 1))
    if degrees < _MIN_DEGREES:
        return None
    half_width = float(special.stdtrit(degrees, 0.975)) * math.sqrt(total)
    mean = statistics.fmean(scores)
    return mean - half_width, mean + half_width


@dataclass(frozen=True)
class Selection:
    """Expected score, on new rows, of the model that is selected because it scores best on the given rows."""

    estimate: float
    """Estimated score on new rows; never better than the best score on the given rows."""
    chosen: list[float]
    """Fraction of the resamples that selected each model. Shape: (models,)."""


def estimate_selection(
    score: Callable[[int, np.ndarray], float],
    models: int,
    rows: int,
    *,
    lower_is_better: bool = False,
    samples: int = 200,
    seed: int = 0,
) -> Selection | None:
    """Estimate the score, on new rows, of the model that scores best on the given rows.

    The best of n scores is too high, because the same rows select and score. As in BBC (Tsamardinos et al. 2018,
    "Bootstrapping the out-of-sample predictions for efficient and accurate cross-validation"), each bootstrap sample of
    the rows selects a model, and the rows outside the sample (1/e of all on average) score it. Unlike BBC, these rows
    also score the best model, and the estimate is the best score minus the mean difference of both. The mean score of
    the selected models, as in BBC, can be above the best score, because it is computed from other rows.

    Args:
        score: Takes the index of a model and row indices of shape (rows,), and returns the model's score.
        models: Number of models.
        rows: Number of rows.
        lower_is_better: Whether the lowest score is the best.
        samples: Number of bootstrap samples.
        seed: Seed of the random draws.

    Returns:
        The estimate, or None if no resample has a defined score, as with one row.
    """
    rng = np.random.default_rng(seed)
    sign = -1 if lower_is_better else 1
    totals = np.array([sign * score(model, np.arange(rows)) for model in range(models)])
    if np.isnan(totals).all():
        return None
    # 1. Find the best model on all rows, whose score is too high.
    best_model = int(np.nanargmax(totals))
    counts, losses = np.zeros(models), []
    for _ in range(samples):
        # 2. Select a model on a resample, and compare it with the best model on the rows outside.
        inside = rng.integers(0, rows, size=rows)
        outside = np.setdiff1d(np.arange(rows), inside)
        values = np.array([sign * score(model, inside) for model in range(models)])
        if not len(outside) or np.isnan(values).all():
            continue
        model = int(np.nanargmax(values))
        loss = 0.0 if model == best_model else sign * (score(best_model, outside) - score(model, outside))
        if math.isfinite(loss):
            counts[model] += 1
            losses.append(loss)
    if not losses:
        return None
    # 3. Lower the best score by the mean loss. A negative mean loss is chance, because selection gains nothing.
    estimate = sign * (float(totals[best_model]) - max(0.0, float(np.mean(losses))))
    return Selection(estimate, (counts / len(losses)).tolist())


def explained_fraction(groups: Sequence[Hashable], scores: Sequence[float]) -> float | None:
    """Compute the fraction of the variance of scores that is explained by one setting.

    This is epsilon squared (Kelley 1935): the fraction of the variance that is between groups, minus the fraction that
    random groups would explain. A negative value is returned as 0.

    Args:
        groups: Value of the setting for each score.
        scores: Scores of the runs. Shape: (runs,).

    Returns:
        The fraction from 0 to 1, or None for one group, fewer than two scores per group on average, or equal scores.

    >>> explained_fraction([16, 16, 32, 32], [0.5, 0.5, 0.75, 0.75])
    1.0
    """
    values = np.asarray(scores, dtype=np.float64)
    names = sorted(set(groups), key=str)
    total = float(((values - values.mean()) ** 2).sum()) if len(values) else 0.0
    if not 2 <= len(names) <= len(values) / 2 or total <= 0:
        return None
    group_ids = np.array([names.index(group) for group in groups])
    parts = (values[group_ids == group_id] for group_id in range(len(names)))
    within = sum(float((part - part.mean()) @ (part - part.mean())) for part in parts)
    # k random groups explain k - 1 times the variance within groups per degree of freedom.
    noise = within / (len(values) - len(names))
    return max(0.0, (total - within - (len(names) - 1) * noise) / total)

"""The best of several models: how much of its score is luck of the choice, and which settings the scores depend on."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Selection:
    """What to expect on new rows of the model that scores best on some rows."""

    estimate: float
    """Score of the choice on rows that did not choose it; never better than on those that did."""
    chosen: list[float]
    """Share of the resamples in which each model was chosen."""


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

    The best of n scores is too high, since the same rows choose and score. So each bootstrap sample of the rows chooses
    anew, and the rows that are not in it, e^-1 of all on average, score the choice, as in BBC (Tsamardinos et al. 2018,
    "Bootstrapping the out-of-sample predictions for efficient and accurate cross-validation"). They score the best
    model too, and its own score is lowered by how much worse the choices are. The mean of the choices alone would also
    hold how the best model's score on a third of the rows differs from that on all of them, which is no luck of the
    choice: so it could be above the best score.

    Args:
        score: takes the number of a model and row indexes, (rows,), and returns its score on them.
        models: how many models there are.
        rows: how many rows there are.
        lower_is_better: whether the lowest score is the best.
        samples: how many bootstrap samples.
        draws: seed of the random draws.

    Returns:
        None where no choice has a score, as with one row.
    """
    rng = np.random.default_rng(draws)
    sign = -1 if lower_is_better else 1
    totals = np.array([sign * score(model, np.arange(rows)) for model in range(models)])
    if np.isnan(totals).all():
        return None
    best = int(np.nanargmax(totals))
    counts, losses = np.zeros(models), []
    for _ in range(samples):
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
    estimate = sign * (float(totals[best]) - max(0.0, float(np.mean(losses))))
    return Selection(estimate, (counts / len(losses)).tolist())


def explained_share(groups: Sequence[Hashable], scores: Sequence[float]) -> float | None:
    """Compute the share of the variance of scores that one setting explains, whose value names the group of each.

    This is epsilon squared (Kelley 1935): the variance between groups over all variance, less what as many random
    groups would explain. It is 0 rather than negative.

    Returns:
        None where it is undefined or pure chance: one group, fewer than two scores per group on average, or scores
        that do not vary.

    >>> explained_share([16, 16, 32, 32], [0.5, 0.5, 0.75, 0.75])
    1.0
    """
    values = np.asarray(scores, dtype=np.float64)
    names = sorted(set(groups), key=str)
    total = float(((values - values.mean()) ** 2).sum()) if len(values) else 0.0
    if not 2 <= len(names) <= len(values) / 2 or total <= 0:
        return None
    member = np.array([names.index(group) for group in groups])
    within = sum(
        float(((of := values[member == number]) - of.mean()) @ (of - of.mean())) for number in range(len(names))
    )
    noise = within / (len(values) - len(names))
    return max(0.0, (total - within - (len(names) - 1) * noise) / total)


def find_pareto(scores: Sequence[float], speeds: Sequence[float]) -> list[bool]:
    """Tell of each model whether no other is better in one of score and speed, and as good in the other.

    >>> find_pareto([1.0, 2.0, 1.5], [30.0, 10.0, 10.0])
    [True, True, False]
    """
    pairs = list(zip(scores, speeds, strict=True))
    return [not any(other != own and other[0] >= own[0] and other[1] >= own[1] for other in pairs) for own in pairs]

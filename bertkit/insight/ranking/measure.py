"""What one encoder scores on examples, by LogME, the H-score and probes, and how much of it rests on few rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bertkit.insight.ranking.examples import LayerFeatures, RankedExamples
from bertkit.insight.ranking.layers import candidates, pool_layers
from bertkit.insight.ranking.probes import FOLDS, score_linear_probe, score_neighbors
from bertkit.insight.ranking.uncertainty import deal_blocks, interval_of, leave_blocks_out
from bertkit.metrics import Numbers
from bertkit.progress import stage

# keeps a covariance invertible where a dimension is constant, and changes no digit elsewhere
_LEAST_SHRINKAGE = 1e-9


def h_score(features: Numbers, gold: Numbers, shrinkage: float | None = None) -> float:
    """Compute the H-score, tr(cov(f)^-1 cov(E[f|y])) (Bao et al. 2019).

    With few examples beside dimensions, the covariance of all features is mostly noise, and its inverse more so. So it
    is shrunk by the share a: the score is (1 - a) tr(cov_a(f)^-1 cov(E[f|y])), the shrinkage-based H-score of Ibrahim
    et al. 2021.

    Args:
        features: (examples, dimensions).
        gold: the class of each example, (examples,).
        shrinkage: the share a; None for the best one (Ledoit and Wolf 2004), 0 for the score of Bao et al.

    Returns:
        a number from 0 to the number of classes less 1; higher is better.
    """
    from sklearn.covariance import ledoit_wolf_shrinkage

    centered = np.asarray(features, dtype=np.float64)
    centered = centered - centered.mean(axis=0)
    scale = float((centered**2).mean())
    if not scale:  # all vectors are the same
        return 0.0
    share = float(ledoit_wolf_shrinkage(centered, assume_centered=True)) if shrinkage is None else shrinkage
    kept = max(share, _LEAST_SHRINKAGE)
    covariance = (1 - share) * (centered.T @ centered) / len(centered)
    covariance[np.diag_indices_from(covariance)] += kept * scale
    _, classes = np.unique(gold, return_inverse=True)
    counts = np.bincount(classes)
    # (classes, dimensions); each mean is weighted by the root of its share, so that means' @ means = cov(E[f|y])
    means = np.zeros((len(counts), centered.shape[1]))
    np.add.at(means, classes, centered)
    means /= np.sqrt(counts * len(centered))[:, None]
    return float((1 - share) * (means * np.linalg.solve(covariance, means.T).T).sum())


_MOST_STEPS = 500
_TOLERANCE = 1e-6  # relative change of the ratio of the two precisions
# of the largest eigenvalue, and of the squared targets: what is smaller is rounding
_SMALLEST = 1e-12
_TINY = 1e-100  # in place of 0 where it divides


def log_me(features: Numbers, gold: Numbers) -> float:
    """Compute the logarithm of the maximum evidence per example (You et al. 2021).

    Classes are told apart one by one: the evidence of whether an example has a class is averaged over classes. Numbers
    are taken as they are.

    Args:
        features: (examples, dimensions).
        gold: (examples,); whole numbers are classes.

    Returns:
        a number of any sign; higher is better. It may only be compared on the same examples.
    """
    gold = np.asarray(gold)
    if np.issubdtype(gold.dtype, np.integer):
        targets = (gold[:, None] == np.unique(gold)).astype(np.float64)
    else:
        targets = gold.astype(np.float64)[:, None]
    return float(evidence(features, targets).mean())


def evidence(features: Numbers, targets: Numbers) -> Numbers:
    """Compute the maximum of log p(y | F) per example for each column of targets (You et al. 2021).

    Weights have the prior N(0, 1/alpha), and targets the noise N(0, 1/beta). Both are found by MacKay's fixed point, in
    the eigenvectors of F'F. So a step costs no matrix product, and
    the determinant is a sum of logarithms that cannot overflow.

    Args:
        features: F, (examples, dimensions).
        targets: (examples, columns).

    Returns:
        (columns,)
    """
    matrix = np.asarray(features, dtype=np.float64)
    count = len(matrix)
    eigenvalues, along = _project_targets(matrix, targets)
    squares = (targets**2).sum(axis=0)
    floor = _SMALLEST * squares + _TINY
    # of the targets, what no weights reach
    outside = np.maximum(squares - along.sum(axis=0), 0.0)

    def solve(ratio: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Return the residuals, the squared length of the weights, and how many of these the examples determine."""
        shares = eigenvalues[:, None] / (eigenvalues[:, None] + ratio)
        residual = np.maximum(((1 - shares) ** 2 * along).sum(axis=0) + outside, floor)
        length = (shares**2 * along / eigenvalues[:, None]).sum(axis=0)
        return residual, np.maximum(length, _TINY), shares.sum(axis=0)

    ratio = np.ones(targets.shape[1])  # alpha / beta
    for _ in range(_MOST_STEPS):
        residual, length, determined = solve(ratio)
        new = np.maximum(determined, _SMALLEST) / length / (np.maximum(count - determined, _SMALLEST) / residual)
        new = np.clip(new, _SMALLEST * eigenvalues[-1], eigenvalues[-1] / _SMALLEST)
        is_settled = bool((np.abs(new - ratio) <= _TOLERANCE * ratio).all())
        ratio = new
        if is_settled:
            break
    residual, length, _ = solve(ratio)
    # at the best beta, the two quadratic terms add up to half the count
    beta = count / (residual + ratio * length)
    determinant = np.log1p(eigenvalues[:, None] / ratio).sum(axis=0)
    return np.asarray((count * np.log(beta / (2 * math.pi)) - determinant - count) / (2 * count))


def _project_targets(matrix: Numbers, targets: Numbers) -> tuple[Numbers, Numbers]:
    """Return the eigenvalues of F'F that are not 0, ascending, and the squared targets along each: (values, columns).

    The smaller of F'F and FF' is decomposed; their eigenvalues are the same.
    """
    count, width = matrix.shape
    # The smaller of F'F and FF' has the same eigenvalues that are not 0.
    if width <= count:
        eigenvalues, vectors = np.linalg.eigh(matrix.T @ matrix)
        projected = (vectors.T @ (matrix.T @ targets)) ** 2
    else:
        eigenvalues, vectors = np.linalg.eigh(matrix @ matrix.T)
        projected = (vectors.T @ targets) ** 2
    nonzero = eigenvalues > max(_SMALLEST * eigenvalues[-1], 0.0)
    if not nonzero.any():  # all features are 0
        return np.ones(1), np.zeros((1, targets.shape[1]))
    eigenvalues = eigenvalues[nonzero]
    projected = projected[nonzero]
    return eigenvalues, projected / eigenvalues[:, None] if width <= count else projected


H_SCORE, LOGME, NEIGHBORS, PROBE = "h_score", "logme", "knn", "linear_probe"
ORDERS = {H_SCORE: h_score, LOGME: log_me}
"""Name -> score that encoders can be ordered by."""

_SHUFFLES = 5


@dataclass(frozen=True)
class EncoderScores:
    """The scores of one encoder."""

    scores: dict[str, float]
    """Name -> value; the H-score is not there for numbers."""
    interval: tuple[float, float]
    """The 95% interval of the score that encoders are ordered by."""
    left_out: Numbers
    """Values of that score without each block of rows."""
    layer: str | int
    """What was scored: ``mean``, ``last``, or the number of a layer."""
    shuffled: float
    """Mean of that score where the gold values are shuffled: what many dimensions alone come to."""


def score_encoder(features: LayerFeatures, examples: RankedExamples, choice: str, by: str) -> EncoderScores:
    """Compute the scores of an encoder, the interval of one of them, and its values without each block of rows.

    Args:
        features: vectors of all layers.
        examples: with their gold values.
        choice: ``mean``, ``last``, ``best`` or a number; the best layer is that with the highest score.
        by: the score that encoders are ordered by, one of `ORDERS`.
    """
    everything = np.ones(len(examples.gold), dtype=bool)
    options = candidates(choice, features.layers)
    blocks = deal_blocks(examples.origin)
    total = len(options) + int(blocks.max()) + 1 + len(ORDERS) + 1 + _SHUFFLES

    def measure(score: Callable[[Numbers, Numbers], float], chosen: Numbers) -> float:
        value = examples.score(lambda part: score(vectors[part], examples.gold[part]), chosen)
        tick(1)
        return value

    with stage("scoring", total) as tick:
        layer, best = options[0], -np.inf
        for option in options:
            vectors = features.pooled(pool_layers(option))
            value = measure(ORDERS[by], everything)
            if value > best:
                layer, best = option, value
        # The vectors of the last candidate are in memory; the best layer may be another.
        if len(options) > 1:
            vectors = features.pooled(pool_layers(layer))
        left_out = leave_blocks_out(lambda kept: measure(ORDERS[by], kept), blocks)
        others = [name for name in ORDERS if name != by and (name == LOGME or examples.is_named)]
        scores = {by: best, **{name: measure(ORDERS[name], everything) for name in others}}
        scores[NEIGHBORS] = measure(score_neighbors, everything)
        scores[PROBE] = examples.score(
            lambda part: score_linear_probe(
                vectors[part], examples.gold[part], deal_blocks(examples.origin[part], FOLDS)
            ),
            everything,
        )
        # The more dimensions, the higher a score by chance alone; so encoders are ordered by what lies above it.
        # Gold values are shuffled among the examples that are compared with one another.
        random = np.random.default_rng(0)

        def score_shuffled(part: Numbers) -> float:
            return ORDERS[by](vectors[part], random.permutation(examples.gold[part]))

        shuffled = float(np.mean([examples.score(score_shuffled, everything) for _ in range(_SHUFFLES)]))
        tick(_SHUFFLES + 1)
    ordered = {name: scores[name] for name in (H_SCORE, LOGME, NEIGHBORS, PROBE) if name in scores}
    return EncoderScores(ordered, interval_of(best, left_out), left_out, layer, shuffled)

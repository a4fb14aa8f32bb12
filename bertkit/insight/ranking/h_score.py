"""The H-score: how far classes lie apart in an encoder's vectors, beside how far all vectors do."""

from __future__ import annotations

import numpy as np

from bertkit.metrics import Numbers

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

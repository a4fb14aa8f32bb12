"""Linear probes: multinomial logistic regression and ridge regression on standardized features."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cholesky, solve, solve_triangular
from scipy.optimize import minimize
from scipy.special import log_softmax

from bertkit.metrics import Numbers

STRENGTHS = (10_000.0, 1000.0, 100.0, 10.0, 1.0)
"""How much weights are held back, from the strongest; the inverse of scikit-learn's ``C``."""

# from which curvature is estimated; it only speeds up, and changes no result
_ROWS_OF_GRAM = 4096
_STEPS = 200
# what a step gains at the end, as a share of the loss at equal probabilities
_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Scaling:
    """Means and standard deviations of the features of training items."""

    mean: Numbers
    deviation: Numbers

    @classmethod
    def of(cls, features: Numbers) -> Scaling:
        """Measure features, (items, features); a constant one is left as it is."""
        deviation = features.std(axis=0, dtype=np.float64).astype(np.float32)
        return cls(features.mean(axis=0, dtype=np.float64).astype(np.float32), np.where(deviation > 0, deviation, 1))

    def apply(self, features: Numbers) -> Numbers:
        """Return standardized features and a last column of ones, whose weight is the intercept."""
        scaled = np.empty((len(features), features.shape[1] + 1), dtype=np.float32)
        np.subtract(features, self.mean, out=scaled[:, :-1])
        scaled[:, :-1] /= self.deviation
        scaled[:, -1] = 1
        return scaled


def gram_of(features: Numbers) -> Numbers:
    """Estimate the mean of ``x x'`` over items from evenly spaced ones, (features, features)."""
    some = features[:: max(1, len(features) // _ROWS_OF_GRAM)]
    return np.asarray(some.T @ some / max(len(some), 1), dtype=np.float64)


def fit_classifier(
    features: Numbers, labels: Numbers, classes: int, strength: float, *, gram: Numbers, start: Numbers | None = None
) -> Numbers:
    """Fit multinomial logistic regression by L-BFGS.

    Minimized is the sum of the items' cross-entropies and ``strength / 2`` times the sum of squared weights, that of
    the intercept among them.

    Args:
        features: as `Scaling.apply` returns them, (items, features).
        labels: numbers of classes, (items,).
        classes: how many there are; those that no item has get a small probability.
        strength: how much weights are held back.
        gram: as `gram_of` returns it, of features like these.
        start: weights to begin with.

    Returns:
        weights, (features, classes).
    """
    width = features.shape[1]
    # Features of a layer are strongly correlated, and plain descent then takes hundreds of steps. So it goes in the
    # coordinates V of W = L'^-1 V, where L L' is an upper bound of the curvature at equal probabilities (Boehning
    # 1992); the minimum stays where it is.
    shares = np.bincount(labels, minlength=classes) / len(labels)
    curvature = float((shares * (1 - shares)).sum() / classes)
    root = cholesky(len(labels) * curvature * gram + strength * np.eye(width), lower=True).astype(np.float32)
    rows = np.arange(len(labels))
    # where labels are all but told, relative gains never end
    scale = len(labels) * np.log(max(classes, 2))

    def back(flat: Numbers) -> Numbers:
        shape = flat.reshape(width, classes).astype(np.float32)
        found: Numbers = solve_triangular(root, shape, lower=True, trans="T", check_finite=False)
        return found

    def loss(flat: Numbers) -> tuple[float, Numbers]:
        weights = back(flat)
        log_probabilities = log_softmax(features @ weights, axis=1)
        total = -log_probabilities[rows, labels].sum(dtype=np.float64) + strength / 2 * float((weights**2).sum())
        residuals = np.exp(log_probabilities)
        residuals[rows, labels] -= 1
        slope = features.T @ residuals + strength * weights
        slope = solve_triangular(root, slope, lower=True, check_finite=False)
        return float(total) / scale, slope.reshape(-1).astype(np.float64) / scale

    begin = np.zeros(width * classes) if start is None else (root.T @ start).reshape(-1).astype(np.float64)
    options = {"maxiter": _STEPS, "ftol": _TOLERANCE, "gtol": 0.0, "maxcor": 10}
    return back(minimize(loss, begin, jac=True, method="L-BFGS-B", options=options).x)


def fit_regression(features: Numbers, values: Numbers, strength: float) -> Numbers:
    """Fit ridge regression, with half of `strength` times the sum of squared weights as `fit_classifier` has it.

    Returns:
        weights, (features, 1).
    """
    wide = features.astype(np.float64)
    gram = wide.T @ wide + strength * np.eye(features.shape[1])
    weights = solve(gram, wide.T @ values.astype(np.float64), assume_a="pos")
    return np.asarray(weights[:, None], dtype=np.float32)


def code_length(features: Numbers, labels: Numbers, weights: Numbers) -> float:
    """Return how many bits the labels take that a probe predicts."""
    log_probabilities = log_softmax(features @ weights, axis=1)
    return float(-log_probabilities[np.arange(len(labels)), labels].sum(dtype=np.float64) / np.log(2))

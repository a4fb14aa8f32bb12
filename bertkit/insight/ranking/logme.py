"""LogME: how probable the labels are under a linear model of an encoder's vectors, all its weights averaged out."""

from __future__ import annotations

import math

import numpy as np

from bertkit.metrics import Numbers

_MOST_STEPS = 500
_TOLERANCE = 1e-6  # relative change of the ratio of the two precisions
_SMALLEST = 1e-12  # of the largest eigenvalue, and of the squared targets: what is smaller is rounding
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
    outside = np.maximum(squares - along.sum(axis=0), 0.0)  # of the targets, what no weights reach

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

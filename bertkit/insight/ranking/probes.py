"""What can be read off an encoder's vectors: by their nearest neighbors, and by a linear model of them."""

from __future__ import annotations

import warnings

import numpy as np

from bertkit.metrics import Numbers
from bertkit.vectors.vector_files import to_unit_length

NEIGHBORS = 10
FOLDS = 5
_BLOCK = 1024  # examples whose similarity to all others is in memory at a time
_RIDGES = tuple(10.0**power for power in range(-1, 6))
_TIES = 1e-6  # what similarity counts beside votes: it decides between classes with as many


def score_neighbors(features: Numbers, gold: Numbers, neighbors: int = NEIGHBORS) -> float:
    """Predict each example from the nearest others by the cosine, and score that.

    Returns:
        of classes (whole numbers), the accuracy of the most frequent class among the neighbors; of numbers, Pearson's
        correlation with the mean of the neighbors, 0 where one of the two is constant.
    """
    unit = to_unit_length(np.asarray(features, dtype=np.float32))
    count = len(unit)
    most = min(neighbors, count - 1)
    predicted = np.zeros(count)
    is_class = np.issubdtype(np.asarray(gold).dtype, np.integer)
    for first in range(0, count, _BLOCK):
        rows = np.arange(first, min(first + _BLOCK, count))
        similarity = unit[rows] @ unit.T
        similarity[np.arange(len(rows)), rows] = -np.inf  # no example is its own neighbor
        # Linear in the examples: the order among the nearest does not matter.
        nearest = np.argpartition(-similarity, most - 1, axis=1)[:, :most]
        if not is_class:
            predicted[rows] = gold[nearest].mean(axis=1)
            continue
        votes = np.zeros((len(rows), int(gold.max()) + 1))
        weights = 1 + _TIES * np.take_along_axis(similarity, nearest, axis=1)
        np.add.at(votes, (np.arange(len(rows))[:, None], gold[nearest]), weights)
        predicted[rows] = votes.argmax(axis=1)
    return float((predicted == gold).mean()) if is_class else correlate(predicted, gold)


def score_linear_probe(features: Numbers, gold: Numbers, blocks: Numbers, folds: int = FOLDS) -> float:
    """Fit a linear model on all folds but one, predict that one, and score all predictions together.

    Features are scaled to variance 1 on the training rows of a fold. Classes (whole numbers) take logistic regression,
    and numbers ridge regression, whose penalty is chosen on these rows.

    Args:
        features: (examples, dimensions).
        gold: (examples,).
        blocks: (examples,), a number from 0 that examples of one row share: they stay in one fold.
        folds: how many.

    Returns:
        accuracy, or Pearson's correlation.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression, RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    features = np.asarray(features, dtype=np.float64)
    is_class = np.issubdtype(np.asarray(gold).dtype, np.integer)
    predicted = np.zeros(len(gold))
    for fold in range(folds):
        held_out = blocks % folds == fold
        if not held_out.any():
            continue
        known = gold[~held_out]
        if len(np.unique(known)) == 1:
            predicted[held_out] = known[0]
            continue
        linear = LogisticRegression(max_iter=200) if is_class else RidgeCV(alphas=_RIDGES)
        model = make_pipeline(StandardScaler(), linear)
        # the last digits of its weights may not have settled, which changes no ranking
        with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
            model.fit(features[~held_out], known)
        predicted[held_out] = model.predict(features[held_out])
    return float((predicted == gold).mean()) if is_class else correlate(predicted, gold)


def correlate(first: Numbers, second: Numbers) -> float:
    """Compute Pearson's correlation; 0 where one of the two is constant."""
    first, second = first - first.mean(), second - second.mean()
    size = float(np.sqrt((first**2).sum() * (second**2).sum()))
    return float((first * second).sum() / size) if size else 0.0

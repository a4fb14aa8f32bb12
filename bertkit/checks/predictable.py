"""How well little information predicts a label: a cross-validated classifier beside what knows nothing."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bertkit.metrics import Numbers
from bertkit.metrics.linear import Features, fit_linear, score_linear

_FOLDS = 5
_LEAST = 50  # rows
_ERRORS = 4.0  # standard errors that are no accident, of the many things that are tried


class Gain(NamedTuple):
    """How often a classifier is right, and how often the most frequent class alone."""

    accuracy: float
    chance: float
    rows: int

    @property
    def share(self) -> float:
        """The share of the errors of chance that the classifier does not make; 0 where it may be an accident."""
        error = math.sqrt(self.chance * (1 - self.chance) / self.rows)
        gain = self.accuracy - self.chance
        return 0.0 if gain <= _ERRORS * error else gain / (1 - self.chance)


def classes_of(gold: Sequence[Any]) -> list[int] | None:
    """Return the gold values as classes: labels, or numbers above and below their median.

    None where there is one class, or more than 20, or where values are neither labels nor numbers.
    """
    if len(gold) < _LEAST:
        return None
    if all(isinstance(value, float) for value in gold):
        middle = float(np.median(np.array(gold)))
        classes = [int(value > middle) for value in gold]
    elif all(isinstance(value, (str, int)) for value in gold):
        names = {name: number for number, name in enumerate(sorted(set(map(str, gold))))}
        classes = [names[str(value)] for value in gold]
    else:
        return None
    return classes if 2 <= len(set(classes)) <= 20 else None


def measure_words(features: Sequence[Features], classes: Sequence[int]) -> tuple[Gain, Numbers]:
    """Predict classes from features that are 0 or some number each, by logistic regression.

    Returns:
        the gain, and the score of class 1 over class 0 for each row, from a model that has not seen it.
    """
    gold, count = np.array(classes), len(classes)
    fold = np.random.default_rng(42).permutation(count) % _FOLDS
    predicted, scores = np.zeros(count, dtype=np.int64), np.zeros(count)
    for number in range(_FOLDS):
        inside, outside = np.flatnonzero(fold != number).tolist(), np.flatnonzero(fold == number).tolist()
        model = fit_linear([features[row] for row in inside], gold[inside].tolist())
        if model is None:
            predicted[outside] = Counter(gold[inside].tolist()).most_common(1)[0][0]
            continue
        of_classes = score_linear(model, [features[row] for row in outside])
        predicted[outside] = np.array(model["classes"])[of_classes.argmax(axis=1)]
        scores[outside] = of_classes[:, 1] - of_classes[:, 0]
    return _gain(predicted, gold), scores


def measure_numbers(values: Numbers, classes: Sequence[int]) -> Gain:
    """Predict classes from a few numbers, an array (rows, numbers), by a decision tree."""
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.tree import DecisionTreeClassifier

    gold = np.array(classes)
    tree = DecisionTreeClassifier(min_samples_leaf=max(5, len(gold) // 50), random_state=0)
    # a class may have fewer rows than there are folds
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        predicted = cross_val_predict(tree, values, gold, cv=StratifiedKFold(_FOLDS, shuffle=True, random_state=0))
    return _gain(predicted, gold)


def _gain(predicted: Numbers, gold: Numbers) -> Gain:
    return Gain(float((predicted == gold).mean()), float(np.bincount(gold).max() / len(gold)), len(gold))

"""Linear models of the words of texts, for baselines that read a part of the input; a learned one is plain JSON."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from typing import Any

import numpy as np

_MOST_ROWS = 10_000
_MOST_WORDS = 10_000
_MOST_CHARACTERS = 1000  # of a text
_STRENGTH = 10  # how much weights are held back
_WORD = re.compile(r"\w+")

Features = Mapping[str, float]
"""Name of a feature -> its value in one text or pair of texts; others are 0."""


def find_words(text: str) -> dict[str, float]:
    """Return the words of a text, each once.

    >>> find_words("To be, or not to be")
    {'to': 1.0, 'be': 1.0, 'or': 1.0, 'not': 1.0}
    """
    return dict.fromkeys(_WORD.findall(text[:_MOST_CHARACTERS].lower()), 1.0)


def describe_pairs(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, float]]]:
    """Return what baselines of pairs read: each text alone, and how many words both share; nothing for single texts."""
    if not rows or not all("text_pair" in row for row in rows):
        return {}
    first, second = ([find_words(row[column]) for row in rows] for column in ("text", "text_pair"))
    shared = [_share(one, other) for one, other in zip(first, second, strict=True)]
    return {"text alone": first, "text_pair alone": second, "shared words": shared}


def sample(rows: Sequence[Any], most: int = _MOST_ROWS) -> list[Any]:
    """Return evenly spaced rows, since they are often in the order of their labels."""
    count = min(len(rows), most)
    return [rows[number * len(rows) // count] for number in range(count)]


def fit_linear(features: Sequence[Features], gold: Sequence[Any]) -> dict[str, Any] | None:
    """Fit logistic regression where gold values are classes, whole numbers, else ridge regression.

    Returns:
        ``classes`` (None for numbers), their ``intercept``, and the ``weights`` of each feature that two rows have;
        None where there is nothing to learn.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression, Ridge

    counts = Counter(chain.from_iterable(features))
    names = sorted(name for name, count in counts.most_common(_MOST_WORDS) if count > 1)
    classes = sorted(set(gold)) if all(isinstance(value, int) for value in gold) else None
    if not names or len(set(gold)) < 2:
        return None
    model = Ridge(alpha=_STRENGTH) if classes is None else LogisticRegression(C=1 / _STRENGTH, max_iter=50)
    with warnings.catch_warnings():  # a baseline may stop before its last digits have settled
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(_as_matrix(features, names), gold)
    weights, intercept = np.atleast_2d(model.coef_), np.atleast_1d(model.intercept_)
    if classes and len(classes) == 2:  # there is one row for both: the logit of the second class
        weights, intercept = np.vstack([0 * weights, weights]), np.append(0.0, intercept)
    rounded = np.round(weights.T, 4).tolist()
    return {"classes": classes, "intercept": intercept.tolist(), "weights": dict(zip(names, rounded, strict=True))}


def score_linear(model: Mapping[str, Any], features: Sequence[Features]) -> np.ndarray[Any, Any]:
    """Return the score of each class, shape (rows, classes), or the number of each row, shape (rows, 1)."""
    weights = np.array(list(model["weights"].values()))
    return np.asarray(_as_matrix(features, list(model["weights"])) @ weights + np.array(model["intercept"]))


def _share(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    """Return which share of the words of both texts, of the first and of the second one are in the other one too."""
    shared = len(first.keys() & second.keys())
    sizes = {"both": len(first) + len(second) - shared, "first": len(first), "second": len(second)}
    return {name: shared / max(size, 1) for name, size in sizes.items()}


def _as_matrix(features: Sequence[Features], names: Sequence[str]) -> Any:
    """Return a sparse matrix of shape (rows, names)."""
    from scipy.sparse import csr_array

    number = {name: index for index, name in enumerate(names)}
    known = [[name for name in row if name in number] for row in features]
    columns = [number[name] for row in known for name in row]
    values = [row[name] for row, own in zip(features, known, strict=True) for name in own]
    edges = [0, *accumulate(map(len, known))]
    return csr_array(
        (np.array(values, dtype=float), np.array(columns, dtype=np.int64), edges), shape=(len(features), len(names))
    )

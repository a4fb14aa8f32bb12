"""Linear models of the words of texts, for baselines that read a part of the input or all of it.

Fitted models are plain JSON. The TF-IDF model holds no words: features are hashed, and arrays are base64.
"""

from __future__ import annotations

import base64
import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_MAX_ROWS = 10_000
_MAX_WORDS = 10_000
_MAX_CHARACTERS = 1000  # per text
_STRENGTH = 10  # inverse of C; alpha of ridge regression
_FAR = 10.0  # distance from 0, in the outputs of a new head
_WORD = re.compile(r"\w+")

TFIDF = "linear model over TF-IDF"
"""Name of the baseline that reads the full text."""

_HASHES = 2**18  # per type of TF-IDF feature
_MAX_FEATURES = 50_000
_MAX_WEIGHTS = 5_000_000  # features times outputs
_MAX_TARGETS = 1_000_000  # rows times outputs, which determines the time of fitting
_MAX_READ = 10_000  # characters per text
_WORDS_AND_MARKS = r"(?u)\w+|[^\w\s]"
# Half precision keeps files small.
_TYPES = {"features": "<i4", "idf": "<f4", "weights": "<f2", "intercept": "<f4"}

Features = Mapping[str, float]
"""Name of a feature -> its value in one text or pair of texts; others are 0."""


def find_scale(targets: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the standard deviation of targets that a new head is far from, or else 0 and 1.

    >>> find_scale([0.0, 5.0]), find_scale([1990.0, 2010.0])
    ((0.0, 1.0), (2000.0, 10.0))
    """
    # A new head starts near 0. Years, such as 2000, would take most of the training to reach.
    mean, deviation = float(np.mean(targets)), float(np.std(targets))
    is_far = max(abs(mean), deviation) > _FAR or 0 < deviation < 1 / _FAR**2
    return (mean, deviation or 1.0) if is_far else (0.0, 1.0)


def find_words(text: str) -> dict[str, float]:
    """Return the different words of a text.

    >>> find_words("To be, or not to be")
    {'to': 1.0, 'be': 1.0, 'or': 1.0, 'not': 1.0}
    """
    return dict.fromkeys(_WORD.findall(text[:_MAX_CHARACTERS].lower()), 1.0)


def find_pair_features(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, float]]]:
    """Return the features of baselines for pairs: words of either text, and shared words; empty for single texts."""
    if not rows or not all("text_pair" in row for row in rows):
        return {}
    first, second = ([find_words(row[column]) for row in rows] for column in ("text", "text_pair"))
    shared = [_share(words, pair_words) for words, pair_words in zip(first, second, strict=True)]
    return {"text alone": first, "text_pair alone": second, "shared words": shared}


def sample_rows(rows: Sequence[Any], max_rows: int = _MAX_ROWS) -> list[Any]:
    """Return evenly spaced rows, because rows are often in the order of their labels."""
    count = min(len(rows), max_rows)
    return [rows[index * len(rows) // count] for index in range(count)]


def draw_rows(rows: int, max_rows: int, seed: int) -> np.ndarray:
    """Draw at most `max_rows` row indices, in order, or return all of them if there are no more."""
    return np.sort(np.random.default_rng(seed).choice(rows, min(rows, max_rows), replace=False))


def fit_linear(features: Sequence[Features], gold: Sequence[Any]) -> dict[str, Any] | None:
    """Fit logistic regression if gold values are classes (integers), otherwise ridge regression.

    Returns:
        ``classes`` (or None for numbers), their ``intercept``, and the ``weights`` of each feature that two rows have;
        or None without anything to learn.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression, Ridge

    counts = Counter(chain.from_iterable(features))
    names = sorted(name for name, count in counts.most_common(_MAX_WORDS) if count > 1)
    classes = sorted(set(gold)) if all(isinstance(value, int) for value in gold) else None
    if not names or len(set(gold)) < 2:
        return None
    model = Ridge(alpha=_STRENGTH) if classes is None else LogisticRegression(C=1 / _STRENGTH, max_iter=50)
    # A baseline may stop before its last digits have converged.
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        model.fit(_as_matrix(features, names), gold)
    weights, intercept = np.atleast_2d(model.coef_), np.atleast_1d(model.intercept_)
    # With two classes there is one row: the logit of the second class.
    if classes and len(classes) == 2:
        weights, intercept = np.vstack([0 * weights, weights]), np.append(0.0, intercept)
    rounded = np.round(weights.T, 4).tolist()
    return {"classes": classes, "intercept": intercept.tolist(), "weights": dict(zip(names, rounded, strict=True))}


def score_linear(model: Mapping[str, Any], features: Sequence[Features]) -> np.ndarray:
    """Return the score of each class, shape (rows, classes), or the number of each row, shape (rows, 1)."""
    weights = np.array(list(model["weights"].values()))
    return np.asarray(_as_matrix(features, list(model["weights"])) @ weights + np.array(model["intercept"]))


def _share(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    """Return the fraction of shared words among the words of both texts, of the first and of the second text."""
    shared = len(first.keys() & second.keys())
    sizes = {"both": len(first) + len(second) - shared, "first": len(first), "second": len(second)}
    return {name: shared / max(size, 1) for name, size in sizes.items()}


def _as_matrix(features: Sequence[Features], names: Sequence[str]) -> csr_array:
    """Return a sparse matrix of shape (rows, names), whose names are sorted; other features are left out."""
    from sklearn.feature_extraction import DictVectorizer

    return DictVectorizer().fit([dict.fromkeys(names, 1.0)]).transform(features)


def get_max_rows(outputs: int) -> int:
    """Return the number of rows to fit a model with `outputs` outputs to, such that it takes some seconds."""
    return min(_MAX_ROWS, max(1000, _MAX_TARGETS // outputs))


def fit_tfidf(rows: Sequence[Mapping[str, Any]], targets: np.ndarray) -> dict[str, str] | None:
    """Fit a linear model that reads ``text``, and ``text_pair`` if rows have it.

    Args:
        rows: Training rows.
        targets: Integers 0 or 1 per output, (rows, outputs); or floats to predict, (rows, 1).

    Returns:
        ``features``, the hashes that occur in two rows or more; their ``idf``; ``weights``, (features, outputs); and
        ``intercept``, (outputs,); or None without anything to learn.
    """
    from sklearn.feature_extraction.text import TfidfTransformer

    # Hashes that occur in one row only would let the model recognize the row instead of its words.
    counts = _count_hashes(rows)
    frequency = counts.getnnz(axis=0)
    max_features = min(_MAX_FEATURES, _MAX_WEIGHTS // targets.shape[1])
    features = np.sort(np.argsort(-frequency, kind="stable")[:max_features])
    features = features[frequency[features] > 1]
    if not len(features) or not targets.std(axis=0).any():
        return None
    transformer = TfidfTransformer(sublinear_tf=True)
    matrix = transformer.fit_transform(counts[:, features])
    weights, intercept = _fit_outputs(matrix, targets)
    learned = {"features": features, "idf": transformer.idf_, "weights": weights, "intercept": intercept}
    return {name: base64.b64encode(learned[name].astype(dtype).tobytes()).decode() for name, dtype in _TYPES.items()}


def score_tfidf(model: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Return the score of each output, above 0 if it is more likely than not, or the numbers: (rows, outputs)."""
    from sklearn.feature_extraction.text import TfidfTransformer

    arrays = {name: np.frombuffer(base64.b64decode(model[name]), dtype) for name, dtype in _TYPES.items()}
    transformer = TfidfTransformer(sublinear_tf=True)
    transformer.idf_ = arrays["idf"].astype(float)
    weights = arrays["weights"].astype(float).reshape(len(arrays["features"]), -1)
    scores = []
    # The counts of a row take more memory than the row.
    for start in range(0, max(len(rows), 1), _MAX_ROWS):
        matrix = transformer.transform(_count_hashes(rows[start : start + _MAX_ROWS])[:, arrays["features"]])
        scores.append(np.asarray(matrix @ weights + arrays["intercept"]))
    return np.concatenate(scores)


def _fit_outputs(matrix: csr_array, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fit ridge regression to floats, or else a support vector machine to each output against the others."""
    from sklearn.linear_model import Ridge
    from sklearn.svm import LinearSVC

    if targets.dtype.kind == "f":
        model = Ridge(alpha=1.0, solver="sparse_cg").fit(matrix, targets)
        return model.coef_.reshape(-1, matrix.shape[1]).T, np.atleast_1d(model.intercept_)
    weights, intercept = np.zeros((matrix.shape[1], targets.shape[1])), np.zeros(targets.shape[1])
    for output, target in enumerate(targets.T):
        if target.min() == target.max():  # no row has it, or each
            intercept[output] = 2 * target[0] - 1
            continue
        machine = LinearSVC(random_state=0).fit(matrix, target)
        weights[:, output], intercept[output] = machine.coef_[0], machine.intercept_[0]
    return weights, intercept


def _count_hashes(rows: Sequence[Mapping[str, Any]]) -> csr_array:
    """Count words, pairs of words and 2 to 4 characters in each text, and the words that both texts of a pair have.

    Returns:
        A sparse matrix of shape (rows, hashes), with a block of hashes for each kind of feature.
    """
    from scipy.sparse import hstack
    from sklearn.feature_extraction.text import HashingVectorizer

    counting = {"n_features": _HASHES, "norm": None, "alternate_sign": False}
    words = HashingVectorizer(ngram_range=(1, 2), token_pattern=_WORDS_AND_MARKS, **counting)
    characters = HashingVectorizer(analyzer="char_wb", ngram_range=(2, 4), **counting)
    columns = [name for name in ("text", "text_pair") if all(name in row for row in rows)]
    blocks = []
    for name in columns:
        texts = [str(row[name])[:_MAX_READ] for row in rows]
        blocks += [words.transform(texts), characters.transform(texts)]
    if len(columns) > 1:
        shared = [set(find_words(row["text"])) & set(find_words(row["text_pair"])) for row in rows]
        blocks.append(HashingVectorizer(analyzer=list, **counting).transform(shared))
    return hstack(blocks).tocsr()

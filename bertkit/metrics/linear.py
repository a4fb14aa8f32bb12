"""Linear models of the words of texts, for baselines that read the full input or a part of it.

Fitted models are JSON. The TF-IDF model stores hashes instead of words, and its arrays as base64.
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
# Regularization of ridge regression, and 1 / C of logistic regression.
_ALPHA = 10
# Maximum mean or deviation of targets that a new head learns without scaling.
_MAX_TARGET = 10.0
_WORD = re.compile(r"\w+")

TFIDF = "linear model over TF-IDF"
"""Name of the baseline that reads the full text."""

_NUM_HASHES = 2**18  # per type of TF-IDF feature
_MAX_FEATURES = 50_000
_MAX_WEIGHTS = 5_000_000  # features times outputs
# Rows times outputs, which determines the time of fitting.
_MAX_TARGETS = 1_000_000
_MAX_TFIDF_CHARACTERS = 10_000  # per text
_WORDS_AND_PUNCTUATION = r"(?u)\w+|[^\w\s]"
# Half precision keeps files small.
_ARRAY_TYPES = {"features": "<i4", "idf": "<f4", "weights": "<f2", "intercept": "<f4"}

Features = Mapping[str, float]
"""Name of a feature -> its value in one text or pair of texts; features without a name are 0."""


def find_scale(targets: Sequence[float]) -> tuple[float, float]:
    """Return the mean and deviation to standardize targets with, or 0 and 1 if a new head learns them unscaled.

    >>> find_scale([0.0, 5.0]), find_scale([1990.0, 2010.0])
    ((0.0, 1.0), (2000.0, 10.0))
    """
    # A new head predicts values near 0. To reach years, such as 2000, it would need most of the training.
    mean, deviation = float(np.mean(targets)), float(np.std(targets))
    needs_scale = max(abs(mean), deviation) > _MAX_TARGET or 0 < deviation < 1 / _MAX_TARGET**2
    return (mean, deviation or 1.0) if needs_scale else (0.0, 1.0)


def find_words(text: str) -> dict[str, float]:
    """Return the distinct words of a text as features with the value 1.

    >>> find_words("To be, or not to be")
    {'to': 1.0, 'be': 1.0, 'or': 1.0, 'not': 1.0}
    """
    return dict.fromkeys(_WORD.findall(text[:_MAX_CHARACTERS].lower()), 1.0)


def find_pair_features(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, float]]]:
    """Return baseline -> its features of each pair: words of one text, or shared words; empty for single texts."""
    if not rows or not all("text_pair" in row for row in rows):
        return {}
    first, second = ([find_words(row[column]) for row in rows] for column in ("text", "text_pair"))
    shared = [_measure_overlap(*words) for words in zip(first, second, strict=True)]
    return {"text alone": first, "text_pair alone": second, "shared words": shared}


def sample_rows(rows: Sequence[Any], max_rows: int = _MAX_ROWS) -> list[Any]:
    """Return at most `max_rows` rows at even distances, because rows are often sorted by label."""
    count = min(len(rows), max_rows)
    return [rows[index * len(rows) // count] for index in range(count)]


def draw_rows(rows: int, max_rows: int, seed: int) -> np.ndarray:
    """Return at most `max_rows` random row indices in ascending order. Shape: (drawn rows,)."""
    return np.sort(np.random.default_rng(seed).choice(rows, min(rows, max_rows), replace=False))


def fit_linear(features: Sequence[Features], gold: Sequence[Any]) -> dict[str, Any] | None:
    """Fit logistic regression if gold values are classes (integers), otherwise ridge regression.

    Returns:
        ``classes`` (or None for numbers), the ``intercept`` of each class, and the ``weights`` of each feature: one per
        class. None if all gold values are equal, or no feature occurs in two rows.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression, Ridge

    counts = Counter(chain.from_iterable(features))
    names = sorted(name for name, count in counts.most_common(_MAX_WORDS) if count > 1)
    classes = sorted(set(gold)) if all(isinstance(value, int) for value in gold) else None
    if not names or len(set(gold)) < 2:
        return None
    model = Ridge(alpha=_ALPHA) if classes is None else LogisticRegression(C=1 / _ALPHA, max_iter=50)
    # A baseline need not converge to the last digit.
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        model.fit(_as_matrix(features, names), gold)
    weights, intercept = np.atleast_2d(model.coef_), np.atleast_1d(model.intercept_)
    # With two classes, scikit-learn fits a single logit, of the second class. Its weights have the shape (1, names).
    if classes and len(classes) == 2:
        weights, intercept = np.vstack([0 * weights, weights]), np.append(0.0, intercept)
    rounded = np.round(weights.T, 4).tolist()
    return {"classes": classes, "intercept": intercept.tolist(), "weights": dict(zip(names, rounded, strict=True))}


def score_linear(model: Mapping[str, Any], features: Sequence[Features]) -> np.ndarray:
    """Return the score of each class, or the predicted number. Shape: (rows, classes) or (rows, 1)."""
    weights = np.array(list(model["weights"].values()))
    return np.asarray(_as_matrix(features, list(model["weights"])) @ weights + np.array(model["intercept"]))


def _measure_overlap(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    """Return the number of shared words as a fraction of the words of both texts, of the first and of the second."""
    shared = len(first.keys() & second.keys())
    sizes = {"both": len(first) + len(second) - shared, "first": len(first), "second": len(second)}
    return {name: shared / max(size, 1) for name, size in sizes.items()}


def _as_matrix(features: Sequence[Features], names: Sequence[str]) -> csr_array:
    """Return a sparse matrix of the named features, whose names are sorted. Shape: (rows, names)."""
    from sklearn.feature_extraction import DictVectorizer

    return DictVectorizer().fit([dict.fromkeys(names, 1.0)]).transform(features)


def get_max_rows(num_outputs: int) -> int:
    """Return the maximum number of rows for which fitting a TF-IDF model takes only some seconds."""
    return min(_MAX_ROWS, max(1000, _MAX_TARGETS // num_outputs))


def fit_tfidf(rows: Sequence[Mapping[str, Any]], targets: np.ndarray) -> dict[str, str] | None:
    """Fit a linear model to the TF-IDF of ``text``, and of ``text_pair`` if all rows have it.

    Args:
        rows: Training rows.
        targets: 0 or 1 for each output, as integers, or floats to predict. Shape: (rows, outputs) or (rows, 1).

    Returns:
        Arrays in base64: ``features``, the hashes that occur in at least two rows, and ``idf``, of shape (features,);
        ``weights``, of shape (features, outputs); and ``intercept``, of shape (outputs,). None if no hash occurs in two
        rows, or all rows have the same targets.
    """
    from sklearn.feature_extraction.text import TfidfTransformer

    # A hash that occurs in a single row would let the model memorize this row.
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
    arrays = {"features": features, "idf": transformer.idf_, "weights": weights, "intercept": intercept}
    return {name: base64.b64encode(arrays[name].astype(kind).tobytes()).decode() for name, kind in _ARRAY_TYPES.items()}


def score_tfidf(model: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Return the score of each output, above 0 if it is predicted, or the predicted numbers. Shape: (rows, outputs)."""
    from sklearn.feature_extraction.text import TfidfTransformer

    arrays = {name: np.frombuffer(base64.b64decode(model[name]), kind) for name, kind in _ARRAY_TYPES.items()}
    transformer = TfidfTransformer(sublinear_tf=True)
    transformer.idf_ = arrays["idf"].astype(float)
    weights = arrays["weights"].astype(float).reshape(len(arrays["features"]), -1)
    scores = []
    # Count in blocks, because the counts of a row take more memory than the row.
    for start in range(0, max(len(rows), 1), _MAX_ROWS):
        matrix = transformer.transform(_count_hashes(rows[start : start + _MAX_ROWS])[:, arrays["features"]])
        scores.append(np.asarray(matrix @ weights + arrays["intercept"]))
    return np.concatenate(scores)


def _fit_outputs(matrix: csr_array, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fit ridge regression to floats, or one linear support vector machine per output to integers.

    Returns:
        Weights of shape (features, outputs), and intercepts of shape (outputs,).
    """
    from sklearn.linear_model import Ridge
    from sklearn.svm import LinearSVC

    if targets.dtype.kind == "f":
        model = Ridge(alpha=1.0, solver="sparse_cg").fit(matrix, targets)
        return model.coef_.reshape(-1, matrix.shape[1]).T, np.atleast_1d(model.intercept_)
    weights, intercept = np.zeros((matrix.shape[1], targets.shape[1])), np.zeros(targets.shape[1])
    for output, target in enumerate(targets.T):
        # No row has the label, or all rows have it.
        if target.min() == target.max():
            intercept[output] = 2 * target[0] - 1
            continue
        classifier = LinearSVC(random_state=0).fit(matrix, target)
        weights[:, output], intercept[output] = classifier.coef_[0], classifier.intercept_[0]
    return weights, intercept


def _count_hashes(rows: Sequence[Mapping[str, Any]]) -> csr_array:
    """Count the hashes of words, word pairs and 2 to 4 characters in each text, and of words that both texts share.

    Returns:
        Sparse matrix with one block of hashes per type of feature. Shape: (rows, hashes).
    """
    from scipy.sparse import hstack
    from sklearn.feature_extraction.text import HashingVectorizer

    settings = {"n_features": _NUM_HASHES, "norm": None, "alternate_sign": False}
    words = HashingVectorizer(ngram_range=(1, 2), token_pattern=_WORDS_AND_PUNCTUATION, **settings)
    characters = HashingVectorizer(analyzer="char_wb", ngram_range=(2, 4), **settings)
    columns = [name for name in ("text", "text_pair") if all(name in row for row in rows)]
    blocks = []
    for name in columns:
        texts = [str(row[name])[:_MAX_TFIDF_CHARACTERS] for row in rows]
        blocks += [words.transform(texts), characters.transform(texts)]
    if len(columns) > 1:
        shared = [set(find_words(row["text"])) & set(find_words(row["text_pair"])) for row in rows]
        blocks.append(HashingVectorizer(analyzer=list, **settings).transform(shared))
    return hstack(blocks).tocsr()

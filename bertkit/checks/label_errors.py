"""Find labels and tags that are probably wrong, by confident learning (Northcutt et al. 2021).

The probabilities come from cross-validation. A tagged row is ranked by its worst word (Wang and Mueller 2022).
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from bertkit.checks import EXAMPLES, Finding, get_severity, predict_unseen, read_texts
from bertkit.data.checks import format_fraction
from bertkit.data.columns import ColumnSpec
from bertkit.data.rows import RowLocation, Split
from bertkit.metrics.intervals import wilson_interval
from bertkit.modeling.checkpoint import read_json_object
from bertkit.modeling.layers import count_layers
from bertkit.progress import stage
from bertkit.recipe.plugins import import_extra
from bertkit.storage import disk
from bertkit.storage.cache import cache_folder
from bertkit.vectors.embedder import Embedder
from bertkit.vectors.units import UNITS

FOLDS = 5
_WARN = 0.01  # fraction of the rows
_CONFIDENT_FRACTIONS = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5)  # fractions of the rows that are tried as the confident ones
_MIN_CONFIDENT = 100


class LabelError(NamedTuple):
    """Row whose label may be wrong, with a suggested label and the probability of the present label."""

    file: str
    row: int | None
    label: str
    suggested: str
    probability: float
    text: str
    word: str = ""
    """Word with the tag; empty if the label belongs to the row."""

    def locate(self) -> RowLocation:
        """Return the location of the row."""
        return RowLocation(self.file, self.row)


class ErrorCount(NamedTuple):
    """Expected number of wrong labels, and its 95% interval."""

    expected: int
    low: int
    high: int


@dataclass(frozen=True)
class LabelErrors:
    """Probable errors in the labels of a dataset."""

    finding: Finding
    ranked: list[LabelError]
    """Rows whose label may be wrong, the most probable errors first."""
    count: ErrorCount | None = None
    """Estimated number of errors, or None for tags, because the distribution of errors over words is unknown."""


class _LabeledItems(NamedTuple):
    """Labeled rows or words (the items), with predictions of models that were not trained on them."""

    rows: list[tuple[Split, int]]
    """Split and index of each row."""
    row_indices: np.ndarray
    """Index in `rows` of the row of each item. Shape: (items,)."""
    labels: np.ndarray
    """Index in `names` of the label of each item; -1 for a word without a tag. Shape: (items,)."""
    names: list[str]
    probabilities: np.ndarray
    """Probability of each label for each item. Shape: (items, names)."""
    texts: list[str]
    """Text of each row."""
    words: Sequence[str] = ()
    """Words that are the items; empty if rows are the items."""


def find_label_errors(splits: Mapping[str, Split], columns: ColumnSpec, embedder: Embedder) -> LabelErrors | None:
    """Rank the rows of all splits whose label or tag may be wrong, the most probable errors first.

    Returns:
        The errors, or None if gold values are not labels or tags, if there are fewer than two labels, or fewer rows
        than folds.

    Raises:
        UnavailableError: If cleanlab is not installed.
    """
    cleanlab = import_extra("cleanlab.filter", "they need the package cleanlab", "check")
    labeled = (_predict_words if {"tokens", "tags"} <= {*columns.names} else _predict_rows)(splits, columns, embedder)
    if labeled is None:
        return None
    labels, probabilities = labeled.labels, labeled.probabilities
    ranking = {"return_indices_ranked_by": "self_confidence", "n_jobs": 1}
    errors: dict[int, LabelError] = {}
    # cleanlab needs a label for every item, so words without a tag get the first tag, and are skipped below.
    for item in cleanlab.find_label_issues(np.maximum(labels, 0), probabilities, **ranking).tolist():
        row, label = int(labeled.row_indices[item]), labels[item]
        if label >= 0 and row not in errors:
            probability = round(float(probabilities[item, label]), 4)
            suggested = labeled.names[int(probabilities[item].argmax())]
            word = labeled.words[item] if labeled.words else ""
            place, name = Split.locate(*labeled.rows[row]), labeled.names[label]
            errors[row] = LabelError(*place, name, suggested, probability, labeled.texts[row], word)
    count, rows = None if labeled.words else count_errors(labels, probabilities), len(labeled.rows)
    if count is None:
        ratio = len(errors) / rows
        text = f"{format_fraction(len(errors), rows)} rows have a tag that may be wrong, and are ranked"
    else:
        ratio = count.expected / rows
        text = f"about {count.expected:,} of {rows:,} labels are wrong (95% interval {count.low:,} to {count.high:,}); "
        text += f"the {len(errors):,} labels that may be wrong are ranked"
    ranked = list(errors.values())
    places = tuple(error.locate() for error in ranked[:EXAMPLES])
    finding = Finding(get_severity(ratio, warn=_WARN), "labels", "label_errors", text, places, len(ranked))
    return LabelErrors(finding, ranked, count)


def _predict_rows(splits: Mapping[str, Split], columns: ColumnSpec, embedder: Embedder) -> _LabeledItems | None:
    """Predict the labels of rows, without the rows of labels that have fewer rows than folds."""
    rows = [(split, row) for split in splits.values() for row in range(len(split.rows))]
    gold: list[Any] = [split.rows[row].get(columns.gold) for split, row in rows]
    if not all(value is None or isinstance(value, str) for value in gold):
        return None
    counts = Counter(gold)
    # A rarer label would be missing in some fold, and could not be predicted from the other rows.
    predicted_rows = [index for index, name in enumerate(gold) if name is not None and counts[name] >= FOLDS]
    names = sorted({gold[index] for index in predicted_rows})
    if len(names) < 2:
        return None
    labels = np.array([names.index(gold[index]) for index in predicted_rows])
    rows = [rows[index] for index in predicted_rows]
    texts = [read_texts(split.rows[row], columns) for split, row in rows]
    # Models of vectors and of words find different errors (see docs/decisions.md).
    vectors = embed_rows(texts, embedder)
    with stage("predicting each label from the other rows"):
        probabilities = predict_labels([" ".join(row_texts.values()) for row_texts in texts], vectors, labels)
    joined_texts = [" | ".join(row_texts.values()) for row_texts in texts]
    return _LabeledItems(rows, np.arange(len(rows)), labels, names, probabilities, joined_texts)


def _predict_words(splits: Mapping[str, Split], columns: ColumnSpec, embedder: Embedder) -> _LabeledItems | None:
    """Predict the tags of all words in rows with at least one tag."""
    rows = [(split, index) for split in splits.values() for index, row in enumerate(split.rows) if any(_get_tags(row))]
    tags = [tag for split, row in rows for tag in _get_tags(split.rows[row])]
    names = sorted({tag for tag in tags if tag is not None})
    if len(names) < 2 or len(rows) < FOLDS:
        return None
    words = [split.rows[row]["tokens"] for split, row in rows]
    row_indices = np.repeat(np.arange(len(words)), [len(row_words) for row_words in words])
    # Words without a tag are context for their neighbors. They are neither trained on nor ranked.
    labels = np.array([names.index(tag) if tag else -1 for tag in tags])
    vectors = embed_words(words, embedder)
    with stage("predicting each tag from the other rows"):
        probabilities = predict_tags(words, vectors, labels, row_indices)
    return _LabeledItems(
        rows, row_indices, labels, names, probabilities, list(map(" ".join, words)), list(chain.from_iterable(words))
    )


def count_errors(labels: np.ndarray, probabilities: np.ndarray) -> ErrorCount:
    """Estimate the number of wrong labels from the rows with the most confident predictions.

    If the model is certain of a row, a different label is an error. So if errors do not depend on the text, the most
    confident rows have the same error rate as all rows (anchor points: Liu and Tao 2016, theorem 3). It is unknown how
    many rows the model is certain of, so several fractions are tried. The rate with the lowest upper bound is used,
    because mistakes of the model can only increase a rate.

    Args:
        labels: Labels of the rows. Shape: (rows,).
        probabilities: Predictions of models that were not trained on the row. Shape: (rows, labels).
    """
    by_confidence = np.argsort(-probabilities.max(axis=1), kind="stable")
    errors = np.cumsum((probabilities.argmax(axis=1) != labels)[by_confidence])
    sizes = [min(max(int(fraction * len(labels)), _MIN_CONFIDENT), len(labels)) for fraction in _CONFIDENT_FRACTIONS]
    rates_by_size = [(errors[size - 1] / size, *wilson_interval(int(errors[size - 1]), size)) for size in sizes]
    return ErrorCount(*(round(rate * len(labels)) for rate in min(rates_by_size, key=lambda rates: rates[2])))


def predict_labels(texts: Sequence[str], vectors: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the probability of each label for each row, from models that were not trained on the row.

    The probability is the mean of two logistic regressions: one on the vectors, which represent meaning, and one on the
    words, which are specific to this dataset.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.model_selection import StratifiedKFold

    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=42)
    # The regression penalizes all dimensions equally, so they need the same scale.
    scaled_vectors = (vectors - vectors.mean(axis=0)) / np.maximum(vectors.std(axis=0), 1e-6)
    word_features = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\w+").fit_transform(texts)
    return _mean_probabilities([(scaled_vectors, 0.1), (word_features, 10.0)], labels, folds, 300)


def _mean_probabilities(
    features: Sequence[tuple[Any, float]], labels: np.ndarray, folds: Any, iterations: int
) -> np.ndarray:
    """Return the mean probability of each label for each item, from one logistic regression per feature matrix.

    Args:
        features: Feature matrices, each with the inverse regularization `C` of its regression.
        labels: Label of each item.
        folds: Folds of the cross-validation.
        iterations: Maximum number of iterations of the solver.
    """
    from sklearn.linear_model import LogisticRegression

    models = [(LogisticRegression(C=c, max_iter=iterations), values) for values, c in features]
    fold_probabilities = [predict_unseen(model, values, labels, folds, "predict_proba") for model, values in models]
    return np.asarray(sum(fold_probabilities) / len(fold_probabilities))


def embed_rows(texts: Sequence[dict[str, str]], embedder: Embedder) -> np.ndarray:
    """Concatenate the vectors of each row's texts and, for a pair, their absolute difference and their product."""
    columns = list(texts[0])
    vectors = [_embed_column([row_texts.get(name, "") for row_texts in texts], embedder) for name in columns]
    if len(columns) == 2:
        first, second = vectors
        # A linear model can only use the similarity of two texts through their difference and product.
        vectors += [np.abs(first - second), first * second]
    return np.concatenate(vectors, axis=1)


def _embed_column(texts: Sequence[str], embedder: Embedder) -> np.ndarray:
    """Compute the vectors of texts, or load them from the cache."""
    digest = hashlib.sha256(f"{embedder.describe()}".encode())
    for text in texts:
        # The NUL separates texts, so that "ab", "c" and "a", "bc" have different digests.
        digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
    file = cache_folder("vectors") / f"{digest.hexdigest()}.arrays"
    cached = disk.load_arrays(file)
    if cached is None:
        cached = {"vectors": embedder.encode(texts)}
        disk.cache_arrays(file, cached)
    return np.asarray(cached["vectors"])


# A word's vector is the mean of the last layers, because the very last layer represents the text more than the word.
_NUM_LAYERS = 4
_MAX_COMPONENTS = 128  # principal components of a vector


def embed_words(words: Sequence[Sequence[str]], embedder: Embedder) -> np.ndarray:
    """Return a vector per word, and zeros for a word without tokens. Shape: (words of all rows, dimension)."""
    config = read_json_object(embedder.folder / embedder.modules.subfolder / "config.json")
    layers = f"mean_last_{min(_NUM_LAYERS, count_layers(config) or 1)}"
    encoded = UNITS["word"].encode(replace(embedder, layers=layers), words)
    starts = np.cumsum([0, *(len(row_words) for row_words in words)])
    vectors = np.zeros((starts[-1], encoded.vectors.shape[1]), dtype=np.float32)
    vectors[starts[np.asarray(encoded.rows)] + np.asarray(encoded.columns["index"])] = encoded.vectors
    return vectors


def predict_tags(
    words: Sequence[Sequence[str]], vectors: np.ndarray, tags: np.ndarray, row_indices: np.ndarray
) -> np.ndarray:
    """Return the probability of each tag for each word, from models that were not trained on its row.

    The probability is the mean of two logistic regressions: one on the vectors of a word and its neighbors, and one on
    the words.

    Args:
        words: Words of each row.
        vectors: Vectors of all words. Shape: (words, dimension).
        tags: Index of each word's tag; -1 for a word without a tag. Shape: (words,).
        row_indices: Index of each word's row. Shape: (words,).
    """
    from sklearn.decomposition import PCA
    from sklearn.feature_extraction import DictVectorizer
    from sklearn.model_selection import GroupKFold

    components = PCA(min(_MAX_COMPONENTS, *vectors.shape), random_state=42).fit_transform(vectors)
    components /= max(float(components.std(axis=0).mean()), 1e-6)
    context_vectors = np.concatenate([_shift_values(components, row_indices, offset) for offset in (-1, 0, 1)], axis=1)
    word_features = DictVectorizer().fit_transform(chain.from_iterable(map(_describe_words, words)))
    # Words of one row stay in one fold, because a sentence repeats its names and its topic.
    row_folds = GroupKFold(FOLDS, shuffle=True, random_state=42).split(row_indices, groups=row_indices)
    # The models are fitted to words with a tag, and predict all words.
    folds = [(train_items[tags[train_items] >= 0], test_items) for train_items, test_items in row_folds]
    probabilities = _mean_probabilities([(context_vectors, 0.01), (word_features, 1.0)], tags, folds, 60)
    # If there are words without a tag, the first column has the probability of their label, -1.
    return probabilities[:, int(tags.min() < 0) :]


def _get_tags(row: Mapping[str, Any]) -> Sequence[str | None]:
    return list(row.get("tags") or ())


def _shift_values(values: np.ndarray, row_indices: np.ndarray, offset: int) -> np.ndarray:
    """Return the values of each word's neighbor in the same row, or zeros if there is no neighbor.

    >>> _shift_values(np.array([1, 2, 3, 4]), np.array([0, 0, 1, 1]), -1).tolist()  # two rows of two words
    [0, 1, 0, 3]
    """
    # Shift all rows at once, and replace values from another row by 0.
    shifted, shifted_rows = np.roll(values, -offset, axis=0), np.roll(row_indices, -offset)
    shifted[shifted_rows != row_indices] = 0
    if offset:  # `roll` wraps values around, and the edge of a single row would keep them
        shifted[0 if offset < 0 else -1] = 0
    return shifted


def _describe_words(words: Sequence[str]) -> Iterator[dict[str, int]]:
    """Yield features of each word: the word, two neighbors on each side, shapes, and the first and last letters."""
    # Two empty words on each side give the first and the last words the same number of neighbors.
    padded = ["", "", *words, "", ""]
    for position, word in enumerate(words, start=2):
        context = {f"{offset}={padded[position + offset].casefold()}": 1 for offset in (-2, -1, 0, 1, 2)}
        shapes = {f"shape {offset}={_get_shape(padded[position + offset])}": 1 for offset in (-1, 0, 1)}
        yield context | shapes | {f"begins {word[:3].casefold()}": 1, f"ends {word[-3:].casefold()}": 1}


def _get_shape(word: str) -> str:
    """Return the shape of a word: the kind of each character, without repetitions.

    >>> _get_shape("Apollo-13"), _get_shape("NASA")
    ('Aa-0', 'A')
    """
    return re.sub(r"[A-Z]+", "A", re.sub(r"[a-z]+", "a", re.sub(r"\d+", "0", word)))

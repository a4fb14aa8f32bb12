"""Find probably wrong labels and tags: confident learning with cross-validated probabilities (Northcutt et al. 2021).

A row of tags is ranked by its worst word (Wang and Mueller 2022).
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
_CONFIDENT_SHARES = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5)  # fractions of the rows that are tried as the confident ones
_MIN_CONFIDENT = 100


class LabelError(NamedTuple):
    """Row whose label may be wrong, a suggested label, and the probability of the present label."""

    file: str
    row: int | None
    label: str
    suggested: str
    probability: float
    text: str
    word: str = ""
    """Word with the tag, if words have labels."""

    def place(self) -> RowLocation:
        """Return the place of the row."""
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
    """None if words have labels, because the distribution of errors over words is unknown."""


class _Labeled(NamedTuple):
    """Labeled items, which are rows or words of rows, with predictions of models that were not trained on them."""

    rows: list[tuple[Split, int]]
    """Split and index of each row."""
    row_indices: np.ndarray
    """Position in `rows`, (items,)."""
    labels: np.ndarray
    """Index in `names` of the label of each item, (items,); -1 for a word without a tag."""
    names: list[str]
    probabilities: np.ndarray
    """Shape (items, names)."""
    texts: list[str]
    """Text of each row."""
    words: Sequence[str] = ()
    """The items themselves, if they are words."""


def find_label_errors(splits: Mapping[str, Split], columns: ColumnSpec, embedder: Embedder) -> LabelErrors | None:
    """Rank the rows of all splits whose label or tag may be wrong, the most probable errors first.

    Returns:
        The errors, or None if gold values are not labels or tags, or there are fewer than two labels, or fewer rows
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
    # A word without a tag passes as the first tag, so that cleanlab accepts it, and is left out afterwards.
    for item in cleanlab.find_label_issues(np.maximum(labels, 0), probabilities, **ranking).tolist():
        row, label = int(labeled.row_indices[item]), labels[item]
        if label >= 0 and row not in errors:
            probability = round(float(probabilities[item, label]), 4)
            suggested = labeled.names[int(probabilities[item].argmax())]
            word = labeled.words[item] if labeled.words else ""
            place, name = Split.place(*labeled.rows[row]), labeled.names[label]
            errors[row] = LabelError(*place, name, suggested, probability, labeled.texts[row], word)
    count, rows = None if labeled.words else count_errors(labels, probabilities), len(labeled.rows)
    if count is None:
        ratio, text = (
            len(errors) / rows,
            f"{format_fraction(len(errors), rows)} rows have a tag that may be wrong, and are ranked",
        )
    else:
        ratio = count.expected / rows
        text = f"about {count.expected:,} of {rows:,} labels are wrong (95% interval {count.low:,} to {count.high:,}); "
        text += f"{len(errors):,} may be, and are ranked"
    ranked = list(errors.values())
    places = tuple(error.place() for error in ranked[:EXAMPLES])
    finding = Finding(get_severity(ratio, warn=_WARN), "labels", "label_errors", text, places, len(ranked))
    return LabelErrors(finding, ranked, count)


def _predict_rows(splits: Mapping[str, Split], columns: ColumnSpec, embedder: Embedder) -> _Labeled | None:
    """Predict the labels of rows; labels that fewer rows than folds have are left out."""
    rows = [(split, row) for split in splits.values() for row in range(len(split.rows))]
    gold: list[Any] = [split.rows[row].get(columns.gold) for split, row in rows]
    if not all(value is None or isinstance(value, str) for value in gold):
        return None
    counts = Counter(gold)
    # A label needs a row in each fold: rarer ones cannot be predicted from the others.
    predicted_rows = [index for index, name in enumerate(gold) if name is not None and counts[name] >= FOLDS]
    names = sorted({gold[index] for index in predicted_rows})
    if len(names) < 2:
        return None
    labels = np.array([names.index(gold[index]) for index in predicted_rows])
    rows = [rows[index] for index in predicted_rows]
    texts = [read_texts(split.rows[row], columns) for split, row in rows]
    # Vectors and words find different errors, and together more (see decisions).
    vectors = embed_rows(texts, embedder)
    with stage("predicting each label from the other rows"):
        probabilities = predict_labels([" ".join(row_texts.values()) for row_texts in texts], vectors, labels)
    joined = [" | ".join(row_texts.values()) for row_texts in texts]
    return _Labeled(rows, np.arange(len(rows)), labels, names, probabilities, joined)


def _predict_words(splits: Mapping[str, Split], columns: ColumnSpec, embedder: Embedder) -> _Labeled | None:
    """Predict the tags of the words of all rows that have a tag."""
    rows = [(split, row) for split in splits.values() for row, values in enumerate(split.rows) if any(_tags(values))]
    tags = [tag for split, row in rows for tag in _tags(split.rows[row])]
    names = sorted({tag for tag in tags if tag is not None})
    if len(names) < 2 or len(rows) < FOLDS:
        return None
    words = [split.rows[row]["tokens"] for split, row in rows]
    row_indices = np.repeat(np.arange(len(words)), [len(row_words) for row_words in words])
    # Words without a tag give context to their neighbors. They are not learned or ranked.
    labels = np.array([names.index(tag) if tag else -1 for tag in tags])
    vectors = embed_words(words, embedder)
    with stage("predicting each tag from the other rows"):
        probabilities = predict_tags(words, vectors, labels, row_indices)
    return _Labeled(
        rows, row_indices, labels, names, probabilities, list(map(" ".join, words)), list(chain.from_iterable(words))
    )


def count_errors(labels: np.ndarray, probabilities: np.ndarray) -> ErrorCount:
    """Estimate the number of wrong labels from the rows with the most confident predictions.

    If a prediction is certain, a different label is an error. So the fraction of different labels among the most
    confident rows is the error rate, if errors do not depend on the text (anchor points: Liu and Tao 2016, theorem 3).
    The number of rows with certain predictions is unknown. Several fractions of the rows are tried, and the one with
    the lowest upper end of the interval is used, because mistakes of the model can only increase the rate.

    Args:
        labels: Labels of the rows, (rows,).
        probabilities: Predictions of models that were not trained on the row, (rows, labels).
    """
    most_confident = np.argsort(-probabilities.max(axis=1), kind="stable")
    differs = np.cumsum((probabilities.argmax(axis=1) != labels)[most_confident])
    sizes = [min(max(int(share * len(labels)), _MIN_CONFIDENT), len(labels)) for share in _CONFIDENT_SHARES]
    rates_by_size = [(differs[size - 1] / size, *wilson_interval(int(differs[size - 1]), size)) for size in sizes]
    return ErrorCount(*(round(rate * len(labels)) for rate in min(rates_by_size, key=lambda rates: rates[2])))


def predict_labels(texts: Sequence[str], vectors: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the probability of each label for each row, from models that were not trained on the row.

    It is the mean of two logistic regressions: on the vectors, which represent the meaning of words, and on the words
    themselves, which are specific to this dataset.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.model_selection import StratifiedKFold

    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=42)
    # A linear model penalizes all dimensions equally, so they get the same scale.
    scaled = (vectors - vectors.mean(axis=0)) / np.maximum(vectors.std(axis=0), 1e-6)
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\w+").fit_transform(texts)
    return _mean_probabilities([(scaled, 0.1), (words, 10.0)], labels, folds, 300)


def _mean_probabilities(
    features: Sequence[tuple[Any, float]], labels: np.ndarray, folds: Any, iterations: int
) -> np.ndarray:
    """Return the mean probability of each label for each item, from a logistic regression per kind of features.

    The features come with the strength of a regression on them.
    """
    from sklearn.linear_model import LogisticRegression

    models = [(LogisticRegression(C=strength, max_iter=iterations), values) for values, strength in features]
    predicted = [predict_unseen(model, values, labels, folds, "predict_proba") for model, values in models]
    return np.asarray(sum(predicted) / len(predicted))


def embed_rows(texts: Sequence[dict[str, str]], embedder: Embedder) -> np.ndarray:
    """Return a vector per row: the concatenated vectors of its texts and, for a pair, their difference and product."""
    columns = list(texts[0])
    vectors = [_embed_column([row_texts.get(name, "") for row_texts in texts], embedder) for name in columns]
    if len(columns) == 2:
        first, second = vectors
        # A linear model needs the difference and the product to represent whether two texts are similar.
        vectors += [np.abs(first - second), first * second]
    return np.concatenate(vectors, axis=1)


def _embed_column(texts: Sequence[str], embedder: Embedder) -> np.ndarray:
    """Compute the vectors of texts, or read them from the cache of an earlier check."""
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


# A word's vector is the mean over the last layers: the very last one describes the text more than the word.
_LAYERS = 4
_WIDTH = 128  # principal components of a vector


def embed_words(words: Sequence[Sequence[str]], embedder: Embedder) -> np.ndarray:
    """Return a vector for each word of each row, (words of all rows, dimension), or zeros for a word without tokens."""
    config = read_json_object(embedder.folder / embedder.modules.subfolder / "config.json")
    layers = f"mean_last_{min(_LAYERS, count_layers(config) or 1)}"
    encoded = UNITS["word"].encode(replace(embedder, layers=layers), words)
    starts = np.cumsum([0, *(len(row_words) for row_words in words)])
    vectors = np.zeros((starts[-1], encoded.vectors.shape[1]), dtype=np.float32)
    vectors[starts[np.asarray(encoded.rows)] + np.asarray(encoded.columns["index"])] = encoded.vectors
    return vectors


def predict_tags(
    words: Sequence[Sequence[str]], vectors: np.ndarray, tags: np.ndarray, row_indices: np.ndarray
) -> np.ndarray:
    """Return the probability of each tag for each word, from models that were not trained on its row.

    It is the mean of two logistic regressions: on the vectors of a word and its neighbors, and on the words themselves.

    Args:
        words: Words of each row.
        vectors: Vectors of all words, (words, dimension).
        tags: Indexes of the tags of all words, (words,); -1 for a word without a tag.
        row_indices: Index of the row of each word, (words,).
    """
    from sklearn.decomposition import PCA
    from sklearn.feature_extraction import DictVectorizer
    from sklearn.model_selection import GroupKFold

    reduced = PCA(min(_WIDTH, *vectors.shape), random_state=42).fit_transform(vectors)
    reduced /= max(float(reduced.std(axis=0).mean()), 1e-6)
    neighbors = np.concatenate([_shift_values(reduced, row_indices, by) for by in (-1, 0, 1)], axis=1)
    described = DictVectorizer().fit_transform(chain.from_iterable(map(_describe_words, words)))
    # Words of one row stay in one fold, because a sentence repeats its names and its topic.
    splits = GroupKFold(FOLDS, shuffle=True, random_state=42).split(row_indices, groups=row_indices)
    # Only words with a tag are learned from, but each word is predicted once.
    folds = [(training[tags[training] >= 0], held_out) for training, held_out in splits]
    probabilities = _mean_probabilities([(neighbors, 0.01), (described, 1.0)], tags, folds, 60)
    # The first column belongs to the words without a tag, if there are any.
    return probabilities[:, int(tags.min() < 0) :]


def _tags(row: Mapping[str, Any]) -> Sequence[str | None]:
    return list(row.get("tags") or ())


def _shift_values(values: np.ndarray, row_numbers: np.ndarray, by: int) -> np.ndarray:
    """Return for each word the values of a neighbor in its row, or zeros if it has no such neighbor.

    >>> _shift_values(np.array([1, 2, 3, 4]), np.array([0, 0, 1, 1]), -1).tolist()  # two rows of two words
    [0, 1, 0, 3]
    """
    # All rows are shifted at once, and values that come from another row become 0.
    moved, moved_rows = np.roll(values, -by, axis=0), np.roll(row_numbers, -by)
    moved[moved_rows != row_numbers] = 0
    if by:  # With a single row, values wrap around within it.
        moved[0 if by < 0 else -1] = 0
    return moved


def _describe_words(words: Sequence[str]) -> Iterator[dict[str, int]]:
    """Yield features of each word: itself, two words on either side, their shapes, and its first and last letters."""
    # Two empty words on each side give the first and the last words a context of the usual size.
    padded = ["", "", *words, "", ""]
    for place, word in enumerate(words, start=2):
        context = {f"{by}={padded[place + by].casefold()}": 1 for by in (-2, -1, 0, 1, 2)}
        shapes = {f"shape {by}={_shape(padded[place + by])}": 1 for by in (-1, 0, 1)}
        yield context | shapes | {f"begins {word[:3].casefold()}": 1, f"ends {word[-3:].casefold()}": 1}


def _shape(word: str) -> str:
    """Return the shape of a word: kinds of characters without repetitions.

    >>> _shape("Apollo-13"), _shape("NASA")
    ('Aa-0', 'A')
    """
    return re.sub(r"[A-Z]+", "A", re.sub(r"[a-z]+", "a", re.sub(r"\d+", "0", word)))

"""Labels and tags that may be wrong: confident learning over cross-validated probabilities (Northcutt et al. 2021).

Of a row of tags, the worst word counts (Wang and Mueller 2022).
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

from bertkit.checks import EXAMPLES, Finding, level_of, predict_unseen, read_texts
from bertkit.data.checks import share_of
from bertkit.data.columns import Columns
from bertkit.data.rows import Place, Split
from bertkit.metrics import Numbers
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
_WARN = 0.01  # share of the rows
_SURE = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5)  # of the rows, which may be the ones without doubt
_FEWEST_SURE = 100


class LabelError(NamedTuple):
    """A row whose label may be wrong, the label that may be right, and how probable the given one is."""

    file: str
    row: int | None
    label: str
    suggested: str
    probability: float
    text: str
    word: str = ""
    """The word that the tag is of, where words have labels."""

    def place(self) -> Place:
        """Return where the row is."""
        return Place(self.file, self.row)


class ErrorCount(NamedTuple):
    """How many labels are wrong: the number to expect, and its 95% interval."""

    expected: int
    low: int
    high: int


@dataclass(frozen=True)
class LabelErrors:
    """What is known about the labels of a data set."""

    finding: Finding
    ranked: list[LabelError]
    """The rows whose label may be wrong, the likeliest first."""
    count: ErrorCount | None = None
    """None where words have labels: nobody knows how errors spread over them."""


class _Labeled(NamedTuple):
    """All that has a label, which are rows or the words of rows, with what models that have not seen it predict."""

    rows: list[tuple[Split, int]]
    """Split and index of each row."""
    row_of: Numbers
    """Position in `rows`, (items,)."""
    labels: Numbers
    """Index of the given label in `names`, (items,); -1 for a word without a tag."""
    names: list[str]
    probabilities: Numbers
    """Shape (items, names)."""
    texts: list[str]
    """Text of each row."""
    words: Sequence[str] = ()
    """The items themselves, if they are words."""


def find_label_errors(splits: Mapping[str, Split], columns: Columns, embedder: Embedder) -> LabelErrors | None:
    """Rank the rows of all splits with a label or a tag that may be wrong, the likeliest first.

    Returns:
        None if gold values are not labels or tags, or there are fewer than two of these, or fewer rows than folds.

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
        row, label = int(labeled.row_of[item]), labels[item]
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
            f"{share_of(len(errors), rows)} rows have a tag that may be wrong, and are ranked",
        )
    else:
        ratio = count.expected / rows
        text = f"about {count.expected:,} of {rows:,} labels are wrong (95% interval {count.low:,} to {count.high:,}); "
        text += f"{len(errors):,} may be, and are ranked"
    ranked = list(errors.values())
    places = tuple(error.place() for error in ranked[:EXAMPLES])
    finding = Finding(level_of(ratio, warn=_WARN), "labels", "label_errors", text, places, len(ranked))
    return LabelErrors(finding, ranked, count)


def _predict_rows(splits: Mapping[str, Split], columns: Columns, embedder: Embedder) -> _Labeled | None:
    """Predict the labels of rows; labels that fewer rows than folds have are left out."""
    rows = [(split, row) for split in splits.values() for row in range(len(split.rows))]
    gold: list[Any] = [split.rows[row].get(columns.gold) for split, row in rows]
    if not all(value is None or isinstance(value, str) for value in gold):
        return None
    counts = Counter(gold)
    # A label needs a row in each fold: rarer ones cannot be predicted from the others.
    chosen = [index for index, name in enumerate(gold) if name is not None and counts[name] >= FOLDS]
    names = sorted({gold[index] for index in chosen})
    if len(names) < 2:
        return None
    labels = np.array([names.index(gold[index]) for index in chosen])
    rows = [rows[index] for index in chosen]
    texts = [read_texts(split.rows[row], columns) for split, row in rows]
    # Vectors and words find different errors, and together more (see decisions).
    vectors = embed_rows(texts, embedder)
    with stage("predicting each label from the other rows"):
        probabilities = predict_labels([" ".join(row_texts.values()) for row_texts in texts], vectors, labels)
    joined = [" | ".join(row_texts.values()) for row_texts in texts]
    return _Labeled(rows, np.arange(len(rows)), labels, names, probabilities, joined)


def _predict_words(splits: Mapping[str, Split], columns: Columns, embedder: Embedder) -> _Labeled | None:
    """Predict the tags of the words of all rows that have one."""
    rows = [(split, row) for split in splits.values() for row, values in enumerate(split.rows) if any(_tags(values))]
    tags = [tag for split, row in rows for tag in _tags(split.rows[row])]
    names = sorted({tag for tag in tags if tag is not None})
    if len(names) < 2 or len(rows) < FOLDS:
        return None
    words = [split.rows[row]["tokens"] for split, row in rows]
    row_of = np.repeat(np.arange(len(words)), [len(row_words) for row_words in words])
    # Words without a tag give context to their neighbors. They are not learned or ranked.
    labels = np.array([names.index(tag) if tag else -1 for tag in tags])
    vectors = embed_words(words, embedder)
    with stage("predicting each tag from the other rows"):
        probabilities = predict_tags(words, vectors, labels, row_of)
    return _Labeled(
        rows, row_of, labels, names, probabilities, list(map(" ".join, words)), list(chain.from_iterable(words))
    )


def count_errors(labels: Numbers, probabilities: Numbers) -> ErrorCount:
    """Estimate how many labels are wrong from the rows whose label is surest, whatever label they were given.

    Where the text leaves no doubt, a label that differs is an error. So the share that differs among the surest rows is
    the rate of errors, if these do not depend on the text (anchor points: Liu and Tao 2016, theorem 3). How many of the
    rows are sure enough is not known: of several shares, the one with the lowest upper end of the interval is taken,
    for the model's own mistakes only add to it.

    Args:
        labels: the given ones, (rows,).
        probabilities: of models that have not seen the row, (rows, labels).
    """
    surest = np.argsort(-probabilities.max(axis=1), kind="stable")
    differs = np.cumsum((probabilities.argmax(axis=1) != labels)[surest])
    sizes = [min(max(int(share * len(labels)), _FEWEST_SURE), len(labels)) for share in _SURE]
    found = [(differs[size - 1] / size, *wilson_interval(int(differs[size - 1]), size)) for size in sizes]
    return ErrorCount(*(round(rate * len(labels)) for rate in min(found, key=lambda rates: rates[2])))


def predict_labels(texts: Sequence[str], vectors: Numbers, labels: Numbers) -> Numbers:
    """Return the probability of each label for each row, from models that have not seen the row.

    The mean of two logistic regressions: on the vectors, which know what words mean, and on the words themselves, which
    know what is said in this data set.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.model_selection import StratifiedKFold

    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=42)
    scaled = (vectors - vectors.mean(axis=0)) / np.maximum(vectors.std(axis=0), 1e-6)
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\w+").fit_transform(texts)
    return _mean_probabilities([(scaled, 0.1), (words, 10.0)], labels, folds, 300)


def _mean_probabilities(features: Sequence[tuple[Any, float]], labels: Numbers, folds: Any, iterations: int) -> Numbers:
    """Return the mean probability of each label for each item, from a logistic regression per kind of features.

    The features come with the strength of a regression on them.
    """
    from sklearn.linear_model import LogisticRegression

    models = [(LogisticRegression(C=strength, max_iter=iterations), values) for values, strength in features]
    predicted = [predict_unseen(model, values, labels, folds, "predict_proba") for model, values in models]
    return np.asarray(sum(predicted) / len(predicted))


def embed_rows(texts: Sequence[dict[str, str]], embedder: Embedder) -> Numbers:
    """Return a vector per row: those of its texts beside one another; of a pair, their difference and product too."""
    columns = list(texts[0])
    of_columns = [_embed_column([of_row.get(name, "") for of_row in texts], embedder) for name in columns]
    if len(columns) == 2:
        first, second = of_columns
        # A linear model of two texts sees neither whether they are alike: that needs difference and product.
        of_columns += [np.abs(first - second), first * second]
    return np.concatenate(of_columns, axis=1)


def _embed_column(texts: Sequence[str], embedder: Embedder) -> Numbers:
    """Compute the vectors of texts, or read those that an earlier check has kept."""
    digest = hashlib.sha256(f"{embedder.describe()}".encode())
    for text in texts:
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


def embed_words(words: Sequence[Sequence[str]], embedder: Embedder) -> Numbers:
    """Return a vector for each word of each row, (words of all rows, dimension), or zeros for a word without tokens."""
    config = read_json_object(embedder.folder / embedder.modules.subfolder / "config.json")
    layers = f"mean_last_{min(_LAYERS, count_layers(config) or 1)}"
    encoded = UNITS["word"].encode(replace(embedder, layers=layers), words)
    starts = np.cumsum([0, *(len(row_words) for row_words in words)])
    vectors = np.zeros((starts[-1], encoded.vectors.shape[1]), dtype=np.float32)
    vectors[starts[np.asarray(encoded.rows)] + np.asarray(encoded.columns["index"])] = encoded.vectors
    return vectors


def predict_tags(words: Sequence[Sequence[str]], vectors: Numbers, tags: Numbers, row_of: Numbers) -> Numbers:
    """Return the probability of each tag for each word, from models that have not seen its row.

    The mean of two logistic regressions: on the vectors of a word and its neighbors, and on the words themselves.

    Args:
        words: Words of each row.
        vectors: Vectors of all words, (words, dimension).
        tags: Indexes of the tags of all words, (words,); -1 for a word without a tag.
        row_of: Index of the row of each word, (words,).
    """
    from sklearn.decomposition import PCA
    from sklearn.feature_extraction import DictVectorizer
    from sklearn.model_selection import GroupKFold

    reduced = PCA(min(_WIDTH, *vectors.shape), random_state=42).fit_transform(vectors)
    reduced /= max(float(reduced.std(axis=0).mean()), 1e-6)
    neighbors = np.concatenate([_shift_values(reduced, row_of, by) for by in (-1, 0, 1)], axis=1)
    described = DictVectorizer().fit_transform(chain.from_iterable(map(_describe_words, words)))
    splits = GroupKFold(FOLDS, shuffle=True, random_state=42).split(row_of, groups=row_of)
    # Only words with a tag are learned from, but each word is predicted once.
    folds = [(training[tags[training] >= 0], held_out) for training, held_out in splits]
    probabilities = _mean_probabilities([(neighbors, 0.01), (described, 1.0)], tags, folds, 60)
    # The first column belongs to the words without a tag, if there are any.
    return probabilities[:, int(tags.min() < 0) :]


def _tags(row: Mapping[str, Any]) -> Sequence[str | None]:
    return list(row.get("tags") or ())


def _shift_values(values: Numbers, row_numbers: Numbers, by: int) -> Numbers:
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

"""Labels and tags that may be wrong: confident learning over cross-validated probabilities (Northcutt et al. 2021).

Of a row of tags, the worst word counts (Wang and Mueller 2022).
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from bertkit.checks import EXAMPLES, Finding, level_of
from bertkit.checks.texts import read_texts
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
_LEAST = FOLDS  # rows of a label, one for each fold
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


def find_label_errors(splits: Mapping[str, Split], columns: Columns, embedder: Embedder) -> LabelErrors | None:
    """Rank the rows of all splits whose labels may be wrong, the likeliest first; None where rows have no one label.

    Raises:
        UnavailableError: cleanlab is not installed.
    """
    cleanlab = _import_cleanlab("filter")
    every = [(split, row) for split in splits.values() for row in range(len(split.rows))]
    gold: list[Any] = [split.rows[row].get(columns.gold) for split, row in every]
    if not all(value is None or isinstance(value, str) for value in gold):
        return None
    counts = Counter(gold)
    # A label needs a row in each fold: rarer ones cannot be predicted from the others.
    chosen = [number for number, name in enumerate(gold) if name is not None and counts[name] >= _LEAST]
    names = sorted({gold[number] for number in chosen})
    if len(names) < 2:
        return None
    labels = np.array([names.index(gold[number]) for number in chosen])
    rows = [every[number] for number in chosen]
    texts = [read_texts(split.rows[row], columns) for split, row in rows]
    # Vectors and words find different errors, and together more (see decisions).
    vectors = embed_rows(texts, embedder)
    with stage("predicting each label from the other rows"):
        probabilities = predict_labels([" ".join(of_row.values()) for of_row in texts], vectors, labels)
    errors = []
    options = {"return_indices_ranked_by": "self_confidence", "n_jobs": 1}
    for index in cleanlab.find_label_issues(labels, probabilities, **options).tolist():
        given, likeliest = labels[index], int(probabilities[index].argmax())
        likely = round(float(probabilities[index, given]), 4)
        text = " | ".join(texts[index].values())
        errors.append(LabelError(*Split.place(*rows[index]), names[given], names[likeliest], likely, text))
    count = count_errors(labels, probabilities)
    text = (
        f"about {count.expected:,} of {len(rows):,} labels are wrong (95% interval {count.low:,} to {count.high:,}); "
        f"{len(errors):,} may be, and are ranked"
    )
    return LabelErrors(describe(errors, text, count.expected / len(rows)), errors, count)


def describe(errors: Sequence[LabelError], text: str, share: float) -> Finding:
    """Build the line about errors, with their share of the rows."""
    places = tuple(error.place() for error in errors[:EXAMPLES])
    return Finding(level_of(share, warn=_WARN), "labels", "label_errors", text, places, len(errors))


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
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=42)
    scaled = (vectors - vectors.mean(axis=0)) / np.maximum(vectors.std(axis=0), 1e-6)
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\w+").fit_transform(texts)
    of_each = []
    # the last digits of a probability change no ranking
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        for features, strength in ((scaled, 0.1), (words, 10.0)):
            model = LogisticRegression(C=strength, max_iter=300)
            of_each.append(cross_val_predict(model, features, labels, cv=folds, method="predict_proba"))
    return np.asarray(sum(of_each) / len(of_each))


def _import_cleanlab(module: str) -> Any:
    return import_extra(f"cleanlab.{module}", "they need the package cleanlab", "check")


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
_STRENGTHS = {"vectors": 0.01, "words": 1.0}
_ITERATIONS = 60


def find_tag_errors(splits: Mapping[str, Split], columns: Columns, embedder: Embedder) -> LabelErrors | None:
    """Rank the rows of all splits that have a tag which may be wrong, the likeliest first, or return None.

    There is nothing to rank with fewer than two tags, or fewer rows than folds.

    Raises:
        UnavailableError: If cleanlab is not installed.
    """
    cleanlab = _import_cleanlab("token_classification.filter")
    rows = [(split, number) for split in splits.values() for number, row in enumerate(split.rows) if any(_tags(row))]
    names = sorted({tag for split, number in rows for tag in _tags(split.rows[number]) if tag is not None})
    if len(names) < 2 or len(rows) < FOLDS:
        return None
    words = [split.rows[number]["tokens"] for split, number in rows]
    # (words of all rows,). Words without a tag (-1) give context to their neighbors. They are not learned or ranked.
    tags = np.array([names.index(tag) if tag else -1 for split, number in rows for tag in _tags(split.rows[number])])
    vectors = embed_words(words, embedder)
    with stage("predicting each tag from the other rows"):
        probabilities = predict_tags(words, vectors, tags)
    ends = np.cumsum([len(row_words) for row_words in words])[:-1]
    row_probabilities, given_tags = np.split(probabilities, ends), np.split(tags, ends)
    worst: dict[int, int] = {}
    for row, word in cleanlab.find_label_issues([np.maximum(tags, 0) for tags in given_tags], row_probabilities):
        if given_tags[row][word] >= 0:
            worst.setdefault(row, word)
    errors = []
    for row, word in worst.items():
        tag, likeliest = given_tags[row][word], int(row_probabilities[row][word].argmax())
        probability, texts = (
            round(float(row_probabilities[row][word, tag]), 4),
            (" ".join(words[row]), words[row][word]),
        )
        errors.append(LabelError(*Split.place(*rows[row]), names[tag], names[likeliest], probability, *texts))
    text = f"{share_of(len(errors), len(rows))} rows have a tag that may be wrong, and are ranked"
    return LabelErrors(describe(errors, text, len(errors) / len(rows)), errors)


def embed_words(words: Sequence[Sequence[str]], embedder: Embedder) -> Numbers:
    """Return a vector for each word of each row, (words of all rows, dimension), or zeros for a word without tokens."""
    config = read_json_object(embedder.folder / embedder.modules.subfolder / "config.json")
    layers = f"mean_last_{min(_LAYERS, count_layers(config) or 1)}"
    encoded = UNITS["word"].encode(replace(embedder, layers=layers), words)
    starts = np.cumsum([0, *(len(row_words) for row_words in words)])
    vectors = np.zeros((starts[-1], encoded.vectors.shape[1]), dtype=np.float32)
    vectors[starts[np.asarray(encoded.rows)] + np.asarray(encoded.columns["index"])] = encoded.vectors
    return vectors


def predict_tags(words: Sequence[Sequence[str]], vectors: Numbers, tags: Numbers) -> Numbers:
    """Return the probability of each tag for each word, from models that have not seen its row.

    The mean of two logistic regressions: on the vectors of a word and its neighbors, and on the words themselves.

    Args:
        words: Words of each row.
        vectors: Vectors of all words, (words, dimension).
        tags: Indexes of the tags of all words, (words,); -1 for a word without a tag.
    """
    from sklearn.decomposition import PCA
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.feature_extraction import DictVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GroupKFold

    row_numbers = np.repeat(np.arange(len(words)), [len(row_words) for row_words in words])
    reduced = PCA(min(_WIDTH, *vectors.shape), random_state=42).fit_transform(vectors)
    reduced /= max(float(reduced.std(axis=0).mean()), 1e-6)
    features = {
        "vectors": np.concatenate([_shift_values(reduced, row_numbers, by) for by in (-1, 0, 1)], axis=1),
        "words": DictVectorizer().fit_transform(chain.from_iterable(map(_describe_words, words))),
    }
    probabilities = np.zeros((len(tags), int(tags.max()) + 1))
    # The last digits of a probability change no ranking.
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        for training, held_out in GroupKFold(FOLDS, shuffle=True, random_state=42).split(
            row_numbers, groups=row_numbers
        ):
            tagged = training[tags[training] >= 0]
            for name, values in features.items():
                model = LogisticRegression(C=_STRENGTHS[name], max_iter=_ITERATIONS).fit(values[tagged], tags[tagged])
                probabilities[np.ix_(held_out, model.classes_)] += model.predict_proba(values[held_out]) / len(features)
    return probabilities


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

"""Tags that may be wrong: the worst word of each row (Wang and Mueller 2022), by words, their neighbors and vectors."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bertkit.checks.label_errors import FOLDS, LabelError, LabelErrors, describe
from bertkit.data.checks import share_of
from bertkit.data.columns import Columns
from bertkit.data.rows import Split
from bertkit.metrics import Numbers
from bertkit.modeling.layers import count_layers
from bertkit.modeling.weights import read_json_object
from bertkit.progress import stage
from bertkit.recipe.plugins import import_extra
from bertkit.vectors.embedder import Embedder
from bertkit.vectors.units import UNITS

# the last ones, whose mean is a word's vector; that of the very last is more of the text than of the word
_LAYERS = 4
_WIDTH = 128  # principal components of the vectors, of the word and of either neighbor
_STRENGTHS = {"vectors": 0.01, "words": 1.0}
_ITERATIONS = 60


def find_tag_errors(splits: Mapping[str, Split], columns: Columns, embedder: Embedder) -> LabelErrors | None:
    """Rank the rows of all splits that have a tag which may be wrong, the likeliest first; None without two tags.

    Raises:
        UnavailableError: cleanlab is not installed.
    """
    rank = _load_cleanlab()
    rows = [(split, number) for split in splits.values() for number, row in enumerate(split.rows) if any(_tags(row))]
    names = sorted({tag for split, number in rows for tag in _tags(split.rows[number]) if tag is not None})
    if len(names) < 2 or len(rows) < FOLDS:
        return None
    words = [split.rows[number]["tokens"] for split, number in rows]
    # (words of all rows,); words without a tag are read beside the others, and neither learned nor ranked
    tags = np.array([names.index(tag) if tag else -1 for split, number in rows for tag in _tags(split.rows[number])])
    vectors = embed_words(words, embedder)
    with stage("predicting each tag from the other rows"):
        probabilities = predict_tags(words, vectors, tags)
    ends = np.cumsum([len(of_row) for of_row in words])[:-1]
    of_rows, given_tags = np.split(probabilities, ends), np.split(tags, ends)
    worst: dict[int, int] = {}
    for row, word in rank([np.maximum(one, 0) for one in given_tags], of_rows):
        if given_tags[row][word] >= 0:
            worst.setdefault(row, word)
    errors = []
    for row, word in worst.items():
        tag, likeliest = given_tags[row][word], int(of_rows[row][word].argmax())
        likely, texts = round(float(of_rows[row][word, tag]), 4), (" ".join(words[row]), words[row][word])
        errors.append(LabelError(*Split.place(*rows[row]), names[tag], names[likeliest], likely, *texts))
    text = f"{share_of(len(errors), len(rows))} rows have a tag that may be wrong, and are ranked"
    return LabelErrors(describe(errors, text, len(errors) / len(rows)), errors)


def embed_words(words: Sequence[Sequence[str]], embedder: Embedder) -> Numbers:
    """Return a vector for each word of each row, (words of all rows, dimension); zeros for one without tokens."""
    config = read_json_object(embedder.folder / embedder.modules.subfolder / "config.json")
    layers = f"mean_last_{min(_LAYERS, count_layers(config) or 1)}"
    plain = replace(embedder, layers=layers)
    encoded = UNITS["word"].encode(plain, words)
    starts = np.cumsum([0, *(len(of_row) for of_row in words)])
    vectors = np.zeros((starts[-1], encoded.vectors.shape[1]), dtype=np.float32)
    vectors[starts[np.asarray(encoded.rows)] + np.asarray(encoded.columns["index"])] = encoded.vectors
    return vectors


def predict_tags(words: Sequence[Sequence[str]], vectors: Numbers, tags: Numbers) -> Numbers:
    """Return the probability of each tag for each word, from models that have not seen its row.

    The mean of two logistic regressions: on the vectors of a word and its neighbors, and on the words themselves.

    Args:
        words: of each row.
        vectors: of all words, (words, dimension).
        tags: of all words, (words,), counted from 0; -1 for none.
    """
    from sklearn.decomposition import PCA
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.feature_extraction import DictVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GroupKFold

    row_of = np.repeat(np.arange(len(words)), [len(of_row) for of_row in words])
    reduced = PCA(min(_WIDTH, *vectors.shape), random_state=42).fit_transform(vectors)
    reduced /= max(float(reduced.std(axis=0).mean()), 1e-6)
    features = {
        "vectors": np.concatenate([_shift_values(reduced, row_of, by) for by in (-1, 0, 1)], axis=1),
        "words": DictVectorizer().fit_transform(one for of_row in words for one in _describe_words(of_row)),
    }
    probabilities = np.zeros((len(tags), int(tags.max()) + 1))
    # the last digits of a probability change no ranking
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        for training, others in GroupKFold(FOLDS, shuffle=True, random_state=42).split(row_of, groups=row_of):
            known = training[tags[training] >= 0]
            for name, values in features.items():
                model = LogisticRegression(C=_STRENGTHS[name], max_iter=_ITERATIONS).fit(values[known], tags[known])
                probabilities[np.ix_(others, model.classes_)] += model.predict_proba(values[others]) / len(features)
    return probabilities


def _tags(row: Mapping[str, Any]) -> Sequence[str | None]:
    return list(row.get("tags") or ())


def _shift_values(values: Numbers, row_of: Numbers, by: int) -> Numbers:
    """Return for each word the values of a neighbor in its row; zeros where there is none.

    >>> _shift_values(np.array([1, 2, 3, 4]), np.array([0, 0, 1, 1]), -1).tolist()  # of two rows, what stands before
    [0, 1, 0, 3]
    """
    # All rows at once: what is rolled in from another row becomes 0.
    moved, own = np.roll(values, -by, axis=0), np.roll(row_of, -by)
    moved[own != row_of] = 0
    if by:  # the first and the last row may be the same one
        moved[0 if by < 0 else -1] = 0
    return moved


def _describe_words(words: Sequence[str]) -> Iterator[dict[str, int]]:
    """Yield what is known of each word: it and two words on either side, their shapes, its first and last letters."""
    padded = ["", "", *words, "", ""]
    for place, word in enumerate(words, start=2):
        near = {f"{by}={padded[place + by].casefold()}": 1 for by in (-2, -1, 0, 1, 2)}
        shapes = {f"shape {by}={_shape(padded[place + by])}": 1 for by in (-1, 0, 1)}
        yield near | shapes | {f"begins {word[:3].casefold()}": 1, f"ends {word[-3:].casefold()}": 1}


def _shape(word: str) -> str:
    """Return what a word is made of.

    >>> _shape("Apollo-13"), _shape("NASA")
    ('Aa-0', 'A')
    """
    return re.sub(r"[A-Z]+", "A", re.sub(r"[a-z]+", "a", re.sub(r"\d+", "0", word)))


def _load_cleanlab() -> Any:
    """Return the function of cleanlab that ranks words, (row, word), from the tags and their probabilities by row.

    Raises:
        UnavailableError: cleanlab is not installed.
    """
    module = "cleanlab.token_classification.filter"
    return import_extra(module, "they need the package cleanlab", "check").find_label_issues

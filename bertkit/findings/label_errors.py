"""Labels that may be wrong: confident learning over cross-validated probabilities (Northcutt et al. 2021)."""

from __future__ import annotations

import hashlib
import logging
import warnings
import zipfile
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bertkit.data.checks import share_of
from bertkit.data.rows import Columns, Split
from bertkit.errors import UnavailableError
from bertkit.findings import Finding, level_of, places_of
from bertkit.findings.texts import read_texts
from bertkit.progress import SILENT, Progress, stage
from bertkit.storage import cache

if TYPE_CHECKING:
    from bertkit.vectors.embedder import Embedder

log = logging.getLogger("bertkit")

Values = np.ndarray[Any, Any]

_FOLDS = 5
_LEAST = 5  # rows of a label, one for each fold
_WARN = 0.01  # share of the rows


class LabelError(NamedTuple):
    """A row whose label may be wrong, the label that may be right, and how probable the given one is."""

    file: str
    row: int
    label: str
    suggested: str
    probability: float


def find_label_errors(
    train: Split, columns: Columns, embedder: Embedder, progress: Progress = SILENT
) -> tuple[list[Finding], list[LabelError]]:
    """Rank the training rows whose labels may be wrong, the likeliest first.

    Raises:
        UnavailableError: cleanlab is not installed.
    """
    rank = load_cleanlab()
    gold: list[Any] = [row.get(columns.gold) for row in train.rows]
    if not all(isinstance(value, str) for value in gold):
        return [], []
    counts = {name: gold.count(name) for name in set(gold)}
    rows = [row for row, name in enumerate(gold) if counts[name] >= _LEAST]
    names = sorted({gold[row] for row in rows})
    if len(names) < 2:
        return [], []
    labels = np.array([names.index(gold[row]) for row in rows])
    texts = [read_texts(train.rows[row], columns) for row in rows]
    vectors = embed_rows(texts, embedder, progress)
    with stage(progress, "predicting each label from the other rows"):
        probabilities = predict_labels([" ".join(of_row.values()) for of_row in texts], vectors, labels)
    ranked = rank(labels, probabilities)
    errors = [
        LabelError(
            train.source,
            train.lines[rows[index]],
            names[labels[index]],
            names[int(probabilities[index].argmax())],
            round(float(probabilities[index, labels[index]]), 4),
        )
        for index in ranked
    ]
    share = share_of(len(errors), len(train.rows)) if errors else "no"
    text = f"train: {share} rows may have a wrong label"
    places = places_of(train, [rows[index] for index in ranked])
    finding = Finding(
        level_of(len(errors) / len(rows), warn=_WARN), "labels", "label_errors", text, places, len(errors)
    )
    return [finding], errors


def predict_labels(texts: Sequence[str], vectors: Values, labels: Values, seed: int = 42) -> Values:
    """Return the probability of each label for each row, from models that have not seen the row.

    The mean of two logistic regressions: on the vectors, which know what words mean, and on the words themselves, which
    know what is said in this data set.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=seed)
    scaled = (vectors - vectors.mean(axis=0)) / np.maximum(vectors.std(axis=0), 1e-6)
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\w+").fit_transform(texts)
    of_each = []
    with warnings.catch_warnings():  # the last digits of a probability change no ranking
        warnings.simplefilter("ignore", ConvergenceWarning)
        for features, strength in ((scaled, 0.1), (words, 10.0)):
            model = LogisticRegression(C=strength, max_iter=300)
            of_each.append(cross_val_predict(model, features, labels, cv=folds, method="predict_proba"))
    return np.asarray(sum(of_each) / len(of_each))


def load_cleanlab() -> Any:
    """Return the function of cleanlab that ranks rows, from labels and the probabilities of each.

    Raises:
        UnavailableError: cleanlab is not installed.
    """
    try:
        from cleanlab.filter import find_label_issues
    except ImportError:
        raise UnavailableError("they need the package cleanlab", "pip install 'bertkit[check]'") from None

    def rank(labels: Values, probabilities: Values) -> list[int]:
        found = find_label_issues(labels, probabilities, return_indices_ranked_by="self_confidence", n_jobs=1)
        ranked: list[int] = found.tolist()
        return ranked

    return rank


def embed_rows(texts: Sequence[dict[str, str]], embedder: Embedder, progress: Progress) -> Values:
    """Return a vector per row: those of its texts beside one another; of a pair, their difference and product too."""
    columns = list(texts[0])
    of_columns = [_embed_column([of_row.get(name, "") for of_row in texts], embedder, progress) for name in columns]
    if len(columns) == 2:
        first, second = of_columns
        of_columns += [np.abs(first - second), first * second]
    return np.concatenate(of_columns, axis=1)


def _embed_column(texts: Sequence[str], embedder: Embedder, progress: Progress) -> Values:
    """Compute the vectors of texts, or read those that an earlier check has kept."""
    digest = hashlib.sha256(f"{embedder.describe()}".encode())
    for text in texts:
        digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
    file = cache.cache_folder("vectors") / f"{digest.hexdigest()}.npz"
    if file.is_file():
        try:
            with file.open("rb") as stream, np.load(stream, allow_pickle=False) as kept:  # a zip file has checksums
                vectors: Values = kept["vectors"]
            cache.touch(file)
            return vectors
        except (ValueError, KeyError, OSError, zipfile.BadZipFile):
            log.info(f"{file} is damaged, so the vectors are computed anew")
    vectors = embedder.encode(texts, progress=progress)
    with cache.writing(file) as temporary, temporary.open("wb") as output:
        np.savez(output, vectors=vectors)
    return vectors

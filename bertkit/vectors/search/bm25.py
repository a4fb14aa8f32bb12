"""BM25 (bm25s): texts ranked by the words that they share with a query, the usual baseline of search by vectors."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from bertkit.recipe.plugins import import_extra

if TYPE_CHECKING:
    import bm25s


# Letters and digits of one word, in lowercase. Chinese and Japanese have no spaces, so each of their characters is one.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\W\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+")
_K1, _B = 1.2, 0.75  # defaults of Lucene
_ROWS = "rows.npy"


def split_words(text: str) -> list[str]:
    """Split a text into the words that BM25 counts.

    >>> split_words("BM25's \u5317\u4eac")
    ['bm25', 's', '\u5317', '\u4eac']
    """
    return _WORD.findall(text.lower())


@dataclass(frozen=True)
class BM25:
    """The BM25 scores of the words of some rows."""

    bm25: bm25s.BM25
    """Scores of all words."""
    rows: np.ndarray
    """Index of each row, ascending; rows that were deleted before are missing."""

    @classmethod
    def build(cls, texts: Iterable[tuple[int, str]]) -> BM25:
        """Count the words of rows, each given by its index, ascending, and its text.

        Raises:
            UnavailableError: If bm25s is not installed.
        """
        bm25 = _load_bm25s().BM25(k1=_K1, b=_B)
        vocabulary: dict[str, int] = {"": 0}  # bm25s needs a word, even if no text has one
        rows, word_ids = [], []
        for row, text in texts:
            rows.append(row)
            word_ids.append([vocabulary.setdefault(word, len(vocabulary)) for word in split_words(text)])
        bm25.index((word_ids if any(word_ids) else [[0] for _ in word_ids], vocabulary), show_progress=False)
        return cls(bm25, np.array(rows, dtype=np.int64))

    @classmethod
    def load(cls, folder: Path) -> BM25:
        """Open a saved index; scores stay on disk until they are needed.

        Raises:
            UnavailableError: If bm25s is not installed.
        """
        bm25 = _load_bm25s().BM25.load(folder, mmap=True, show_progress=False)
        return cls(bm25, np.load(folder / _ROWS, mmap_mode="r"))

    def save(self, folder: Path) -> None:
        """Write the files of bm25s and the indices of the rows into a folder."""
        folder.mkdir(parents=True)
        self.bm25.save(folder, show_progress=False)
        np.save(folder / _ROWS, self.rows)

    def score(self, query: str, rows: np.ndarray | Sequence[int]) -> np.ndarray:
        """Compute the scores of some rows, float32; a row without a word of the query gets 0."""
        return self._score_all(query)[np.searchsorted(self.rows, np.asarray(rows, dtype=np.int64))]

    def search(self, query: str, k: int, deleted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the highest scores, descending, and the indices of their rows; an earlier row wins a tie.

        Rows without a word of the query and rows in `deleted` are left out, so there can be fewer than `k` results.
        """
        scores = self._score_all(query)
        scores[np.isin(self.rows, deleted)] = 0
        matches = np.flatnonzero(scores > 0)
        if len(matches) > k:
            # The k-th score. All rows with this score stay until the sort, so that the earlier row wins a tie.
            lowest = np.partition(scores[matches], len(matches) - k)[len(matches) - k]
            matches = matches[scores[matches] >= lowest]
        matches = matches[np.argsort(-scores[matches], kind="stable")][:k]
        return scores[matches], self.rows[matches]

    def _score_all(self, query: str) -> np.ndarray:
        vocabulary = self.bm25.vocab_dict
        words = [vocabulary[word] for word in split_words(query) if word in vocabulary]
        if not words:
            return np.zeros(len(self.rows), dtype=np.float32)
        return np.asarray(self.bm25.get_scores_from_ids(words))


def _load_bm25s() -> ModuleType:
    """Import bm25s without JAX, by which it would take most of a GPU's memory to find a few largest scores."""
    hides_jax = "jax" not in sys.modules
    if hides_jax:
        sys.modules["jax"] = None  # type: ignore[assignment]
    try:
        return import_extra("bm25s", "search by words needs the package bm25s", "search")
    finally:
        if hides_jax:
            del sys.modules["jax"]

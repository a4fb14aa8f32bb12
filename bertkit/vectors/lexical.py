"""BM25 (bm25s): texts ranked by the words that they share with a query, as search by vectors is measured against."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.errors import UnavailableError

if TYPE_CHECKING:
    import numpy as np

# Letters and digits of one word, in lowercase. Chinese and Japanese have no spaces, so each of their characters is one.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\W\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+")
_K1, _B = 1.2, 0.75  # Lucene's


def split_words(text: str) -> list[str]:
    """Split a text into the words that BM25 counts.

    >>> split_words("BM25's \u5317\u4eac")
    ['bm25', 's', '\u5317', '\u4eac']
    """
    return _WORD.findall(text.lower())


@dataclass(frozen=True)
class LexicalIndex:
    """The BM25 scores of the words of some texts."""

    bm25: Any
    """A ``bm25s.BM25`` that is indexed."""

    @classmethod
    def build(cls, texts: Iterable[str]) -> LexicalIndex:
        """Count the words of texts.

        Raises:
            UnavailableError: bm25s is not installed.
        """
        bm25 = _load_bm25s().BM25(k1=_K1, b=_B)
        vocabulary: dict[str, int] = {"": 0}  # bm25s needs a word, also where no text has one
        counted = [[vocabulary.setdefault(word, len(vocabulary)) for word in split_words(text)] for text in texts]
        if not any(counted):
            counted = [[0] for _ in counted]
        bm25.index((counted, vocabulary), show_progress=False)
        return cls(bm25)

    @classmethod
    def load(cls, folder: Path) -> LexicalIndex:
        """Open a saved index; scores stay on disk until they are needed.

        Raises:
            UnavailableError: bm25s is not installed.
        """
        return cls(_load_bm25s().BM25.load(folder, mmap=True, show_progress=False))

    def save(self, folder: Path) -> None:
        """Write the index into a folder, in the files of bm25s."""
        self.bm25.save(folder, show_progress=False)

    def scores(self, query: str) -> np.ndarray[Any, Any]:
        """Compute the score of each text, float32 of shape (texts,); 0 if it has no word of the query."""
        import numpy as np

        vocabulary = self.bm25.vocab_dict
        words = [vocabulary[word] for word in split_words(query) if word in vocabulary]
        if not words:
            return np.zeros(self.bm25.scores["num_docs"], dtype=np.float32)
        scores: np.ndarray[Any, Any] = self.bm25.get_scores_from_ids(words)
        return scores

    def search(self, query: str, count: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Find the texts with the highest scores: their numbers and scores, the best first, the earlier of equal ones.

        Texts without a word of the query are left out, so there may be fewer than `count`.
        """
        import numpy as np

        scores = self.scores(query)
        found = np.flatnonzero(scores > 0)
        if len(found) > count:
            least = np.partition(scores[found], len(found) - count)[len(found) - count]
            found = found[scores[found] >= least]
        found = found[np.argsort(-scores[found], kind="stable")][:count]
        return found, scores[found]


def _load_bm25s() -> Any:
    try:
        import bm25s
    except ImportError:
        raise UnavailableError("search by words needs the package bm25s", "pip install 'bertkit[search]'") from None
    return bm25s

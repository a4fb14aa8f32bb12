"""How a tokenizer splits texts: tokens per word, words that stay whole, unknown tokens."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

_WORD = re.compile(r"\w+")

Offsets = Sequence[tuple[int, int]]


@dataclass
class Splitting:
    """Counts over texts; a word is a run of letters and digits."""

    texts: int = 0
    words: int = 0
    tokens_of_words: int = 0
    whole_words: int = 0
    """Those that are one token."""
    seen: Counter[int] = field(default_factory=Counter)
    """Token id -> how often it occurs."""
    unknown: Counter[str] = field(default_factory=Counter)
    """Text -> how often it became the unknown token."""

    def add(self, text: str, ids: Sequence[int], offsets: Offsets, unknown_id: int | None) -> None:
        """Count a text, which was tokenized without special tokens."""
        counts = tokens_per_word(text, offsets)
        self.texts += 1
        self.words += len(counts)
        self.tokens_of_words += sum(counts)
        self.whole_words += counts.count(1)
        self.seen.update(ids)
        if unknown_id is not None and unknown_id in ids:
            spans = zip(offsets, ids, strict=True)
            self.unknown.update(text[start:end] for (start, end), number in spans if number == unknown_id)

    @property
    def tokens(self) -> int:
        """All tokens, those of punctuation too."""
        return self.seen.total()

    @property
    def fertility(self) -> float:
        """Tokens per word."""
        return self.tokens_of_words / max(self.words, 1)

    @property
    def coverage(self) -> float:
        """Share of words that are one token."""
        return self.whole_words / max(self.words, 1)

    @property
    def unknown_rate(self) -> float:
        """Share of tokens that are the unknown token."""
        return self.unknown.total() / max(self.tokens, 1)

    def figures(self) -> dict[str, Any]:
        """Return the number of words and the shares, by name."""
        return {name: getattr(self, name) for name in ("words", "fertility", "coverage", "unknown_rate")}

    def most_unknown(self, count: int = 5) -> list[tuple[str, int]]:
        """List the texts that most often became the unknown token."""
        return sorted(self.unknown.items(), key=lambda entry: (-entry[1], entry[0]))[:count]


def find_words(text: str) -> list[tuple[int, int]]:
    """Return the first and last + 1 character of each word.

    >>> find_words("an owl.")
    [(0, 2), (3, 6)]
    """
    return [match.span() for match in _WORD.finditer(text)]


def tokens_per_word(text: str, offsets: Offsets) -> list[int]:
    """Count for each word the tokens that cover some of it.

    >>> tokens_per_word("an owl.", [(0, 2), (3, 5), (5, 6), (6, 7)])
    [1, 2]
    """
    import numpy as np

    # Words and tokens are sorted spans of characters, shape (n, 2). The tokens of a word are those between the first
    # that ends behind its start and the first that starts behind its end: two binary searches instead of a loop.
    words = np.array(find_words(text), dtype=np.int64).reshape(-1, 2)
    tokens = np.array([span for span in offsets if span[0] < span[1]], dtype=np.int64).reshape(-1, 2)
    ended = np.searchsorted(tokens[:, 1], words[:, 0], side="right")
    counts: list[int] = (np.searchsorted(tokens[:, 0], words[:, 1], side="left") - ended).tolist()
    return counts

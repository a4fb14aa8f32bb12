"""Statistics of a tokenizer: tokens per word, words that are one token, unknown tokens."""

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
    """Running counts over texts; a word is a run of letters and digits."""

    texts: int = 0
    words: int = 0
    tokens_of_words: int = 0
    single_token_words: int = 0
    """Number of words that are one token."""
    seen: Counter[int] = field(default_factory=Counter)
    """Token id -> number of occurrences."""
    unknown: Counter[str] = field(default_factory=Counter)
    """Text -> number of times that it became the unknown token."""

    def add(self, text: str, ids: Sequence[int], offsets: Offsets, unknown_id: int | None) -> None:
        """Count a text, which was tokenized without special tokens."""
        counts = tokens_per_word(text, offsets)
        self.texts += 1
        self.words += len(counts)
        self.tokens_of_words += sum(counts)
        self.single_token_words += counts.count(1)
        self.seen.update(ids)
        if unknown_id is not None and unknown_id in ids:
            spans = zip(offsets, ids, strict=True)
            self.unknown.update(text[start:end] for (start, end), token_id in spans if token_id == unknown_id)

    @property
    def tokens(self) -> int:
        """Number of all tokens, punctuation included."""
        return self.seen.total()

    @property
    def fertility(self) -> float:
        """Tokens per word."""
        return self.tokens_of_words / max(self.words, 1)

    @property
    def coverage(self) -> float:
        """Fraction of words that are one token."""
        return self.single_token_words / max(self.words, 1)

    @property
    def unknown_rate(self) -> float:
        """Fraction of tokens that are the unknown token."""
        return self.unknown.total() / max(self.tokens, 1)

    def figures(self) -> dict[str, Any]:
        """Return the number of words, the tokens per word and the fractions, by name."""
        return {name: getattr(self, name) for name in ("words", "fertility", "coverage", "unknown_rate")}

    def frequent_unknown(self) -> list[tuple[str, int]]:
        """Return the five texts that became the unknown token most often."""
        return sorted(self.unknown.items(), key=lambda entry: (-entry[1], entry[0]))[:5]


def find_words(text: str) -> list[tuple[int, int]]:
    """Return the first and last + 1 character of each word.

    >>> find_words("an owl.")
    [(0, 2), (3, 6)]
    """
    return [match.span() for match in _WORD.finditer(text)]


def tokens_per_word(text: str, offsets: Offsets) -> list[int]:
    """Count the tokens that overlap with each word.

    >>> tokens_per_word("an owl.", [(0, 2), (3, 5), (5, 6), (6, 7)])
    [1, 2]
    """
    import numpy as np

    # In the example, the words are (0, 2) and (3, 6). Their first tokens are [0, 1], and the first tokens after them
    # [1, 3], so they have [1, 2] tokens.
    # Words and tokens are sorted spans of characters (n, 2). A word's tokens begin with the first token that ends
    # after the word's start, and end before the first token that starts after its end: two binary searches.
    words = np.array(find_words(text), dtype=np.int64).reshape(-1, 2)
    tokens = np.array([span for span in offsets if span[0] < span[1]], dtype=np.int64).reshape(-1, 2)
    ended = np.searchsorted(tokens[:, 1], words[:, 0], side="right")
    counts: list[int] = (np.searchsorted(tokens[:, 0], words[:, 1], side="left") - ended).tolist()
    return counts

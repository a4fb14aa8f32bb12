"""Choose the tokens to mask, one by one, as whole words or as spans, and replace them.

Special tokens and padding are never masked: `maskable` is False for them. Every function draws only from its generator,
so the same seed gives the same mask.

In this example, three tokens are between special tokens. The second token continues the word of the first, so both are
masked together:

>>> maskable, word_starts = np.array([0, 1, 1, 1, 0], bool), np.array([1, 1, 0, 1, 1], bool)
>>> [edges.tolist() for edges in _find_words(maskable, word_starts)]  # first, last + 1, words up to the end
[[1, 3], [3, 4], [2, 2]]
>>> is_chosen = choose_words(maskable, word_starts, 0.67, np.random.default_rng(0))
>>> tokens, random = np.array([101, 7, 8, 9, 102]), np.random.default_rng(0)
>>> corrupt(tokens, is_chosen, random, mask_token_id=103, ordinary=tokens[1:4], mask_random_keep=(1, 0, 0)).tolist()
[101, 103, 103, 9, 102]
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from bertkit.tokens.features import Tokenizer

Random: TypeAlias = np.random.Generator

MASK_RANDOM_KEEP = (0.8, 0.1, 0.1)
"""Fractions of the chosen tokens that are masked, replaced at random, and kept (Devlin et al. 2019)."""

_TRIES = 20  # random first words that are tried per span

_UNUSED = re.compile(r"\[unused\d+\]|<unused\d+>")


def ordinary_tokens(tokenizer: Tokenizer) -> np.ndarray:
    """Return the sorted ids that can replace a masked token at random, without special, added and unused tokens."""
    excluded_ids = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    vocabulary = tokenizer.get_vocab()
    ids = (index for token, index in vocabulary.items() if index not in excluded_ids and not _UNUSED.match(token))
    return np.array(sorted(ids))


def count_chosen(maskable: np.ndarray, rate: float) -> int:
    """Return the number of tokens to mask: the rounded fraction, but at least one if any token is maskable.

    >>> count_chosen(np.ones(100, bool), 0.15), count_chosen(np.ones(2, bool), 0.15), count_chosen(np.ones(0, bool), 1)
    (15, 1, 0)
    """
    tokens = int(np.count_nonzero(maskable))
    return min(tokens, max(1, round(rate * tokens)))


def choose_tokens(maskable: np.ndarray, rate: float, random: Random) -> np.ndarray:
    """Choose an exact number of single tokens (Devlin et al. 2019, section 3.1). Shape: (tokens,)."""
    is_chosen, count = np.zeros(len(maskable), bool), count_chosen(maskable, rate)
    is_chosen[random.choice(np.flatnonzero(maskable), count, replace=False, shuffle=False)] = True
    return is_chosen


def choose_words(maskable: np.ndarray, word_starts: np.ndarray, rate: float, random: Random) -> np.ndarray:
    """Choose whole words in random order until enough tokens are chosen (BERT's whole-word masking). Shape: (tokens,).

    A word that would exceed the number is skipped, so slightly fewer tokens can be chosen. The shortest word always
    fits, so at least one token is masked in every text.
    """
    starts, ends, _ = _find_words(maskable, word_starts)
    is_chosen = np.zeros(len(maskable), bool)
    remaining = _count_in_words(maskable, ends - starts, rate)
    order = random.permutation(len(starts))
    for start, end in zip(starts[order].tolist(), ends[order].tolist(), strict=True):
        if end - start <= remaining:
            is_chosen[start:end] = True
            remaining -= end - start
        if not remaining:
            break
    return is_chosen


def choose_spans(
    maskable: np.ndarray, word_starts: np.ndarray, rate: float, random: Random
) -> tuple[np.ndarray, np.ndarray]:
    """Choose spans of whole words until enough tokens are chosen (SpanBERT: Joshi et al. 2020, section 3.1).

    Lengths in words are drawn from a geometric distribution with p = 0.2, truncated at 10 words: 3.8 words on average,
    as in the paper. A span begins at any word, stays within its text, and keeps a distance of one token from other
    spans, so that its boundary tokens are visible. The last span is shortened to the remaining number of tokens, so
    spans are shorter on average in texts with few tokens to mask.

    Returns:
        Whether each token is chosen, shape (tokens,), and first and last + 1 token of each span, shape (spans, 2).
    """
    starts, ends, text_ends = _find_words(maskable, word_starts)
    # `is_chosen` is shifted by one: it has a free position before the first token and after the last. So a slice that
    # is one token wider than the span on both sides shows whether the span keeps its distance from all others.
    is_chosen = np.zeros(len(maskable) + 2, bool)
    remaining, spans = _count_in_words(maskable, ends - starts, rate), []
    # Draw all lengths in one call. Each span has at least one token, so `remaining` lengths are enough.
    weights = 0.8 ** np.arange(10)
    lengths = 1 + random.choice(10, size=remaining, p=weights / weights.sum())
    for length in lengths.tolist():
        for word in random.integers(len(starts), size=_TRIES).tolist():
            start, stop = starts[word], min(word + length, text_ends[word])
            # The words `word` to `stop - 1` fit into the remaining number of tokens.
            stop = word + np.searchsorted(ends[word:stop], start + remaining, side="right")
            if stop > word and not is_chosen[start : ends[stop - 1] + 2].any():
                end = ends[stop - 1]
                is_chosen[start + 1 : end + 1] = True
                spans.append((start, end))
                remaining -= end - start
                break
        if not remaining:
            break
    return is_chosen[1:-1], np.array(sorted(spans), dtype=np.int64).reshape(-1, 2)


def corrupt(
    tokens: np.ndarray,
    is_chosen: np.ndarray,
    random: Random,
    mask_token_id: int,
    ordinary: np.ndarray,
    spans: np.ndarray | None = None,
    mask_random_keep: Sequence[float] = MASK_RANDOM_KEEP,
) -> np.ndarray:
    """Replace some chosen tokens by the mask token and some by random ordinary tokens; keep the others.

    With `spans`, the replacement is drawn per span and applies to all its tokens (SpanBERT, section 3.1).

    Returns:
        New token ids, shape (tokens,), int64.
    """
    # There is one draw per chosen token, or one per span, repeated for its tokens. Both are in the order of the text.
    mask_fraction, random_fraction, _ = mask_random_keep
    positions = np.flatnonzero(is_chosen)
    draws = random.random(len(positions) if spans is None else len(spans))
    if spans is not None:
        draws = np.repeat(draws, spans[:, 1] - spans[:, 0])
    random_tokens = random.choice(ordinary, len(positions))
    corrupted = np.array(tokens, dtype=np.int64)
    other_tokens = np.where(draws < mask_fraction + random_fraction, random_tokens, corrupted[positions])
    corrupted[positions] = np.where(draws < mask_fraction, mask_token_id, other_tokens)
    return corrupted


def _count_in_words(maskable: np.ndarray, sizes: np.ndarray, rate: float) -> int:
    """Return how many tokens to mask in complete words: `rate` of the tokens, but at least the shortest word."""
    return max(count_chosen(maskable, rate), int(sizes.min(initial=len(maskable)))) if len(sizes) else 0


def _find_words(maskable: np.ndarray, word_starts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the first and last + 1 token of each word, and the first word after its text: three arrays (words,).

    A text is a sequence of maskable tokens between special tokens. Its first token begins a word, even if the text was
    chunked inside a word.
    """
    # A word starts at a token that begins a word, or whose left neighbor is not maskable. It ends before the next word
    # start, or before a token that is not maskable; the latter word is the last one of its text.
    has_left, has_right = np.append(False, maskable[:-1]), np.append(maskable[1:], False)
    is_word_end = np.append(word_starts[1:], True)
    starts = np.flatnonzero(maskable & (word_starts | ~has_left))
    ends = np.flatnonzero(maskable & (is_word_end | ~has_right)) + 1
    last_words = np.flatnonzero(~np.append(maskable, False)[ends]) + 1
    return starts, ends, last_words[np.searchsorted(last_words, np.arange(len(starts)), side="right")]

"""Choose the tokens to mask, one by one, as whole words or as spans, and replace them.

Special tokens and padding are never masked: `maskable` is False for them. Every function draws only from its generator,
so the same generator gives the same mask.

In this example, three tokens are between special tokens, and the second one continues the word of the first. All tokens
of a word are masked:

>>> maskable, word_starts = np.array([0, 1, 1, 1, 0], bool), np.array([1, 1, 0, 1, 1], bool)
>>> [edges.tolist() for edges in _find_words(maskable, word_starts)]  # first, last + 1, words up to the end
[[1, 3], [3, 4], [2, 2]]
>>> chosen = choose_words(maskable, word_starts, 0.67, np.random.default_rng(0))
>>> tokens, random = np.array([101, 7, 8, 9, 102]), np.random.default_rng(0)
>>> corrupt(tokens, chosen, random, mask_token_id=103, ordinary=tokens[1:4], mask_random_keep=(1, 0, 0)).tolist()
[101, 103, 103, 9, 102]
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from bertkit.tokens.features import Tokenizer

MASK_RANDOM_KEEP = (0.8, 0.1, 0.1)
"""Fractions of the chosen tokens that are masked, replaced at random, and kept (Devlin et al. 2019)."""

_TRIES = 20  # first words to try for a span

_UNUSED = re.compile(r"\[unused\d+\]|<unused\d+>")


def ordinary_tokens(tokenizer: Tokenizer) -> np.ndarray:
    """Return the sorted ids that can replace a masked token at random, without special, added and unused tokens."""
    left_out = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    vocabulary = tokenizer.get_vocab()
    ids = (index for token, index in vocabulary.items() if index not in left_out and not _UNUSED.match(token))
    return np.array(sorted(ids))


def count_chosen(maskable: np.ndarray, rate: float) -> int:
    """Compute the number of tokens to mask: the rounded fraction, but at least one if any token is maskable.

    >>> count_chosen(np.ones(100, bool), 0.15), count_chosen(np.ones(2, bool), 0.15), count_chosen(np.ones(0, bool), 1)
    (15, 1, 0)
    """
    tokens = int(np.count_nonzero(maskable))
    return min(tokens, max(1, round(rate * tokens)))


def choose_tokens(maskable: np.ndarray, rate: float, random: np.random.Generator) -> np.ndarray:
    """Choose an exact number of tokens one by one, shape (tokens,) (Devlin et al. 2019, section 3.1)."""
    chosen = np.zeros(len(maskable), bool)
    chosen[random.choice(np.flatnonzero(maskable), count_chosen(maskable, rate), replace=False, shuffle=False)] = True
    return chosen


def choose_words(maskable: np.ndarray, word_starts: np.ndarray, rate: float, random: np.random.Generator) -> np.ndarray:
    """Choose whole words in random order until enough tokens are chosen, shape (tokens,) (BERT's whole-word masking).

    A word that would exceed the number is skipped for a shorter word, so slightly fewer tokens can be chosen. The
    shortest word always fits, so some token is masked in every text.
    """
    starts, ends, _ = _find_words(maskable, word_starts)
    chosen = np.zeros(len(maskable), bool)
    remaining = _count_in_words(maskable, ends - starts, rate)
    order = random.permutation(len(starts))
    for start, end in zip(starts[order].tolist(), ends[order].tolist(), strict=True):
        if end - start <= remaining:
            chosen[start:end] = True
            remaining -= end - start
        if not remaining:
            break
    return chosen


def choose_spans(
    maskable: np.ndarray, word_starts: np.ndarray, rate: float, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Choose spans of whole words until enough tokens are chosen (SpanBERT: Joshi et al. 2020, section 3.1).

    Lengths in words are drawn from a geometric distribution with p = 0.2, truncated at 10 words: 3.8 words on average,
    as in the paper. A span begins at any word, stays within its text, and keeps a distance of a token from other spans,
    so that the tokens around it are visible. The last span is shortened to the remaining number of tokens, so texts
    with few tokens to mask have shorter spans on average.

    Returns:
        Whether a token is chosen, shape (tokens,), and the spans in order, first and last + 1 token, shape (spans, 2).
    """
    starts, ends, text_ends = _find_words(maskable, word_starts)
    # `chosen` is shifted by one: it has a free position before the first token and after the last. So a slice that is
    # one token wider than the span on both sides shows whether the span keeps its distance from all others.
    chosen = np.zeros(len(maskable) + 2, bool)
    remaining, spans = _count_in_words(maskable, ends - starts, rate), []
    # More lengths are drawn than spans are needed, in one call: each span has at least one token.
    weights = 0.8 ** np.arange(10)
    lengths = 1 + random.choice(10, size=remaining, p=weights / weights.sum())
    for length in lengths.tolist():
        for word in random.integers(len(starts), size=_TRIES).tolist():
            start, last = starts[word], min(word + length, text_ends[word])
            # `last` is the index after the last word that fits.
            last = word + np.searchsorted(ends[word:last], start + remaining, side="right")
            if last > word and not chosen[start : ends[last - 1] + 2].any():
                end = ends[last - 1]
                chosen[start + 1 : end + 1] = True
                spans.append((start, end))
                remaining -= end - start
                break
        if not remaining:
            break
    return chosen[1:-1], np.array(sorted(spans), dtype=np.int64).reshape(-1, 2)


def corrupt(
    tokens: np.ndarray,
    chosen: np.ndarray,
    random: np.random.Generator,
    mask_token_id: int,
    ordinary: np.ndarray,
    spans: np.ndarray | None = None,
    mask_random_keep: Sequence[float] = MASK_RANDOM_KEEP,
) -> np.ndarray:
    """Replace some chosen tokens by the mask token and some by random ordinary tokens; the others stay.

    With `spans`, the replacement is drawn per span and applies to all its tokens (SpanBERT, section 3.1).

    Returns:
        New token ids, shape (tokens,), int64.
    """
    # There is one draw per masked position, or per span, repeated for its tokens. Spans and positions are in order.
    masked, replaced, _ = mask_random_keep
    positions = np.flatnonzero(chosen)
    draws = random.random(len(positions) if spans is None else len(spans))
    if spans is not None:
        draws = np.repeat(draws, spans[:, 1] - spans[:, 0])
    random_tokens = random.choice(ordinary, len(positions))
    corrupted = np.array(tokens, dtype=np.int64)
    unmasked = np.where(draws < masked + replaced, random_tokens, corrupted[positions])
    corrupted[positions] = np.where(draws < masked, mask_token_id, unmasked)
    return corrupted


def _count_in_words(maskable: np.ndarray, sizes: np.ndarray, rate: float) -> int:
    """Compute the number of tokens to choose in words of these sizes, at least the size of the shortest word."""
    return max(count_chosen(maskable, rate), int(sizes.min(initial=len(maskable)))) if len(sizes) else 0


def _find_words(maskable: np.ndarray, word_starts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the first and last + 1 token of each word, and the first word after its text: three arrays (words,).

    A text is a run of maskable tokens between special tokens. Its first token begins a word, even if the text was
    chunked inside a word.
    """
    # A word starts (ends) at a token that begins a word, or whose left (right) neighbor is not maskable. A text's last
    # word is the next word that ends before such a neighbor. No loop runs over tokens.
    before, after = np.append(False, maskable[:-1]), np.append(maskable[1:], False)
    follows = np.append(word_starts[1:], True)
    starts = np.flatnonzero(maskable & (word_starts | ~before))
    ends = np.flatnonzero(maskable & (follows | ~after)) + 1
    last_words = np.flatnonzero(~np.append(maskable, False)[ends]) + 1
    return starts, ends, last_words[np.searchsorted(last_words, np.arange(len(starts)), side="right")]

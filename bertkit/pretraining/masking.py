"""Choose the tokens to mask, one by one, as whole words or as spans, and replace them.

Special tokens and padding are never masked: `maskable` is False for them. Every function draws from the generator it
is given and from no other source, so the same generator gives the same mask.

Three tokens between special ones, of which the second continues the word of the first. A word is masked whole:

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

from bertkit.metrics import Numbers
from bertkit.tokens.features import Tokenizer

MASK_RANDOM_KEEP = (0.8, 0.1, 0.1)
"""Shares of the chosen tokens that become the mask token, become a random one, and stay (Devlin et al. 2019)."""

_TRIES = 20  # first words to try for a span

_UNUSED = re.compile(r"\[unused\d+\]|<unused\d+>")


def ordinary_tokens(tokenizer: Tokenizer) -> Numbers:
    """Find the ids that may replace a masked token at random: all but special, added and unused ones, sorted."""
    left_out = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    vocabulary = tokenizer.get_vocab()
    return np.array(
        sorted(number for token, number in vocabulary.items() if number not in left_out and not _UNUSED.match(token))
    )


def count_chosen(maskable: Numbers, rate: float) -> int:
    """Compute how many tokens to mask at a rate: the rounded share, but at least one if any token is maskable.

    >>> count_chosen(np.ones(100, bool), 0.15), count_chosen(np.ones(2, bool), 0.15), count_chosen(np.ones(0, bool), 1)
    (15, 1, 0)
    """
    tokens = int(np.count_nonzero(maskable))
    return min(tokens, max(1, round(rate * tokens)))


def choose_tokens(maskable: Numbers, rate: float, random: np.random.Generator) -> Numbers:
    """Choose an exact number of tokens one by one, shape (tokens,) (Devlin et al. 2019, section 3.1)."""
    chosen = np.zeros(len(maskable), bool)
    chosen[random.choice(np.flatnonzero(maskable), count_chosen(maskable, rate), replace=False, shuffle=False)] = True
    return chosen


def choose_words(maskable: Numbers, word_starts: Numbers, rate: float, random: np.random.Generator) -> Numbers:
    """Choose whole words in random order until enough tokens are chosen, shape (tokens,) (BERT's whole-word masking).

    A word that would exceed the number is skipped for a shorter one, so slightly fewer tokens may be chosen. But the
    shortest word always fits, so that something is masked in every text.
    """
    starts, ends, _ = _find_words(maskable, word_starts)
    chosen = np.zeros(len(maskable), bool)
    left = _count_in_words(maskable, ends - starts, rate)
    order = random.permutation(len(starts))
    for start, end in zip(starts[order].tolist(), ends[order].tolist(), strict=True):
        if end - start <= left:
            chosen[start:end] = True
            left -= end - start
        if not left:
            break
    return chosen


def choose_spans(
    maskable: Numbers, word_starts: Numbers, rate: float, random: np.random.Generator
) -> tuple[Numbers, Numbers]:
    """Choose spans of whole words until enough tokens are chosen (SpanBERT: Joshi et al. 2020, section 3.1).

    Lengths in words are drawn from a geometric distribution with p = 0.2, truncated at 10 words: 3.8 words on average,
    as in the paper. A span begins at any word, stays within its text, and keeps a distance of a token from other spans,
    so that the tokens around it are visible. The last span is shortened to the words that the number of tokens still
    allows, so that spans of few tokens are shorter on average.

    Returns:
        Whether a token is chosen, shape (tokens,), and the spans in order, first and last + 1 token, shape (spans, 2).
    """
    starts, ends, text_ends = _find_words(maskable, word_starts)
    # `chosen` is shifted by one: it has a free position before the first token and one after the last, so that one
    # slice, one token wider than the span on both sides, tells whether the span keeps its distance from all others
    chosen = np.zeros(len(maskable) + 2, bool)
    left, spans = _count_in_words(maskable, ends - starts, rate), []
    weights = 0.8 ** np.arange(10)
    lengths = 1 + random.choice(10, size=left, p=weights / weights.sum())
    for length in lengths.tolist():
        for word in random.integers(len(starts), size=_TRIES).tolist():
            start, last = starts[word], min(word + length, text_ends[word])
            # `last` is behind the last word that still fits
            last = word + np.searchsorted(ends[word:last], start + left, side="right")
            if last > word and not chosen[start : ends[last - 1] + 2].any():
                end = ends[last - 1]
                chosen[start + 1 : end + 1] = True
                spans.append((start, end))
                left -= end - start
                break
        if not left:
            break
    return chosen[1:-1], np.array(sorted(spans), dtype=np.int64).reshape(-1, 2)


def corrupt(
    tokens: Numbers,
    chosen: Numbers,
    random: np.random.Generator,
    mask_token_id: int,
    ordinary: Numbers,
    spans: Numbers | None = None,
    mask_random_keep: Sequence[float] = MASK_RANDOM_KEEP,
) -> Numbers:
    """Replace a share of the chosen tokens by the mask token and another by random ordinary ones; the rest stay.

    With `spans`, one of the three is drawn per span and applies to all its tokens (SpanBERT, section 3.1).

    Returns:
        New token ids, shape (tokens,), int64.
    """
    # one draw per masked position, or per span and repeated for its tokens: spans are in order, as positions are
    masked, replaced, _ = mask_random_keep
    positions = np.flatnonzero(chosen)
    draws = random.random(len(positions) if spans is None else len(spans))
    if spans is not None:
        draws = np.repeat(draws, spans[:, 1] - spans[:, 0])
    random_tokens = random.choice(ordinary, len(positions))
    corrupted = np.array(tokens, dtype=np.int64)
    kept = np.where(draws < masked + replaced, random_tokens, corrupted[positions])
    corrupted[positions] = np.where(draws < masked, mask_token_id, kept)
    return corrupted


def _count_in_words(maskable: Numbers, sizes: Numbers, rate: float) -> int:
    """Compute how many tokens to choose in words of these sizes: at least enough for the shortest word."""
    return max(count_chosen(maskable, rate), int(sizes.min(initial=len(maskable)))) if len(sizes) else 0


def _find_words(maskable: Numbers, word_starts: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Find the first and last + 1 token of each word, and the first word after its text: three arrays (words,).

    A text is a run of maskable tokens between special ones; its first token begins a word, even if the text was
    chunked inside one.
    """
    # a word starts (ends) where a token begins a word or its left (right) neighbor is not maskable; a text's
    # last word is the next one, at or after the word, that ends before such a neighbor. No loop runs over tokens.
    before, after = np.append(False, maskable[:-1]), np.append(maskable[1:], False)
    follows = np.append(word_starts[1:], True)
    starts = np.flatnonzero(maskable & (word_starts | ~before))
    ends = np.flatnonzero(maskable & (follows | ~after)) + 1
    last_words = np.flatnonzero(~np.append(maskable, False)[ends]) + 1
    return starts, ends, last_words[np.searchsorted(last_words, np.arange(len(starts)), side="right")]

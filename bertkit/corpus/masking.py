"""Which tokens of a text are hidden from a model, and what stands in their place.

Special tokens and padding are never hidden: they are not `maskable`. Every function draws from the generator it is
given and from nothing else.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

Values = np.ndarray[Any, Any]

_MASKED, _RANDOM = 0.8, 0.1  # the rest of the chosen tokens stay as they are
_TRIES = 20  # places to try for a span of one length

_UNUSED = re.compile(r"\[unused\d+\]|<unused\d+>")


def ordinary_tokens(tokenizer: Any) -> Values:
    """Give the ids that may replace a token at random: none that is special, added or reserved as unused."""
    left_out = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    vocabulary = tokenizer.get_vocab()
    return np.array(
        sorted(number for token, number in vocabulary.items() if number not in left_out and not _UNUSED.match(token))
    )


def count_chosen(maskable: Values, rate: float) -> int:
    """Give how many tokens a rate means: rounded, and at least one where there is any.

    >>> count_chosen(np.ones(100, bool), 0.15), count_chosen(np.ones(2, bool), 0.15), count_chosen(np.ones(0, bool), 1)
    (15, 1, 0)
    """
    tokens = int(np.count_nonzero(maskable))
    return min(tokens, max(1, round(rate * tokens)))


def choose_tokens(maskable: Values, rate: float, random: np.random.Generator) -> Values:
    """Choose tokens one by one: an exact number, not a coin for each (Devlin et al. 2019, section 3.1)."""
    chosen = np.zeros(len(maskable), bool)
    chosen[random.choice(np.flatnonzero(maskable), count_chosen(maskable, rate), replace=False, shuffle=False)] = True
    return chosen


def choose_words(maskable: Values, word_starts: Values, rate: float, random: np.random.Generator) -> Values:
    """Choose whole words in random order until the number of tokens is reached (BERT's whole-word masking).

    A word that would exceed the number is passed over for a shorter one, so the number may be missed by less than a
    word. It is never less than the shortest word, so that something is hidden in every text.
    """
    starts, ends, _ = _find_words(maskable, word_starts)
    chosen = np.zeros(len(maskable), bool)
    left = _number(maskable, ends - starts, rate)
    order = random.permutation(len(starts))
    for start, end in zip(starts[order].tolist(), ends[order].tolist(), strict=True):
        if end - start <= left:
            chosen[start:end] = True
            left -= end - start
        if not left:
            break
    return chosen


def choose_spans(
    maskable: Values, word_starts: Values, rate: float, random: np.random.Generator, p: float = 0.2, longest: int = 10
) -> tuple[Values, Values]:
    """Choose spans of whole words until the number of tokens is reached (SpanBERT: Joshi et al. 2020, section 3.1).

    Lengths in words are geometric with `p`, drawn again above `longest`: 3.8 words on average, as in the paper. A
    span begins at any word, ends with its text at the latest, and keeps a token of distance from other spans, so that
    the tokens around it can be seen. The last span has as many of its words as the number still allows.

    Returns:
        Whether a token is chosen, and the spans in order: first token and last + 1, shape (spans, 2).
    """
    starts, ends, text_ends = _find_words(maskable, word_starts)
    chosen = np.zeros(len(maskable) + 2, bool)  # with a free place before the first and after the last token
    left, spans = _number(maskable, ends - starts, rate), []
    weights = (1 - p) ** np.arange(longest)
    lengths = 1 + random.choice(longest, size=left, p=weights / weights.sum())
    for length in lengths.tolist():
        for word in random.integers(len(starts), size=_TRIES).tolist():
            start, last = starts[word], min(word + length, text_ends[word])
            last = word + np.searchsorted(ends[word:last], start + left, side="right")  # as many words as may be
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
    tokens: Values,
    chosen: Values,
    random: np.random.Generator,
    mask_token_id: int,
    ordinary: Values,
    spans: Values | None = None,
) -> Values:
    """Replace 80 % of the chosen tokens by the mask and 10 % by a random ordinary token; 10 % stay.

    With spans, the three ways are drawn once for a span, and all its tokens go the same way (SpanBERT, section 3.1).
    """
    places = np.flatnonzero(chosen)
    fate = random.random(len(places) if spans is None else len(spans))
    if spans is not None:
        fate = np.repeat(fate, spans[:, 1] - spans[:, 0])
    strange = random.choice(ordinary, len(places))
    replaced = np.array(tokens, dtype=np.int64)
    replaced[places] = np.select([fate < _MASKED, fate < _MASKED + _RANDOM], [mask_token_id, strange], replaced[places])
    return replaced


def _number(maskable: Values, sizes: Values, rate: float) -> int:
    """Give how many tokens to choose in words of these sizes: enough for one of them."""
    return max(count_chosen(maskable, rate), int(sizes.min(initial=len(maskable)))) if len(sizes) else 0


def _find_words(maskable: Values, word_starts: Values) -> tuple[Values, Values, Values]:
    """Give each word's first token and last + 1, and the number of the first word beyond its text.

    A text is a stretch of maskable tokens; its first token begins a word even where the text was cut inside one.
    """
    before, after = np.append(False, maskable[:-1]), np.append(maskable[1:], False)
    follows = np.append(word_starts[1:], True)
    starts = np.flatnonzero(maskable & (word_starts | ~before))
    ends = np.flatnonzero(maskable & (follows | ~after)) + 1
    last_words = np.flatnonzero(~np.append(maskable, False)[ends]) + 1
    return starts, ends, last_words[np.searchsorted(last_words, np.arange(len(starts)), side="right")]

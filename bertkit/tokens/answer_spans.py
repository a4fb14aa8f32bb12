"""Answers as spans of tokens: windows of a long text, the gold answer in a window, and the n best predicted spans.

A window of four tokens and its best spans of at most two tokens:

>>> starts, ends = np.array([0.0, 3.0, 1.0, 0.0]), np.array([0.0, 1.0, 4.0, 5.0])
>>> best = find_n_best([starts], [ends], rows=np.array([0]), n_best=2, max_tokens=2)
>>> [best[name].tolist() for name in ("start", "end", "score")]
[[1, 2], [2, 3], [7.0, 6.0]]
>>> probabilities(best["score"], best["row"], 1, nulls=None).round(3).tolist()
[0.731, 0.269]
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Logits = Sequence[np.ndarray]
"""Logits of the tokens, one array per window."""

_WINDOWS_AT_ONCE = 256
# U+3000 is the last space character.
_IS_SPACE = np.array([chr(code).isspace() for code in range(0x3001)] + [False])


def extend_offsets(text: str, offsets: np.ndarray) -> np.ndarray:
    """Extend tokens over the adjacent characters that have no token, such as combining or zero-width characters.

    So the tokens of an answer cover all of its characters, even if the tokenizer drops some. Whitespace ends the
    extension. It is also removed from the ends of tokens, which include it in byte-level vocabularies.

    Args:
        text: Text that was encoded.
        offsets: First and last + 1 character of each token, shape (tokens, 2).

    Returns:
        New offsets, shape (tokens, 2).

    The accent in "cafe\u0301" is a character without a token, and a byte-level token includes the space before "open":

    >>> extend_offsets("cafe\u0301 is open", np.array([[0, 4], [6, 8], [8, 13]])).tolist()
    [[0, 5], [6, 8], [9, 13]]
    """
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    # Shape (characters + 1,), with False for the end of the text.
    is_space = np.append(_IS_SPACE[np.minimum(codes, len(_IS_SPACE) - 1)], False)
    # 1. Move the ends of all tokens past whitespace, one character per token at a time. Nearly all tokens have at most
    # one space, so the loops run about once for the complete text.
    starts, ends = offsets[:, 0].copy(), offsets[:, 1].copy()
    while (leading := (starts < ends) & is_space[starts]).any():
        starts += leading
    while (trailing := (starts < ends) & is_space[ends - 1]).any():
        ends -= trailing
    offsets = np.stack([starts, ends], axis=1)
    extended = offsets.copy()
    # 2. Give the visible characters of a gap to its neighbors: what follows a token without a space belongs to it, and
    # the rest of the gap to the token after it.
    # Gaps (tokens + 1, 2) are the characters between neighboring tokens, before the first and after the last token.
    # Nearly all are a single space: a running count of visible characters finds the few that need the slow loop.
    gaps = np.stack([np.append(0, offsets[:, 1]), np.append(offsets[:, 0], len(text))], axis=1)
    visible = np.append(0, np.cumsum(~is_space))
    for index in np.flatnonzero(visible[gaps[:, 1]] > visible[gaps[:, 0]]):
        gap = text[gaps[index, 0] : gaps[index, 1]]
        head, tail = (len(re.search(edge, gap)[0]) for edge in (r"^\S*", r"\S*\Z"))  # type: ignore[index]
        # A gap without any space would go to both neighbors; the token before it gets all of it.
        if index > 0:
            extended[index - 1, 1] += head
            tail = 0 if head == len(gap) else tail
        if index < len(offsets):
            extended[index, 0] -= tail
    return extended


def window_slices(count: int, max_tokens: int, overlap: int) -> list[slice]:
    """Split `count` tokens into windows of `max_tokens`; the last one ends with the text and may be shorter.

    >>> window_slices(10, max_tokens=6, overlap=2)
    [slice(0, 6, None), slice(4, 10, None)]
    """
    starts = [0]
    while starts[-1] + max_tokens < count:
        starts.append(starts[-1] + max_tokens - overlap)
    return [slice(start, start + max_tokens) for start in starts]


def find_answer_tokens(gold: Mapping[str, Any], offsets: np.ndarray) -> tuple[int, int]:
    """Find the first and last token of the first gold answer; (-1, -1) if the window does not hold all of it.

    The tokens are "The", "lion", "of" and "Oslo"; the second answer ends inside a token, which it includes:

    >>> offsets = np.array([[0, 3], [4, 8], [9, 11], [12, 16]])
    >>> find_answer_tokens({"text": ["lion of"], "answer_start": [4]}, offsets)
    (1, 2)
    >>> find_answer_tokens({"text": ["of Os"], "answer_start": [9]}, offsets)
    (2, 3)
    >>> find_answer_tokens({"text": ["Oslo"], "answer_start": [12]}, offsets[:3])
    (-1, -1)
    """
    if not gold["text"] or not len(offsets):
        return -1, -1
    start = gold["answer_start"][0]
    end = start + len(gold["text"][0])
    if offsets[0, 0] > start or offsets[-1, 1] < end:
        return -1, -1
    # Starts and ends rise, so two binary searches find the last token that starts at or before the answer, and the
    # first token that ends at or after it. Both are read as characters, because tokens can share them:
    first = offsets[np.searchsorted(offsets[:, 0], start, side="right") - 1, 0]
    last = offsets[np.searchsorted(offsets[:, 1], end, side="left"), 1]
    # Several tokens can have the same characters (the bytes of one letter): the answer includes all of them.
    return (
        int(np.searchsorted(offsets[:, 0], first, side="left")),
        int(np.searchsorted(offsets[:, 1], last, side="right")) - 1,
    )


def find_n_best(
    starts: Logits, ends: Logits, rows: np.ndarray, *, n_best: int, max_tokens: int
) -> dict[str, np.ndarray]:
    """Find the best spans of every row over all its windows.

    As in `run_squad.py`, the `n_best` highest starts and ends of each window are combined to spans of at most
    `max_tokens` tokens; then the `n_best` spans of each row are kept.

    Args:
        starts: Logits of the first token of the answer, over the window's context, one array per window.
        ends: Logits of its last token.
        rows: Row of each window, shape (windows,), ascending.
        n_best: Number of spans to keep per row.
        max_tokens: Maximum tokens of an answer.

    Returns:
        Arrays of shape (spans,), sorted by row and then best first: ``row``, ``window``, ``start`` and ``end`` (the
        first and the last token in the window's context), ``start_logit``, ``end_logit`` and ``score``, their sum.
    """
    # 1. Find the best spans of each window. Windows of similar length go through the array code together: no Python
    # loop over windows or spans, and the arrays (windows, longest window) and (windows, n_best, n_best) stay small and
    # have little padding.
    by_length = sorted(range(len(starts)), key=lambda index: len(starts[index]))
    batches = []
    for first in range(0, len(starts), _WINDOWS_AT_ONCE):
        batch = by_length[first : first + _WINDOWS_AT_ONCE]
        spans = _best_window_spans([starts[n] for n in batch], [ends[n] for n in batch], n_best, max_tokens)
        spans["window"] = np.array(batch)[spans["window"]]
        batches.append(spans)
    spans = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    spans["row"] = rows[spans["window"]]
    # 2. Put all spans in the order of rows, best first. Two windows of row 0 and one of row 1, with two spans each,
    # have the sorted rows [0, 0, 0, 0, 1, 1]. Searching these rows in themselves finds the first span of each row,
    # [0, 0, 0, 0, 4, 4], so the ranks are [0, 1, 2, 3, 0, 1], and n_best=2 keeps the ranks 0 and 1.
    order = np.argsort(spans["row"], kind="stable")  # The spans of one window stay best first.
    # Only rows with several windows have to be sorted by score. Then `rank` counts the spans of each row from 0.
    is_shared = np.bincount(rows)[spans["row"][order]] > 1
    shared = order[is_shared]
    order[is_shared] = shared[np.lexsort((-spans["score"][shared], spans["row"][shared]))]
    sorted_rows = spans["row"][order]
    rank = np.arange(len(order)) - np.searchsorted(sorted_rows, sorted_rows)
    best = order[rank < n_best]
    return {name: values[best] for name, values in spans.items()}


def probabilities(scores: np.ndarray, rows: np.ndarray, count: int, nulls: np.ndarray | None) -> np.ndarray:
    """Compute the softmax of each span's score over the spans of its row, and over no answer if `nulls` are given.

    Args:
        scores: Scores of the spans, shape (spans,), best first in each row.
        rows: Row of each span, ascending.
        count: Number of rows.
        nulls: Score of no answer, shape (rows,), or None.
    """
    # Spans of the rows [0, 0, 2] begin a row at the indices [0, 2], where the row differs from the one before it.
    # The highest score of a row is its first span's or the null score. It is subtracted, so that `exp` cannot overflow.
    highest = np.full(count, -np.inf) if nulls is None else nulls.astype(np.float64)
    best = np.flatnonzero(np.diff(rows, prepend=-1))
    highest[rows[best]] = np.maximum(highest[rows[best]], scores[best])
    weights = np.exp(scores - highest[rows])
    sums = np.bincount(rows, weights, count) + (0 if nulls is None else np.exp(nulls - highest))
    return np.asarray(weights / sums[rows])


def _best_window_spans(starts: Logits, ends: Logits, n_best: int, max_tokens: int) -> dict[str, np.ndarray]:
    """Find the `n_best` spans of each window, best first, as flat arrays of shape (spans,)."""
    # The logits of all windows are in one array (windows, longest window). Its padding, -inf, is never among the best.
    lengths = np.array([len(window) for window in starts])
    is_token = np.arange(max(1, lengths.max())) < lengths[:, None]
    start_logits, end_logits = (np.full(is_token.shape, -np.inf, dtype=np.float32) for _ in range(2))
    start_logits[is_token], end_logits[is_token] = np.concatenate(starts), np.concatenate(ends)
    firsts, lasts = _highest(start_logits, n_best), _highest(end_logits, n_best)
    first_logits, last_logits = np.take_along_axis(start_logits, firsts, 1), np.take_along_axis(end_logits, lasts, 1)
    # In the example at the top, the two highest starts are tokens [1, 2] and the two highest ends tokens [3, 2]. The
    # distances from each start (down) to each end (across) are [[2, 1], [1, 0]]: only 1 to 3 has more than two tokens.
    # The scores of all pairs are (windows, n_best, n_best). As unsigned numbers, negative lengths are huge, so one
    # comparison excludes spans that end before they begin and spans that are too long.
    distances = (lasts[:, None, :] - firsts[:, :, None]).view(np.uint64)
    scores = np.where(distances < max_tokens, first_logits[:, :, None] + last_logits[:, None, :], -np.inf)
    scores = scores.reshape(len(scores), -1)
    best = _highest(scores, n_best)
    best_scores = np.take_along_axis(scores, best, 1)
    windows, columns = np.nonzero(best_scores > -np.inf)
    # A pair's index in the flat array is start * ends + end, which division splits again.
    pairs = best[windows, columns]
    first, last = pairs // lasts.shape[1], pairs % lasts.shape[1]
    return {
        "window": windows,
        "start": firsts[windows, first],
        "end": lasts[windows, last],
        "start_logit": first_logits[windows, first],
        "end_logit": last_logits[windows, last],
        "score": best_scores[windows, columns],
    }


def _highest(values: np.ndarray, count: int) -> np.ndarray:
    """Find the columns of the `count` highest values of each row, highest first, shape (rows, count)."""
    count = min(count, values.shape[1])
    # The partition is linear in the columns; only `count` columns are sorted.
    columns = np.argpartition(-values, count - 1, axis=1)[:, :count]
    order = np.argsort(-np.take_along_axis(values, columns, 1), axis=1, kind="stable")
    return np.take_along_axis(columns, order, 1)

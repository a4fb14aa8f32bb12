"""Spans of a text in tokens: where an answer lies, and which spans a model believes in most."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Values = np.ndarray[Any, Any]

_WINDOWS_AT_ONCE = 256
_BLANKS = np.array([chr(code).isspace() for code in range(0x3001)] + [False])


def stretch(text: str, offsets: Values) -> Values:
    """Let tokens stand for the characters beside them that have no token, such as combining or zero-width ones.

    So an answer in whole words is found whole, whatever the tokenizer leaves out. Blanks end the stretching, and those
    that a token has at its ends (in byte-level vocabularies) are no part of an answer.

    Args:
        text: what was encoded.
        offsets: first and last + 1 character of each token, shape (tokens, 2).
    """
    blank = _find_blanks(text)
    offsets = _without_blanks(offsets, blank)
    stretched = offsets.copy()
    gaps = np.stack([np.append(0, offsets[:, 1]), np.append(offsets[:, 0], len(text))], axis=1)
    visible = np.append(0, np.cumsum(~blank))  # most gaps are a blank between two words, where nothing is to be done
    for number in np.flatnonzero(visible[gaps[:, 1]] > visible[gaps[:, 0]]):
        gap = text[gaps[number, 0] : gaps[number, 1]]
        head, tail = (len(re.search(edge, gap)[0]) for edge in (r"^\S*", r"\S*\Z"))  # type: ignore[index]
        if number > 0:
            stretched[number - 1, 1] += head
            tail = 0 if head == len(gap) else tail
        if number < len(offsets):
            stretched[number, 0] -= tail
    return stretched


def _find_blanks(text: str) -> Values:
    """Tell for each character whether it is a blank, and one more time no, for the end of the text."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    return np.append(_BLANKS[np.minimum(codes, len(_BLANKS) - 1)], False)


def _without_blanks(offsets: Values, blank: Values) -> Values:
    starts, ends = offsets[:, 0].copy(), offsets[:, 1].copy()
    while (leading := (starts < ends) & blank[starts]).any():
        starts += leading
    while (trailing := (starts < ends) & blank[ends - 1]).any():
        ends -= trailing
    return np.stack([starts, ends], axis=1)


def cut(tokens: int, room: int, overlap: int) -> list[slice]:
    """Split so many tokens in windows; the last one is where the text ends."""
    starts = [0]
    while starts[-1] + room < tokens:
        starts.append(starts[-1] + room - overlap)
    return [slice(start, start + room) for start in starts]


def find_answer_tokens(gold: Mapping[str, Any], offsets: np.ndarray[Any, Any]) -> tuple[int, int]:
    """Give the first and last token of the first gold answer; (-1, -1) where it is not whole in the window."""
    if not gold["text"] or not len(offsets):
        return -1, -1
    start = gold["answer_start"][0]
    end = start + len(gold["text"][0])
    if offsets[0, 0] > start or offsets[-1, 1] < end:
        return -1, -1
    first = offsets[np.searchsorted(offsets[:, 0], start, side="right") - 1, 0]
    last = offsets[np.searchsorted(offsets[:, 1], end, side="left"), 1]
    return (  # several tokens may stand for one character: all of them are meant
        int(np.searchsorted(offsets[:, 0], first, side="left")),
        int(np.searchsorted(offsets[:, 1], last, side="right")) - 1,
    )


def find_n_best(
    starts: Sequence[Values], ends: Sequence[Values], rows: Values, *, n_best: int, longest: int
) -> dict[str, Values]:
    """Find the best spans of every row over all its windows, without a loop over windows.

    As in the usual loop, the `n_best` highest starts and ends of each window are combined to spans of at most
    `longest` tokens; then the `n_best` spans of a row are kept.

    Args:
        starts: logits of each window's context tokens to begin the answer.
        ends: the same to end it.
        rows: each window's row, shape (windows,), ascending.
        n_best: how many to keep.
        longest: most tokens of an answer.

    Returns:
        ``row``, ``window``, ``start``, ``end`` (tokens of the window's context, the last included), ``start_logit``,
        ``end_logit`` and ``score`` of the spans, by row and then best first.
    """
    by_length = sorted(range(len(starts)), key=lambda number: len(starts[number]))
    found = []
    for first in range(0, len(starts), _WINDOWS_AT_ONCE):
        part = by_length[first : first + _WINDOWS_AT_ONCE]
        spans = _best_window_spans([starts[n] for n in part], [ends[n] for n in part], n_best, longest)
        spans["window"] = np.array(part)[spans["window"]]
        found.append(spans)
    spans = {name: np.concatenate([each[name] for each in found]) for name in found[0]}
    spans["row"] = rows[spans["window"]]
    order = np.argsort(spans["row"], kind="stable")  # those of one window stay best first
    shared = np.bincount(rows)[spans["row"][order]] > 1
    mixed = order[shared]
    order[shared] = mixed[np.lexsort((-spans["score"][mixed], spans["row"][mixed]))]
    sorted_rows = spans["row"][order]
    rank = np.arange(len(order)) - np.searchsorted(sorted_rows, sorted_rows)
    kept = order[rank < n_best]
    return {name: values[kept] for name, values in spans.items()}


def probabilities(scores: Values, rows: Values, count: int, nulls: Values | None) -> Values:
    """Give the softmax of each span's score among those of its row, and of no answer where that has `nulls`.

    Args:
        scores: of spans, shape (spans,), best first in each row.
        rows: each span's row, ascending.
        count: how many rows there are.
        nulls: score of no answer, shape (rows,), or None.
    """
    highest = np.full(count, -np.inf) if nulls is None else nulls.astype(np.float64)
    best = np.flatnonzero(np.diff(rows, prepend=-1))
    highest[rows[best]] = np.maximum(highest[rows[best]], scores[best])
    weights = np.exp(scores - highest[rows])
    sums = np.bincount(rows, weights, count) + (0 if nulls is None else np.exp(nulls - highest))
    return np.asarray(weights / sums[rows])


def _best_window_spans(
    starts: Sequence[Values], ends: Sequence[Values], n_best: int, longest: int
) -> dict[str, Values]:
    """Give the `n_best` spans of each window, best first, as flat arrays."""
    widths = np.array([len(one) for one in starts])
    there = np.arange(max(1, widths.max())) < widths[:, None]
    first, last = (np.full(there.shape, -np.inf, dtype=np.float32) for _ in range(2))
    first[there], last[there] = np.concatenate(starts), np.concatenate(ends)
    begins, finishes = _highest(first, n_best), _highest(last, n_best)
    begin_logits, finish_logits = np.take_along_axis(first, begins, 1), np.take_along_axis(last, finishes, 1)
    more = (finishes[:, None, :] - begins[:, :, None]).view(np.uint64)  # tokens after the first; below 0 becomes huge
    scores = np.where(more < longest, begin_logits[:, :, None] + finish_logits[:, None, :], -np.inf)
    scores = scores.reshape(len(scores), -1)
    best = _highest(scores, n_best)
    best_scores = np.take_along_axis(scores, best, 1)
    windows, columns = np.nonzero(best_scores > -np.inf)
    chosen = best[windows, columns]
    one, other = chosen // finishes.shape[1], chosen % finishes.shape[1]
    return {
        "window": windows,
        "start": begins[windows, one],
        "end": finishes[windows, other],
        "start_logit": begin_logits[windows, one],
        "end_logit": finish_logits[windows, other],
        "score": best_scores[windows, columns],
    }


def _highest(values: Values, count: int) -> Values:
    """Give the columns of the highest values of each line, highest first."""
    count = min(count, values.shape[1])
    columns = np.argpartition(-values, count - 1, axis=1)[:, :count]
    order = np.argsort(-np.take_along_axis(values, columns, 1), axis=1, kind="stable")
    return np.take_along_axis(columns, order, 1)

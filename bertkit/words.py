"""Words and their pieces: texts cut into words, words into pieces, pieces into windows, and all of it mapped back."""

from __future__ import annotations

import json
import logging
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertkit.errors import DataError, ModelError
from bertkit.features import encode_pieces

log = logging.getLogger("bertkit")

_PROBE = ("The", "old", "man", "saw", "it", "again", ".")
_TESTED_ROWS = 100


@dataclass(frozen=True)
class Window:
    """A part of a row that fits the model, and the words that are read off there.

    `words` are those to which this window gives more context than any other does; `places` are the positions of
    their first pieces, counted from the window's first piece.
    """

    pieces: list[int]
    words: list[int]
    places: list[int]


def read_words(value: Any, column: str) -> list[str]:
    """Give words as a list: they come as one, as JSON, or parted by blanks.

    Raises:
        DataError: something else.
    """
    if isinstance(value, str):
        if not value.lstrip().startswith("["):
            return value.split()
        try:
            value = json.loads(value)
        except ValueError:
            raise DataError("a list that is not JSON", 'write ["EU", "rejects"]', column=column) from None
    if not isinstance(value, (list, tuple)) or not all(isinstance(word, str) for word in value):
        raise DataError(f"{str(value)[:60]!r} is not a list of words", "give a list of strings", column=column)
    return list(value)


def split_text(text: str) -> list[tuple[int, int]]:
    """Cut a text into words and marks, as (first, last + 1) characters; blanks belong to none.

    A mark inside a word or number stays inside (U.N., 3.5, don't), one at its end is a word of its own, as in most
    annotated corpora.

    >>> text = "Mr. O'Hara paid $3.50 (twice)."
    >>> [text[start:end] for start, end in split_text(text)]
    ['Mr', '.', "O'Hara", 'paid', '$', '3.50', '(', 'twice', ')', '.']
    """
    spans: list[tuple[int, int]] = []
    start = None
    for place, char in enumerate(text):
        belongs = _is_letter(char)
        if not belongs and start is not None and char in "-'’.,@_&/" and place + 1 < len(text):
            belongs = _is_letter(text[place + 1])
        if belongs:
            start = place if start is None else start
            continue
        if start is not None:
            spans.append((start, place))
            start = None
        if not char.isspace():
            spans.append((place, place + 1))
    if start is not None:
        spans.append((start, len(text)))
    return spans


def check_alignment(tokenizer: Any, rows: Sequence[Sequence[str]]) -> None:
    """Prove that words given one by one become the pieces they are in running text; mend the tokenizer if need be.

    A byte-level tokenizer tells the beginning of a word by the blank before it. Given words without blanks, it makes
    of ``["hello", "world"]`` the pieces of "helloworld", in silence, unless it was told to add the blank.

    Raises:
        ModelError: it cannot be mended.
    """
    probes = [_PROBE, *(words for words in rows[:_TESTED_ROWS] if words)]
    if _share_aligned(tokenizer, probes) > 0.5:
        return
    _add_prefix_space(tokenizer)
    if _share_aligned(tokenizer, probes) > 0.5:
        log.info("this tokenizer needs a blank before each word of a list: it is told to add one")
        return
    raise ModelError(
        "the tokenizer makes other pieces of a list of words than of the same text",
        "use a checkpoint whose tokenizer.json has add_prefix_space",
    )


def _share_aligned(tokenizer: Any, rows: Sequence[Sequence[str]]) -> float:
    """Give the share of rows whose words give the same pieces one by one and in running text, the probe above all."""
    apart = encode_pieces(tokenizer, [list(words) for words in rows])
    running = encode_pieces(tokenizer, [f" {' '.join(words)}" for words in rows])
    # what stands for a bare blank (SentencePiece) may begin the running text
    same = [one.ids == other.ids or one.ids == other.ids[1:] for one, other in zip(apart, running, strict=True)]
    return float(np.mean(same)) if same[0] else 0.0


def _add_prefix_space(tokenizer: Any) -> None:
    from tokenizers import Tokenizer

    parts = json.loads(tokenizer.backend_tokenizer.to_str())
    found = parts["pre_tokenizer"] or {}
    for part in [found, *found.get("pretokenizers", [])]:
        if part.get("type") == "ByteLevel":
            part["add_prefix_space"] = True
    tokenizer._tokenizer = Tokenizer.from_str(json.dumps(parts))
    tokenizer.init_kwargs["add_prefix_space"] = True


def find_pieces(tokenizer: Any, rows: Sequence[Sequence[str]], longest: int) -> list[list[list[int]]]:
    """Give each row's words as lists of pieces, which are empty where a word has none (a zero-width character, say).

    Of a word of more than `longest` pieces only the first are kept: it is its beginning that speaks for a word.
    """
    filled = [number for number, words in enumerate(rows) if words]
    found: list[list[list[int]]] = [[] for _ in rows]
    if not filled:
        return found
    for number, encoded in zip(filled, encode_pieces(tokenizer, [list(rows[n]) for n in filled]), strict=True):
        pieces: list[list[int]] = [[] for _ in rows[number]]
        for piece, word in zip(encoded.ids, encoded.word_ids, strict=True):
            if len(pieces[word]) < longest:
                pieces[word].append(piece)
        found[number] = pieces
    return found


def cut_windows(pieces: Sequence[Sequence[int]], room: int, overlap: int) -> list[Window]:
    """Cut a row's words into windows of at most `room` pieces that overlap by at least `overlap` where they can.

    Every word with pieces belongs to exactly one window: the one with the most context on its poorer side (Devlin
    et al. 2018, `run_squad.py`, which does so for answers). A word is never cut, so none may have more than `room`.

    >>> [(w.words, w.places) for w in cut_windows([[1], [2], [3, 4], [5], [6]], room=4, overlap=2)]
    [([0, 1, 2], [0, 1, 2]), ([3, 4], [2, 3])]
    """
    sizes = [len(word) for word in pieces]
    ends = np.cumsum([0, *sizes])
    spans = _find_spans_of_windows(ends, room, overlap)
    if not spans:
        return []
    best = np.full(len(pieces), -1)
    context = np.full(len(pieces), -1)
    for number, (first, last) in enumerate(spans):
        inside = np.arange(first, last)
        here = np.minimum(ends[inside] - ends[first], ends[last] - ends[inside + 1])
        better = here > context[inside]
        best[inside[better]], context[inside[better]] = number, here[better]
    windows = []
    for number, (first, last) in enumerate(spans):
        words = [word for word in range(first, last) if best[word] == number and sizes[word]]
        windows.append(
            Window(
                [piece for word in pieces[first:last] for piece in word],
                words,
                [int(ends[word] - ends[first]) for word in words],
            )
        )
    return windows


def _find_spans_of_windows(ends: np.ndarray[Any, Any], room: int, overlap: int) -> list[tuple[int, int]]:
    """Give the windows as (first, last + 1) words; `ends` are the pieces before each word, and all of them."""
    count = len(ends) - 1
    spans: list[tuple[int, int]] = []
    first = 0
    while ends[-1] > 0 and first < count:
        last = int(np.searchsorted(ends, ends[first] + room, side="right")) - 1
        spans.append((first, last))
        if last == count:
            break
        wanted = int(np.searchsorted(ends, ends[last] - overlap, side="right")) - 1
        first = max(first + 1, wanted)
        while ends[last + 1] - ends[first] > room:  # the next window must reach at least one word further
            first += 1
    return spans


def _is_letter(char: str) -> bool:
    """Tell whether a character is part of a word: a letter, a digit, or a mark that goes with the one before."""
    return char.isalnum() or unicodedata.category(char) in ("Mn", "Mc", "Me", "Cf", "Co")

"""Words and their tokens: texts cut into words, words into tokens, tokens into windows, and all of it mapped back."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertkit.errors import DataError, ModelError
from bertkit.tokens.features import tokenize_texts

_PROBE = ("The", "old", "man", "saw", "it", "again", ".")
_TESTED_ROWS = 100


@dataclass(frozen=True)
class Window:
    """A part of a row that fits the model, and the words that are read off there.

    `words` are those to which this window gives more context than any other does; `places` are the positions of
    their first tokens, counted from the window's first token.
    """

    tokens: list[int]
    words: list[int]
    places: list[int]


def read_list(value: Any, column: str) -> list[Any]:
    """Give a list, which comes as one, as JSON, or as text parted by blanks.

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
    if not isinstance(value, (list, tuple)):
        raise DataError(f"{str(value)[:60]!r} is not a list", 'write ["EU", "rejects"]', column=column)
    return list(value)


def read_words(value: Any) -> list[str]:
    """Give the words of the column ``tokens``, in any form that `read_list` reads.

    Raises:
        DataError: something else.
    """
    words = read_list(value, "tokens")
    if not all(isinstance(word, str) for word in words):
        raise DataError(f"{str(words)[:60]} is not a list of words", "give a list of strings", column="tokens")
    return words


def read_target(value: Any, count: int) -> list[int]:
    """Give a place in a text as `count` whole numbers, which come as numbers, as text, or parted by ``:``.

    Raises:
        DataError: something else.
    """
    parts = value.split(":") if isinstance(value, str) else value
    listed = list(parts) if isinstance(parts, (list, tuple)) else [parts]
    try:
        numbers = [int(part) for part in listed if not isinstance(part, bool)]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) != count or len(listed) != count:
        wanted = "the index of a word" if count == 1 else "two numbers of characters, such as 4:9"
        raise DataError(f"the target {value!r} is not {wanted}", f"give {wanted}", column="target")
    return numbers


def split_text(text: str) -> list[tuple[int, int]]:
    """Split a text into words and marks, as (first, last + 1) characters; blanks belong to none.

    A mark inside a word or number stays inside (3.5, don't), and so does the last one of initials (U.N.); any other at
    its end is a word of its own, as in most annotated corpora.

    >>> text = "Mr. O'Hara of the U.N. paid $3.50 (twice)."
    >>> [text[start:end] for start, end in split_text(text)]
    ['Mr', '.', "O'Hara", 'of', 'the', 'U.N.', 'paid', '$', '3.50', '(', 'twice', ')', '.']
    """
    spans: list[tuple[int, int]] = []
    start = None
    for place, char in enumerate(text):
        belongs = _is_letter(char)
        if not belongs and start is not None and _is_inside(text, place):
            belongs = True
        elif char == "." and start is not None:
            belongs = re.fullmatch(r"\w(\.\w)+", text[start:place]) is not None
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


def tokenize_words(tokenizer: Any, rows: Sequence[Sequence[str]], longest: int) -> list[list[list[int]]]:
    """Give each row's words as lists of tokens, which are empty where a word has none (a zero-width character, say).

    A byte-level tokenizer tells the beginning of a word by the blank before it. Given words without blanks, it makes
    of ``["hello", "world"]`` the tokens of "helloworld", in silence, unless it was told to add the blank. So a probe
    and the first rows have to give the same tokens as words and in running text; where the probe does not, tokens are
    taken from running text and find their words by their characters.

    Args:
        tokenizer: a fast one.
        rows: lists of words.
        longest: of a word of more tokens only the first are kept: it is its beginning that speaks for a word.

    Raises:
        ModelError: words cannot be told from its tokens.
    """
    filled = [number for number, words in enumerate(rows) if words]
    texts = [rows[number] for number in filled]
    if _share_aligned(tokenizer, [_PROBE]) == 1:
        probes = [[word for word in words if len(word.split()) == 1] for words in texts[:_TESTED_ROWS]]
        if any(probes) and _share_aligned(tokenizer, [words for words in probes if words]) <= 0.5:
            raise _not_told_apart()
        tokens = [_by_words(each, len(words)) for each, words in zip(_as_words(tokenizer, texts), texts, strict=True)]
    else:
        _by_characters(_as_text(tokenizer, [_PROBE])[0], _PROBE)  # raises where a token has parts of two words
        tokens = [_by_characters(each, words) for each, words in zip(_as_text(tokenizer, texts), texts, strict=True)]
    found: list[list[list[int]]] = [[] for _ in rows]
    for number, each in zip(filled, tokens, strict=True):
        found[number] = [word[:longest] for word in each]
    return found


def _as_words(tokenizer: Any, rows: Sequence[Sequence[str]]) -> list[Any]:
    return tokenize_texts(tokenizer, [list(words) for words in rows]) if rows else []


def _as_text(tokenizer: Any, rows: Sequence[Sequence[str]]) -> list[Any]:
    return tokenize_texts(tokenizer, [f" {' '.join(words)}" for words in rows]) if rows else []


def _share_aligned(tokenizer: Any, rows: Sequence[Sequence[str]]) -> float:
    """Give the share of rows that have the same tokens as words and in running text."""
    pairs = zip(_as_words(tokenizer, rows), _as_text(tokenizer, rows), strict=True)
    # what stands for a bare blank (SentencePiece) may begin the running text
    return float(np.mean([one.ids == other.ids or one.ids == other.ids[1:] for one, other in pairs]))


def _by_words(encoded: Any, count: int) -> list[list[int]]:
    tokens: list[list[int]] = [[] for _ in range(count)]
    for token, word in zip(encoded.ids, encoded.word_ids, strict=True):
        tokens[word].append(token)
    return tokens


def _by_characters(encoded: Any, words: Sequence[str]) -> list[list[int]]:
    """Give the tokens of running text (a blank before every word) to the words that their characters belong to."""
    blanks = np.cumsum([0, *(len(word) + 1 for word in words)])
    text = f" {' '.join(words)}"
    tokens: list[list[int]] = [[] for _ in words]
    for token, (start, end) in zip(encoded.ids, encoded.offsets, strict=True):
        word = int(np.searchsorted(blanks, start, side="right")) - 1
        if end == start or word >= len(words):
            continue
        if end > blanks[word + 1] and text[blanks[word + 1] : end].strip():
            raise _not_told_apart()
        tokens[word].append(token)
    return tokens


def _not_told_apart() -> ModelError:
    what = "the tokenizer makes other tokens of a list of words than of the same text"
    return ModelError(what, "use a checkpoint whose tokenizer keeps words apart")


def split_windows(tokens: Sequence[Sequence[int]], room: int, overlap: int) -> list[Window]:
    """Split a row's words into windows of at most `room` tokens that overlap by at least `overlap` where they can.

    Every word with tokens belongs to exactly one window: the one with the most context on its poorer side (Devlin
    et al. 2018, `run_squad.py`, which does so for answers). A word is never cut, so none may have more than `room`.

    >>> [(w.words, w.places) for w in split_windows([[1], [2], [3, 4], [5], [6]], room=4, overlap=2)]
    [([0, 1, 2], [0, 1, 2]), ([3, 4], [2, 3])]
    """
    sizes = [len(word) for word in tokens]
    ends = np.cumsum([0, *sizes])
    spans = _find_window_spans(ends, room, max(0, overlap))
    if not spans:
        return []
    best = np.full(len(tokens), -1)
    context = np.full(len(tokens), -1)
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
                [token for word in tokens[first:last] for token in word],
                words,
                [int(ends[word] - ends[first]) for word in words],
            )
        )
    return windows


def _find_window_spans(ends: np.ndarray[Any, Any], room: int, overlap: int) -> list[tuple[int, int]]:
    """Give the windows as (first, last + 1) words; `ends` are the tokens before each word, and all of them."""
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


def _is_inside(text: str, place: int) -> bool:
    """Tell whether a mark is one that stands inside words, and a letter follows it."""
    return text[place] in "-'’.,@_&/" and place + 1 < len(text) and _is_letter(text[place + 1])


def _is_letter(char: str) -> bool:
    """Tell whether a character is part of a word: a letter, a digit, or a mark that goes with the one before."""
    return char.isalnum() or unicodedata.category(char) in ("Mn", "Mc", "Me", "Cf", "Co")

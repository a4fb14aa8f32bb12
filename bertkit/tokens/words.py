"""Words and their tokens: split texts into words, words into tokens, and rows into windows of tokens."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bertkit.data.formats.json import parse_json
from bertkit.errors import DataError, ModelError
from bertkit.metrics import Numbers
from bertkit.tokens.features import Tokenizer, tokenize_texts

if TYPE_CHECKING:
    from tokenizers import Encoding

_LIST = re.compile(r"""\s*\[(\s*["']\S.*|[^][\s,]+(,\s*[^][\s,]+)+\s*\]\s*|[\s0-9]*\]\s*)""", re.DOTALL)
"""A list, quoted or not, and not a sentence that begins with a bracket."""
_PROBE = ("The", "old", "man", "saw", "it", "again", ".")
_TESTED_ROWS = 100


@dataclass(frozen=True)
class Window:
    """The part of a row that fits the model, and the words whose predictions are taken from it.

    `words` are those that have more context in this window than in any other; `positions` are the offsets of their
    first tokens in `tokens`.
    """

    tokens: list[int]
    words: list[int]
    positions: list[int]


def read_list(value: object, column: str) -> list[Any]:
    """Read a list that is given as a list, as JSON or Python text, or as text separated by spaces.

    Raises:
        DataError: If the value is anything else.
    """
    if isinstance(value, str) and not value.lstrip().startswith("["):
        return value.split()
    items = parse_json(value)
    if not isinstance(items, (list, tuple)):
        problem = "a list that is not JSON" if isinstance(value, str) else f"{str(value)[:60]!r} is not a list"
        raise DataError(problem, 'write ["EU", "rejects"]', column=column)
    return list(items)


def read_words(value: object) -> list[str]:
    """Read the words of the column ``tokens``, in any form that `read_list` accepts.

    Text that begins with a bracket, as ``[1] shows`` does, is a sentence unless it is written as a list.

    Raises:
        DataError: the value is no list of strings.
    """
    if isinstance(value, str) and not _LIST.fullmatch(value):
        return value.split()
    words = read_list(value, "tokens")
    if not all(isinstance(word, str) for word in words):
        raise DataError(f"{str(words)[:60]} is not a list of words", "give a list of strings", column="tokens")
    return words


def read_target(value: Any, count: int) -> list[int]:
    """Read the position of a target word: `count` whole numbers, given as numbers or as text with ``:`` between them.

    Raises:
        DataError: the value is something else.
    """
    values = value.split(":") if isinstance(value, str) else value
    values = list(values) if isinstance(values, (list, tuple)) else [values]
    try:
        numbers = [int(number) for number in values if not isinstance(number, bool)]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) != count or len(values) != count:
        expected = "the index of a word" if count == 1 else "two character offsets, such as 4:9"
        raise DataError(f"the target {value!r} is not {expected}", f"give {expected}", column="target")
    return numbers


def read_target_word(row: Mapping[str, Any]) -> tuple[list[str], int]:
    """Read the words of a row and the index of its ``target`` among them.

    The target is a word's index from 0 in ``tokens``, or the first and last + 1 character in ``text``.

    Raises:
        DataError: it is outside the words or the text.
    """
    if "tokens" not in row:
        return _split_around_target(row["text"], row["target"])
    words = read_words(row["tokens"])
    target = read_target(row["target"], count=1)[0]
    if not 0 <= target < len(words):
        what = f"the target {target} is beyond the {len(words)} words"
        raise DataError(what, "count words from 0", column="target")
    return words, target


def _split_around_target(text: object, target: object) -> tuple[list[str], int]:
    """Split a text into words around its target."""
    start, end = read_target(target, count=2)
    if not isinstance(text, str) or not 0 <= start < end <= len(text) or not text[start:end].strip():
        size = len(text) if isinstance(text, str) else 0
        what = f"the target {start}:{end} is not a word of the text, which has {size} characters"
        raise DataError(what, "write its first and last + 1 character", column="target")
    before, after = text[:start].split(), text[end:].split()
    return [*before, text[start:end].strip(), *after], len(before)


def tokenize_words(tokenizer: Tokenizer, rows: Sequence[Sequence[str]], max_tokens: int) -> list[list[list[int]]]:
    """Tokenize the words of each row; a word without tokens (a zero-width character, say) has an empty list.

    A byte-level tokenizer marks the beginning of a word by the space before it. Unless it adds that space itself, it
    silently tokenizes the list ``["hello", "world"]`` as "helloworld". So a probe sentence and the first rows are
    tokenized both as words and as running text. If the probe differs, all rows are tokenized as running text, and
    their tokens are assigned to words by character offsets.

    Args:
        tokenizer: a fast tokenizer.
        rows: lists of words.
        max_tokens: how many tokens of a word are kept; the first ones, since a word's first token represents it.

    Raises:
        ModelError: the tokenizer joins words, so its tokens cannot be assigned to them.
    """
    filled = [number for number, words in enumerate(rows) if words]
    texts = [rows[number] for number in filled]
    if _share_aligned(tokenizer, [_PROBE]) == 1:
        # The probe is English, and a tokenizer may still join the words of these rows. Blank words, and those with
        # spaces inside, are left out, since running text splits them in other ways.
        probes = [[word for word in words if len(word.split()) == 1] for words in texts[:_TESTED_ROWS]]
        if any(probes) and _share_aligned(tokenizer, [words for words in probes if words]) <= 0.5:
            raise _joined_words_error()
        encodings = zip(_encode_words(tokenizer, texts), texts, strict=True)
        tokens = [_split_by_word_ids(encoding, len(words)) for encoding, words in encodings]
    else:
        # raises if a token spans two words
        _split_by_offsets(_encode_text(tokenizer, [_PROBE])[0], _PROBE)
        encodings = zip(_encode_text(tokenizer, texts), texts, strict=True)
        tokens = [_split_by_offsets(encoding, words) for encoding, words in encodings]
    tokens_of_rows: list[list[list[int]]] = [[] for _ in rows]
    for number, words_of_row in zip(filled, tokens, strict=True):
        tokens_of_rows[number] = [word[:max_tokens] for word in words_of_row]
    return tokens_of_rows


def tokenize_subwords(tokenizer: Tokenizer, rows: Sequence[Mapping[str, Any]]) -> list[list[list[int]]]:
    """Tokenize the text of each row, and assign the tokens to its words, which `split_subwords` has made of them."""
    tokens: list[list[list[int]]] = []
    for row, encoding in zip(rows, tokenize_texts(tokenizer, [row["text"] for row in rows]), strict=True):
        starts = [start for start, _ in row["offsets"]]
        tokens.append([[] for _ in starts])
        for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            # A token may begin with the space before its word; a token of whitespace alone goes with the word before.
            word = bisect_right(starts, end - len(row["text"][start:end].lstrip())) - 1
            if starts:
                tokens[-1][max(word, 0)].append(token)
    return tokens


def _encode_words(tokenizer: Tokenizer, rows: Sequence[Sequence[str]]) -> list[Encoding]:
    return tokenize_texts(tokenizer, [list(words) for words in rows]) if rows else []


def _encode_text(tokenizer: Tokenizer, rows: Sequence[Sequence[str]]) -> list[Encoding]:
    """Encode each row as running text, with a space before every word."""
    return tokenize_texts(tokenizer, [f" {' '.join(words)}" for words in rows]) if rows else []


def _share_aligned(tokenizer: Tokenizer, rows: Sequence[Sequence[str]]) -> float:
    """Compute the share of rows, in [0, 1], that have the same tokens as words and as running text."""
    pairs = zip(_encode_words(tokenizer, rows), _encode_text(tokenizer, rows), strict=True)
    # SentencePiece may begin running text with a token for the bare space
    return float(np.mean([words.ids == text.ids or words.ids == text.ids[1:] for words, text in pairs]))


def _split_by_word_ids(encoding: Any, count: int) -> list[list[int]]:
    tokens: list[list[int]] = [[] for _ in range(count)]
    for token, word in zip(encoding.ids, encoding.word_ids, strict=True):
        tokens[word].append(token)
    return tokens


def _split_by_offsets(encoding: Encoding, words: Sequence[str]) -> list[list[int]]:
    """Assign the tokens of running text (a space before every word) to words by their characters.

    Raises:
        ModelError: a token covers characters of two words.
    """
    # a token belongs to the word after the last space at or before its start: byte-level tokens include that space
    spaces = np.cumsum([0, *(len(word) + 1 for word in words)])
    text = f" {' '.join(words)}"
    tokens: list[list[int]] = [[] for _ in words]
    for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
        word = int(np.searchsorted(spaces, start, side="right")) - 1
        if end == start or word >= len(words):
            continue
        if end > spaces[word + 1] and text[spaces[word + 1] : end].strip():
            raise _joined_words_error()
        tokens[word].append(token)
    return tokens


def _joined_words_error() -> ModelError:
    what = "the tokenizer splits a list of words differently from the same text"
    return ModelError(what, "use a checkpoint whose tokenizer keeps words apart")


def split_windows(tokens: Sequence[Sequence[int]], budget: int, overlap: int) -> list[Window]:
    """Split a row's words into windows of at most `budget` tokens that overlap by at least `overlap` if they can.

    Every word with tokens belongs to exactly one window: the one whose smaller side of context is largest (Devlin
    et al. 2018, `run_squad.py`, which chooses answers so). Words are never split, so none may exceed `budget`.

    >>> [(w.words, w.positions) for w in split_windows([[1], [2], [3, 4], [5], [6]], budget=4, overlap=2)]
    [([0, 1, 2], [0, 1, 2]), ([3, 4], [2, 3])]
    """
    sizes = [len(word) for word in tokens]
    ends = np.cumsum([0, *sizes])
    spans = _find_window_spans(ends, budget, max(0, overlap))
    if not spans:
        return []
    # (words,) the window with the most context so far, and that context: tokens on the smaller side of the word.
    # Each window updates its own words at once; comparing every word with every window would be quadratic.
    best_windows = np.full(len(tokens), -1)
    best_context = np.full(len(tokens), -1)
    for number, (first, last) in enumerate(spans):
        words = np.arange(first, last)
        context = np.minimum(ends[words] - ends[first], ends[last] - ends[words + 1])
        is_better = context > best_context[words]
        best_windows[words[is_better]], best_context[words[is_better]] = number, context[is_better]
    windows = []
    for number, (first, last) in enumerate(spans):
        own = [word for word in range(first, last) if best_windows[word] == number and sizes[word]]
        window_tokens = [token for word in tokens[first:last] for token in word]
        windows.append(Window(window_tokens, own, [int(ends[word] - ends[first]) for word in own]))
    return windows


def _find_window_spans(ends: Numbers, budget: int, overlap: int) -> list[tuple[int, int]]:
    """Find the windows as (first, last + 1) word; `ends` (words + 1,) counts the tokens before each word and in all."""
    # A window takes as many words as fit the budget. `ends` rises, so its last word and the first word of the next
    # window are binary searches.
    count = len(ends) - 1
    spans: list[tuple[int, int]] = []
    first = 0
    while ends[-1] > 0 and first < count:
        last = int(np.searchsorted(ends, ends[first] + budget, side="right")) - 1
        spans.append((first, last))
        if last == count:
            break
        first = max(first + 1, int(np.searchsorted(ends, ends[last] - overlap, side="right")) - 1)
        # the next window must reach at least one word further
        while ends[last + 1] - ends[first] > budget:
            first += 1
    return spans

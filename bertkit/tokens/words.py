"""Words and their tokens: split texts into words, words into tokens, and rows into windows; fit spans to words."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from bertkit.data.formats.json import parse_json
from bertkit.data.spans import OFFSET_RULES, TextSpan, convert_offsets
from bertkit.errors import DataError, ModelError
from bertkit.tokens.features import Tokenizer, tokenize_texts

if TYPE_CHECKING:
    import tokenizers
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
        DataError: If the value is not a list of strings.
    """
    if isinstance(value, str) and not _LIST.fullmatch(value):
        return value.split()
    words = read_list(value, "tokens")
    if not all(isinstance(word, str) for word in words):
        raise DataError(f"{str(words)[:60]} is not a list of words", "give a list of strings", column="tokens")
    return words


def read_target(value: Any, count: int) -> list[int]:
    """Read the position of a target word: `count` integers, as numbers or as text with ``:`` between them.

    Raises:
        DataError: If the value is anything else.
    """
    values = value.split(":") if isinstance(value, str) else value
    values = list(values) if isinstance(values, (list, tuple)) else [values]
    try:
        integers = [int(part) for part in values if not isinstance(part, bool)]
    except (TypeError, ValueError):
        integers = []
    if len(integers) != count or len(values) != count:
        expected = "the index of a word" if count == 1 else "two character offsets, such as 4:9"
        raise DataError(f"the target {value!r} is not {expected}", f"give {expected}", column="target")
    return integers


def read_target_word(row: Mapping[str, Any]) -> tuple[list[str], int]:
    """Read the words of a row and the index of its ``target`` among them.

    The target is a word's index from 0 in ``tokens``, or the first and last + 1 character in ``text``.

    Raises:
        DataError: If the target is outside the words or the text.
    """
    if "tokens" not in row:
        return _split_around_target(row["text"], row["target"])
    words = read_words(row["tokens"])
    target = read_target(row["target"], count=1)[0]
    if not 0 <= target < len(words):
        raise DataError(f"the target {target} is beyond the {len(words)} words", "count words from 0", column="target")
    return words, target


def _split_around_target(text: object, target: object) -> tuple[list[str], int]:
    """Split a text into words around its target."""
    start, end = read_target(target, count=2)
    if not isinstance(text, str) or not 0 <= start < end <= len(text) or not text[start:end].strip():
        size = len(text) if isinstance(text, str) else 0
        message = f"the target {start}:{end} is not a word of the text, which has {size} characters"
        raise DataError(message, "write its first and last + 1 character", column="target")
    before, after = text[:start].split(), text[end:].split()
    return [*before, text[start:end].strip(), *after], len(before)


def tokenize_words(tokenizer: Tokenizer, rows: Sequence[Sequence[str]], max_tokens: int) -> list[list[list[int]]]:
    """Tokenize the words of each row; a word without tokens, such as a zero-width character, has an empty list.

    A byte-level tokenizer marks the beginning of a word by the space before it. Unless it adds that space itself, it
    silently tokenizes the list ``["hello", "world"]`` as "helloworld". So a probe sentence and the first rows are
    tokenized both as words and as running text. If the probe differs, all rows are tokenized as running text, and
    their tokens are assigned to words by character offsets.

    Args:
        tokenizer: Fast tokenizer.
        rows: Lists of words.
        max_tokens: Maximum tokens per word; the first tokens are kept, because a word's first token represents it.

    Raises:
        ModelError: If the tokenizer joins words, so that its tokens cannot be assigned to them.
    """
    rows_with_words = [index for index, words in enumerate(rows) if words]
    texts = [rows[index] for index in rows_with_words]
    if _aligned_fraction(tokenizer, [_PROBE]) == 1:
        # The probe is English, and a tokenizer can still join the words of these rows. Blank words, and words with
        # spaces inside, are left out, because running text splits them differently.
        probes = [[word for word in words if len(word.split()) == 1] for words in texts[:_TESTED_ROWS]]
        if any(probes) and _aligned_fraction(tokenizer, [words for words in probes if words]) <= 0.5:
            raise _joined_words_error()
        encodings = zip(_encode_words(tokenizer, texts), texts, strict=True)
        tokens = [_split_by_word_ids(encoding, len(words)) for encoding, words in encodings]
    else:
        # This raises if a token spans two words.
        _split_by_offsets(_encode_text(tokenizer, [_PROBE])[0], _PROBE)
        encodings = zip(_encode_text(tokenizer, texts), texts, strict=True)
        tokens = [_split_by_offsets(encoding, words) for encoding, words in encodings]
    row_tokens: list[list[list[int]]] = [[] for _ in rows]
    for index, row_words in zip(rows_with_words, tokens, strict=True):
        row_tokens[index] = [word[:max_tokens] for word in row_words]
    return row_tokens


def tokenize_subwords(tokenizer: Tokenizer, rows: Sequence[Mapping[str, Any]]) -> list[list[list[int]]]:
    """Tokenize the text of each row, and assign the tokens to its words, which `split_subwords` found."""
    tokens: list[list[list[int]]] = []
    for row, encoding in zip(rows, tokenize_texts(tokenizer, [row["text"] for row in rows]), strict=True):
        starts = [start for start, _ in row["offsets"]]
        tokens.append([[] for _ in starts])
        for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            # A token can begin with the space before its word; a token of only whitespace belongs to the word before.
            word = bisect_right(starts, end - len(row["text"][start:end].lstrip())) - 1
            if starts:
                tokens[-1][max(word, 0)].append(token)
    return tokens


def _encode_words(tokenizer: Tokenizer, rows: Sequence[Sequence[str]]) -> list[Encoding]:
    return tokenize_texts(tokenizer, [list(words) for words in rows]) if rows else []


def _encode_text(tokenizer: Tokenizer, rows: Sequence[Sequence[str]]) -> list[Encoding]:
    """Encode each row as running text, with a space before every word."""
    return tokenize_texts(tokenizer, [f" {' '.join(words)}" for words in rows]) if rows else []


def _aligned_fraction(tokenizer: Tokenizer, rows: Sequence[Sequence[str]]) -> float:
    """Compute the fraction of rows that have the same tokens as words and as running text."""
    pairs = zip(_encode_words(tokenizer, rows), _encode_text(tokenizer, rows), strict=True)
    # SentencePiece can begin running text with a token for the space alone.
    return float(np.mean([words.ids == text.ids or words.ids == text.ids[1:] for words, text in pairs]))


def _split_by_word_ids(encoding: Any, count: int) -> list[list[int]]:
    tokens: list[list[int]] = [[] for _ in range(count)]
    for token, word in zip(encoding.ids, encoding.word_ids, strict=True):
        tokens[word].append(token)
    return tokens


def _split_by_offsets(encoding: Encoding, words: Sequence[str]) -> list[list[int]]:
    """Assign the tokens of running text (a space before every word) to words by their characters.

    Raises:
        ModelError: If a token covers characters of two words.
    """
    # The words "an" and "owl" are the text " an owl", with spaces at [0, 3] and the end at 7. The tokens " an" (0 to 3)
    # and "owl" (4 to 7) start at or after the spaces 0 and 3, so they belong to the words 0 and 1. A token belongs to
    # the word after the last space at or before its start: byte-level tokens include that space.
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
    message = "the tokenizer splits a list of words differently from the same text"
    return ModelError(message, "use a checkpoint whose tokenizer keeps words apart")


def split_windows(tokens: Sequence[Sequence[int]], budget: int, overlap: int) -> list[Window]:
    """Split a row's words into windows of at most `budget` tokens that overlap by at least `overlap` if they can.

    Each word is listed in one window: the one with the most tokens on the word's shorter side (as for answers in
    `run_squad.py`, Devlin et al. 2018). Words are never split, so no word can exceed `budget`.

    >>> [(w.words, w.positions) for w in split_windows([[1], [2], [3, 4], [5], [6]], budget=4, overlap=2)]
    [([0, 1, 2], [0, 1, 2]), ([3, 4], [2, 3])]
    """
    # In the example, `ends` is [0, 1, 2, 4, 5, 6] and the windows are the words 0 to 2 and 2 to 4. In both windows, the
    # words have [0, 1, 0] tokens on their shorter side. Word 2 is in both with the same context, 0, so it stays in the
    # first.
    sizes = [len(word) for word in tokens]
    ends = np.cumsum([0, *sizes])
    spans = _find_window_spans(ends, budget, max(0, overlap))
    if not spans:
        return []
    # For each word (words,), the best window so far and its context: the tokens on the shorter side of the word. A
    # window updates all its words at once; comparing every word with every window would be quadratic.
    best_windows = np.full(len(tokens), -1)
    best_context = np.full(len(tokens), -1)
    for index, (first, last) in enumerate(spans):
        words = np.arange(first, last)
        context = np.minimum(ends[words] - ends[first], ends[last] - ends[words + 1])
        is_better = context > best_context[words]
        best_windows[words[is_better]], best_context[words[is_better]] = index, context[is_better]
    windows = []
    for index, (first, last) in enumerate(spans):
        window_words = [word for word in range(first, last) if best_windows[word] == index and sizes[word]]
        window_tokens = [token for word in tokens[first:last] for token in word]
        windows.append(Window(window_tokens, window_words, [int(ends[word] - ends[first]) for word in window_words]))
    return windows


def _find_window_spans(ends: np.ndarray, budget: int, overlap: int) -> list[tuple[int, int]]:
    """Find the windows as (first, last + 1) word; `ends` (words + 1,) counts the tokens before each word and in all."""
    # With `ends` [0, 1, 2, 4, 5, 6], a budget of 4 and an overlap of 2, the first window ends at 4 tokens, before word
    # 3. The next one begins 2 tokens earlier, at word 2. A window takes as many words as fit the budget. `ends` rises,
    # so its last word and the first word of the next window are binary searches.
    count = len(ends) - 1
    spans: list[tuple[int, int]] = []
    first = 0
    while ends[-1] > 0 and first < count:
        last = int(np.searchsorted(ends, ends[first] + budget, side="right")) - 1
        spans.append((first, last))
        if last == count:
            break
        first = max(first + 1, int(np.searchsorted(ends, ends[last] - overlap, side="right")) - 1)
        # The next window must contain at least one more word.
        while ends[last + 1] - ends[first] > budget:
            first += 1
    return spans


# --- Words of plain text, as offsets of characters ---


WORD_SPLITS = ("whitespace", "punctuation", "subwords")
"""How texts are split into words; see `split_text`, and `split_subwords` for the last."""

# Scripts that write no spaces between words: Thai, Lao, Burmese, Khmer, Kana and Han.
_UNSPACED = re.compile(
    "[\u0e01-\u0e32\u0e34-\u0eb2\u0eb4-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\ua9e0-\ua9ff\uaa60-\uaa7f\uf900-\ufaff\uff66-\uff9d\U00020000-\U0003ffff]"
)
_RUNS = re.compile(r"[A-Za-z]+|[0-9]+|\S")  # single characters would do; runs save time
_MIN_MISFITS = 10
_THAI_VOWELS = "\u0e33\u0eb3"  # SARA AM and its Lao counterpart, which follow the consonant that they belong to


def split_text(text: str, *, at_punctuation: bool = False) -> list[tuple[int, int]]:
    """Split a text into words and punctuation marks, without whitespace: (first, last + 1) character of each.

    A mark inside a word or number belongs to it (3.5, don't), and so does the last period of initials (U.N.). Any
    other mark is a separate word, as in most annotated corpora. In scripts without spaces between words, a word is
    one character with its combining marks (a grapheme cluster, Unicode Standard Annex 29).

    Args:
        text: Text of any script.
        at_punctuation: Also split at marks inside words, except apostrophes and the marks of numbers and
            initials, and between letters and digits.

    >>> text = "Mr. O'Hara of the U.N. paid $3.50 (twice)."
    >>> [text[start:end] for start, end in split_text(text)]
    ['Mr', '.', "O'Hara", 'of', 'the', 'U.N.', 'paid', '$', '3.50', '(', 'twice', ')', '.']
    >>> text = "fever/chills, 10mg 東京"
    >>> [text[start:end] for start, end in split_text(text)]
    ['fever/chills', ',', '10mg', '東', '京']
    >>> [text[start:end] for start, end in split_text(text, at_punctuation=True)]
    ['fever', '/', 'chills', ',', '10', 'mg', '東', '京']
    """
    spans: list[tuple[int, int]] = []
    for run in _RUNS.finditer(text):
        start, end = run.span()
        if spans and spans[-1][1] == start and _continues_word(text, spans[-1][0], start, at_punctuation):
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    return spans


def split_subwords(tokenizer: tokenizers.Tokenizer, text: str) -> list[tuple[int, int]]:
    """Split a text into the tokens of its tokenizer, without whitespace: (first, last + 1) character of each.

    Tokens that share a character, such as the bytes of an emoji, are one word.
    """
    spans: list[tuple[int, int]] = []
    for start, end in tokenizer.encode(text, add_special_tokens=False).offsets:
        # The marker of a byte-level token is the space before its word, which belongs to no word.
        token = text[start:end]
        start, end = end - len(token.lstrip()), start + len(token.rstrip())
        if spans and start < spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        elif start < end:
            spans.append((start, end))
    return spans


def fits_words(words: Sequence[tuple[int, ...]], span: Sequence[Any]) -> bool:
    """Return whether a span has the first character of a word as its start and the end of a word as its end.

    >>> fits_words([(0, 3), (4, 8)], (0, 8)), fits_words([(0, 3), (4, 8)], (0, 6))
    (True, False)
    """
    first, last = bisect_left(words, (span[0],)), bisect_left(words, (span[1],)) - 1
    return 0 <= first <= last and words[first][0] == span[0] and words[last][1] == span[1]


def check_offsets(rows: Iterable[Mapping[str, Any]], misfits: int, total: int) -> None:
    """Check whether spans that fit no words would fit them if their offsets were counted in another way.

    Args:
        rows: Rows with ``text``, ``offsets`` of its words and ``spans``, both as (first, last + 1) character.
        misfits: Number of the spans that begin or end inside a word.
        total: Number of the spans.

    Raises:
        DataError: If there are at least ten such spans, and nearly all of them would fit.
    """
    if misfits < _MIN_MISFITS:
        return
    explained: Counter[str] = Counter()
    for row in rows:
        text, words, spans = row["text"], row["offsets"], row.get("spans", ())
        cut_spans = [_possible_ends(text, span) for span in spans if not fits_words(words, span)]
        for name in OFFSET_RULES if cut_spans else ():
            recounted = (convert_offsets(candidates, text, name) for candidates in cut_spans)
            explained[name] += sum(any(fits_words(words, span) for span in candidates) for candidates in recounted)
    (name, count), *_ = explained.most_common(1)
    counting = OFFSET_RULES[name]
    # A shift is in all spans, while other units show only in texts with certain characters.
    min_misfits = total / 2 if counting.start or counting.end else 0
    if count >= 0.9 * misfits > 0.9 * min_misfits:
        problem = f"{misfits:,} of {total:,} spans begin or end inside a word; {count:,} of them would not"
        cause = f"if offsets count {counting.description}"
        raise DataError(f"{problem} {cause}", f"add --set options.offsets={name}", column="spans")


def _possible_ends(text: str, span: Sequence[Any]) -> list[TextSpan]:
    """Return a span with and without the whitespace around it, which `bertkit.data.spans.read_spans` strips."""
    start, end, label = span
    starts = (start - 1, start) if text[:start].endswith(" ") else (start,)
    ends = (end, end + 1) if text[end:].startswith(" ") else (end,)
    return [TextSpan(*offsets, label) for offsets in product(starts, ends)]


def _continues_word(text: str, start: int, index: int, at_punctuation: bool) -> bool:
    """Return whether a character belongs to the word or mark right before it, which begins at `start`."""
    char, previous = text[index], text[index - 1]
    if _is_letter(char) and (not char.isalnum() or char in _THAI_VOWELS):
        return True  # It combines with the character before it: an accent, for example, or the parts of an emoji.
    if not _is_letter(text[start]) or _UNSPACED.match(text[start]) or _UNSPACED.match(char):
        return False
    if _is_letter(char):
        return not at_punctuation or not previous.isalnum() or previous.isdigit() == char.isdigit()
    following, word_start = text[index + 1 : index + 2], text[start:index]
    if char == "." and re.fullmatch(r"\w(\.\w)+", word_start):
        return True
    if char not in "-'’.,@_&/" or not following or not _is_letter(following) or _UNSPACED.match(following):
        return False
    if not at_punctuation or char in "'’":
        return True
    if char in ".," and previous.isdigit():
        return following.isdigit()
    return char == "." and re.fullmatch(r"\w(\.\w)*", word_start) is not None


def _is_letter(char: str) -> bool:
    """Return whether a character is part of a word: a letter, a digit, or a combining or invisible character."""
    return char.isalnum() or unicodedata.category(char) in ("Mn", "Mc", "Me", "Cf", "Co")

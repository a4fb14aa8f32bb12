"""Words of a text as character offsets, and whether annotated spans fit them."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from bertkit.data.spans import COUNTINGS, TextSpan, recount
from bertkit.errors import DataError

if TYPE_CHECKING:
    import tokenizers

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
        for name in COUNTINGS if cut_spans else ():
            recounted = (recount(candidates, text, name) for candidates in cut_spans)
            explained[name] += sum(any(fits_words(words, span) for span in candidates) for candidates in recounted)
    (name, count), *_ = explained.most_common(1)
    counting = COUNTINGS[name]
    # A shift is in all spans, while other units show only in texts with certain characters.
    min_misfits = total / 2 if counting.start or counting.end else 0
    if count >= 0.9 * misfits > 0.9 * min_misfits:
        problem = f"{misfits:,} of {total:,} spans begin or end inside a word; {count:,} of them would not"
        cause = f"if offsets count {counting.description}"
        raise DataError(f"{problem} {cause}", f"--set options.offsets={name}", column="spans")


def _possible_ends(text: str, span: Sequence[Any]) -> list[TextSpan]:
    """Return a span with and without the whitespace around it, which `bertkit.data.spans.read_spans` strips."""
    start, end, label = span
    starts = (start - 1, start) if text[:start].endswith(" ") else (start,)
    ends = (end, end + 1) if text[end:].startswith(" ") else (end,)
    return [TextSpan(*offsets, label) for offsets in product(starts, ends)]


def _continues_word(text: str, start: int, index: int, at_punctuation: bool) -> bool:
    """Return whether a character belongs to the word or mark right before it, which begins at `start`."""
    char, before = text[index], text[index - 1]
    if _is_letter(char) and (not char.isalnum() or char in _THAI_VOWELS):
        return True  # It combines with the character before it: an accent, for example, or the parts of an emoji.
    if not _is_letter(text[start]) or _UNSPACED.match(text[start]) or _UNSPACED.match(char):
        return False
    if _is_letter(char):
        return not at_punctuation or not before.isalnum() or before.isdigit() == char.isdigit()
    following, so_far = text[index + 1 : index + 2], text[start:index]
    if char == "." and re.fullmatch(r"\w(\.\w)+", so_far):
        return True
    if char not in "-'’.,@_&/" or not following or not _is_letter(following) or _UNSPACED.match(following):
        return False
    if not at_punctuation or char in "'’":
        return True
    if char in ".," and before.isdigit():
        return following.isdigit()
    return char == "." and re.fullmatch(r"\w(\.\w)*", so_far) is not None


def _is_letter(char: str) -> bool:
    """Return whether a character is part of a word: a letter, a digit, or a combining or invisible character."""
    return char.isalnum() or unicodedata.category(char) in ("Mn", "Mc", "Me", "Cf", "Co")

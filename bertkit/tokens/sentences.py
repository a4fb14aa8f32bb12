"""Split text into sentences by a few rules that fit most languages with Latin or Chinese punctuation.

A sentence never continues on the next line: in BERT's format a line is a sentence, and elsewhere it is a heading, an
item or a paragraph. Text with hard line breaks has to be unwrapped before.
"""

from __future__ import annotations

import re

_CLOSING = "\"'”’»›)\\]}」』）】"
_MARK = re.compile(f"(?<![.!?…])[.!?…]+[{_CLOSING}]*(?=\\s)|[。！？｡]+[{_CLOSING}]*")
_OPENING = "\"'“‘«‹„([{¿¡-–—"

_BEFORE_NAMES = re.compile(
    "mrs?|m[sx]|dr|prof|st|[sj]r|rev|hon|gen|col|capt|lt|sgt|maj|cmdr|gov|sen|rep|pres|mt|ft|messrs|mme|mlle|vs?|cf"
    r"|e\.g|i\.e|viz|ca|approx|bzw|z\.b|d\.h|u\.a",
    re.IGNORECASE,
)
"""Abbreviations that rarely end a sentence."""
_BEFORE_NUMBERS = re.compile(
    "nos?|nr|figs?|eqs?|vols?|pp?|ch|sec|art|op|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec", re.IGNORECASE
)
_INITIALS = re.compile(r"[^\W\d_](\.[^\W\d_])*")


def split_sentences(text: str) -> list[str]:
    """Split a text into sentences without the whitespace around them; no other character is lost.

    A sentence ends with its line, or after ``. ! ? …`` and closing quotes or brackets that whitespace follows;
    ``。！？`` need no whitespace. It continues after an abbreviation or initial, and if the next word begins with a
    lowercase letter, unless all letters of the line are lowercase.

    >>> split_sentences('Dr. J. Bell paid $3.50. "Why?" he asked. No. 5 was for the U.S. Army!')
    ['Dr. J. Bell paid $3.50.', '"Why?" he asked.', 'No. 5 was for the U.S. Army!']
    """
    sentences = []
    for line in text.splitlines():
        start, is_lower = 0, line.islower()
        for mark in _MARK.finditer(line):
            if _ends_sentence(line, start, mark, is_lower):
                sentences.append(line[start : mark.end()].strip())
                start = mark.end()
        sentences.append(line[start:].strip())
    return [sentence for sentence in sentences if sentence]


def _ends_sentence(line: str, start: int, mark: re.Match[str], is_lower: bool) -> bool:
    """Return whether the sentence that begins at `start` ends with these marks."""
    if mark[0][0] in "。！？｡":
        return True
    # A slice to the end of the line would take quadratic time in a line of many sentences.
    after = line[mark.end() : mark.end() + 40].lstrip().lstrip(_OPENING)[:1]
    if after.islower() and not is_lower:
        return False
    # Only a single period can belong to an abbreviation.
    if mark[0][0] != "." or mark[0].startswith(".."):
        return True
    before = line[max(start, mark.start() - 40) : mark.start()]
    return not _is_abbreviation(before, after)


def _is_abbreviation(before: str, after: str) -> bool:
    """Return whether a period belongs to the word before it; the next word does not begin with a lowercase letter.

    >>> _is_abbreviation("by J", "S"), _is_abbreviation("the U.S", "A"), _is_abbreviation("at 5 p.m", "H")
    (True, True, False)
    """
    word = before.split()[-1].lstrip(_OPENING) if before.strip() else ""
    if _BEFORE_NAMES.fullmatch(word) or (after.isdigit() and _BEFORE_NUMBERS.fullmatch(word)):
        return True
    if word.isdigit():
        return before.strip() == word  # The number of an item or a chapter is at the start of a line.
    return word.isupper() and word != "I" and bool(_INITIALS.fullmatch(word))

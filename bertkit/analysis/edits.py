"""Small changes of a text that should not change the answer, as in CheckList.

Ribeiro et al. 2020, "Beyond Accuracy: Behavioral Testing of NLP Models with CheckList", section 3.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from random import Random

# At least four letters; digits and underscores are not letters.
_LONG_WORD = re.compile(r"[^\W\d_]{4,}")
# An integer that is not part of a number such as 3.5 or 1,000, or of a code such as A4.
_NUMBER = re.compile(r"(?<![\w.,])\d+(?![\w.,]\d)(?!\w)")
Change = Callable[[str, Random], str]
"""Function that returns the changed text, or the same text if there is nothing to change."""


def swap_letters(text: str, draw: Random) -> str:
    """Swap two neighboring letters within one word.

    >>> swap_letters("a wonderful film", Random(0))
    'a wonderful fiml'
    """
    words = list(_LONG_WORD.finditer(text))
    if not words:
        return text
    word = draw.choice(words)
    letters = list(word[0])
    # Keep the first letter, which matters most to readers, and skip pairs of equal letters.
    positions = [index for index in range(1, len(letters) - 1) if letters[index] != letters[index + 1]]
    if not positions:
        return text
    index = draw.choice(positions)
    letters[index], letters[index + 1] = letters[index + 1], letters[index]
    return text[: word.start()] + "".join(letters) + text[word.end() :]


def change_end(text: str, _: Random) -> str:
    """Drop the punctuation at the end, or add a period.

    >>> change_end("It works.", Random(0)), change_end("It works", Random(0))
    ('It works', 'It works.')
    """
    bare = text.rstrip()
    stripped = bare.rstrip(".!?").rstrip()
    return stripped if stripped != bare and stripped else f"{bare}."


def exchange_words(words: Sequence[str]) -> Change:
    """Build a change that finds the first of `words` in a text, and replaces all its occurrences with another of them.

    >>> exchange_words(("Mary", "Anna"))("Mary met Ann in Oslo", Random(1))
    'Anna met Ann in Oslo'
    """
    pattern = re.compile(rf"\b({'|'.join(map(re.escape, words))})\b")

    def change(text: str, draw: Random) -> str:
        match = pattern.search(text)
        # A replacement that is already in the text would, for example, merge two people.
        replacements = [word for word in words if word not in text] if match else []
        if not match or not replacements:
            return text
        new = draw.choice(replacements)
        return re.sub(rf"\b{re.escape(match[0])}\b", lambda _: new, text)

    return change


def replace_words(synonyms: Mapping[str, str]) -> Change:
    """Build a change that replaces words by their synonyms and keeps initial capitals.

    >>> replace_words({"good": "great"})("Good films are good", Random(0))
    'Great films are great'
    """
    pattern = re.compile(rf"\b({'|'.join(map(re.escape, synonyms))})\b", re.IGNORECASE)
    lower = {word.lower(): synonym for word, synonym in synonyms.items()}

    def replace(match: re.Match[str]) -> str:
        new = lower[match[0].lower()]
        return new[0].upper() + new[1:] if match[0][0].isupper() else new

    return lambda text, _: pattern.sub(replace, text)


def add_text(addition: str) -> Change:
    """Build a change that appends a sentence."""
    return lambda text, _: f"{text.rstrip()} {addition}"


def change_number(text: str, draw: Random) -> str:
    """Change an integer in a text by at most a fifth.

    >>> change_number("in 250 days", Random(0))
    'in 299 days'
    """
    matches = list(_NUMBER.finditer(text))
    if not matches:
        return text
    match = draw.choice(matches)
    value = int(match[0])
    span = max(1, value // 5)
    new = draw.choice([value + draw.randint(1, span), max(0, value - draw.randint(1, span))])
    return text[: match.start()] + str(new) + text[match.end() :]


EDITS: Mapping[str, Change] = {
    "typo": swap_letters,
    "lower case": lambda text, _: text.lower(),
    "upper case": lambda text, _: text.upper(),
    "punctuation": change_end,
    "number": change_number,
}
"""Changes that need no arguments."""


def apply_edit(name: str, change: Change, value: str | list[str], draw: Random) -> str | list[str] | None:
    """Return a changed text or list of words, or None if the change is not possible.

    A list keeps its number of words, because each word has a tag; only ``add`` appends words.
    """
    if isinstance(value, str):
        changed = change(value, draw)
        return None if changed == value else changed
    if name == "add":
        return [*value, *change("", draw).split()]
    # The change of the end would add or remove a word.
    if name == "punctuation":
        return None
    text = "\n".join(value)  # words contain no line feeds, and patterns match none
    words = change(text, draw).split("\n")
    return None if words == value or len(words) != len(value) else words

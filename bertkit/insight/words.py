"""The words that a model's tokens stand for, so that what tokens are worth can be summed per word."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bertkit.recipe import Row
from bertkit.tokens.features import Tokenizer, special_ids
from bertkit.tokens.text_words import split_text

_PART_OF_A_CHARACTER = "\ufffd"
_MOST_BYTES = 3  # of a character, before its last


@dataclass(frozen=True)
class Word:
    """A word of an input, as the row spells it."""

    text: str
    segment: int
    """Which of the texts between special tokens it stands in."""
    positions: tuple[tuple[int, int], ...]
    """Its tokens: which of the feature's texts, and where in it."""


def find_words(texts: Sequence[Sequence[int]], tokenizer: Tokenizer, row: Row) -> list[Word]:
    """Find the words of a feature's texts, each a list of token ids.

    Tokens are looked up in the row, whose spelling the words then have. What is not found there, as what a task adds,
    is put together from the tokens alone.
    """
    special, source = special_ids(tokenizer), _Source(row.values())
    words, segment = [], 0
    for number, ids in enumerate(texts):
        for is_special, group in itertools.groupby(enumerate(ids), lambda pair: int(pair[1]) in special):
            if is_special:
                continue
            run = [position for position, _ in group]
            tokens = tokenizer.convert_ids_to_tokens([int(ids[position]) for position in run])
            surfaces = _surfaces(tokens, tokenizer)
            for text, members in source.find(surfaces) or _join_tokens(surfaces):
                words.append(Word(text, segment, tuple((number, run[member]) for member in members)))
            segment += 1
    return words


@dataclass(frozen=True)
class _Surface:
    """The characters of a token; None where it is unknown."""

    text: str | None
    begins: bool
    joins_next: bool = False
    """Whether it has no characters of its own, but those of the next: a space, or some bytes of one."""


def _surfaces(tokens: Sequence[str], tokenizer: Tokenizer) -> list[_Surface]:
    decoder = tokenizer.backend_tokenizer.decoder
    if type(decoder).__name__ == "ByteLevel":
        return _surfaces_of_bytes(tokens, tokenizer)
    is_sentencepiece = any(token.startswith("▁") for token in tokens)
    surfaces = []
    for token in tokens:
        # SentencePiece marks the beginning of a word, WordPiece its continuation.
        begins = token.startswith("▁") if is_sentencepiece else not token.startswith("##")
        text = token.removeprefix("##").replace("▁", "").removesuffix("</w>")
        is_unknown = token == tokenizer.unk_token
        surfaces.append(_Surface(None if is_unknown else text, begins or is_unknown, not text))
    return surfaces


def _surfaces_of_bytes(tokens: Sequence[str], tokenizer: Tokenizer) -> list[_Surface]:
    decoder: Any = tokenizer.backend_tokenizer.decoder
    surfaces: list[_Surface] = []
    bytes_before: list[str] = []
    for token in tokens:
        text = decoder.decode([*bytes_before, token])
        # Bytes that are not yet a character are decoded together with the next token.
        is_part = text.endswith(_PART_OF_A_CHARACTER) and len(bytes_before) < _MOST_BYTES
        begins = token.startswith("Ġ")
        surfaces.append(_Surface("" if is_part else text.strip(), begins, is_part or not text.strip()))
        bytes_before = [*bytes_before, token] if is_part else []
    return surfaces


def _join_tokens(surfaces: Sequence[_Surface]) -> list[tuple[str, list[int]]]:
    """Put tokens together where the next begins no word."""
    words: list[tuple[str, list[int]]] = []
    for number, surface in enumerate(surfaces):
        text = _PART_OF_A_CHARACTER if surface.text is None else surface.text
        if words and not surface.begins:
            before, members = words[-1]
            words[-1] = (before + text, [*members, number])
        else:
            words.append((text, [number]))
    return words


class _Source:
    """The words of a row, and its letters without case, accents and spaces."""

    def __init__(self, values: Iterable[Any]) -> None:
        self.words = [word for value in values for word in _words_of(value)]
        found = [(letter, number) for number, word in enumerate(self.words) for letter in _letters(word)]
        self.letters = "".join(letter for letter, _ in found)
        self.owners = [number for _, number in found]
        self.done = 0

    def find(self, surfaces: Sequence[_Surface]) -> list[tuple[str, list[int]]] | None:
        """Find the words that tokens stand for, with the numbers of their tokens; None where they are not in a row."""
        parts = [None if surface.text is None else _letters(surface.text) for surface in surfaces]
        pattern = "".join("(.+?)" if part is None else f"({re.escape(part)})" for part in parts)
        # what is unknown at the end would else be a single letter
        expression = re.compile(pattern + ("$" if parts and parts[-1] is None else ""))
        # texts mostly come in the order of the columns; a choice repeats its context
        match = expression.search(self.letters, self.done) or expression.search(self.letters)
        if match is None or match.start() == match.end():
            return None
        self.done = match.end()
        spans = [match.span(number + 1) for number in range(len(parts))]
        owners = [self.owners[start] if start < end else None for start, end in spans]
        words: list[tuple[str, list[int]]] = []
        last = None
        for number, surface in enumerate(surfaces):
            after = next((owner for owner in owners[number:] if owner is not None), last)
            owner = after if surface.joins_next or last is None else last if owners[number] is None else owners[number]
            if owner != last or not words:
                words.append((self.words[owner or 0], []))
            words[-1][1].append(number)
            last = owner
        return words


def _words_of(value: object) -> Iterator[str]:
    """Yield the words of a column: of a text, of each text in a list, or a list of words as it is."""
    if isinstance(value, str):
        yield from (value[start:end] for start, end in split_text(value))
    elif isinstance(value, (list, tuple)):
        for item in value:
            if isinstance(item, str):
                yield from _words_of(item) if re.search(r"\s", item) else [item]


def _letters(text: str) -> str:
    """Return what of a text is left by every normalizer: no case, no accents, nothing invisible.

    >>> _letters("É a-ß")
    'ea-ss'
    """
    wide = unicodedata.normalize("NFKD", text).casefold()
    return "".join(char for char in wide if unicodedata.category(char)[0] not in "MCZ" and not char.isspace())

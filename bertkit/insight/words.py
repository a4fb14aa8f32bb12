"""The words of an input, put together from its tokens, so that values of tokens can be summed per word."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bertkit.tokens.features import Tokenizer, special_ids

_PART_OF_A_CHARACTER = "\ufffd"
_MAX_BYTES = 3  # bytes of a character before its last byte


@dataclass(frozen=True)
class Word:
    """A word of an input, as the model reads it."""

    text: str
    segment: int
    """Index of its text among those between special tokens."""
    positions: tuple[tuple[int, int], ...]
    """Its tokens: index of the feature's text, and position in it."""


def find_words(texts: Sequence[Sequence[int]], tokenizer: Tokenizer) -> list[Word]:
    """Return the words of a feature's texts, each a list of token ids."""
    special, join = special_ids(tokenizer), _join_subwords
    if type(tokenizer.backend_tokenizer.decoder).__name__ == "ByteLevel":
        join = _join_bytes
    words, segment = [], 0
    for number, ids in enumerate(texts):
        for is_special, group in itertools.groupby(enumerate(ids), lambda pair: int(pair[1]) in special):
            if is_special:
                continue
            run = [position for position, _ in group]
            tokens = tokenizer.convert_ids_to_tokens([int(ids[position]) for position in run])
            for text, members in join(tokens, tokenizer):
                words.append(Word(text, segment, tuple((number, run[member]) for member in members)))
            segment += 1
    return words


def _join_subwords(tokens: Sequence[str], tokenizer: Tokenizer) -> list[tuple[str, list[int]]]:
    """Return words with the positions of their tokens, for WordPiece and SentencePiece."""
    is_sentencepiece = any(token.startswith("▁") for token in tokens)
    words: list[tuple[str, list[int]]] = []
    for number, token in enumerate(tokens):
        # SentencePiece marks the beginning of a word, WordPiece its continuation.
        begins = token.startswith("▁") if is_sentencepiece else not token.startswith("##")
        text = token.removeprefix("##").replace("▁", "").removesuffix("</w>")
        _add_token(words, text, number, begins=begins or token == tokenizer.unk_token)
    return words


def _join_bytes(tokens: Sequence[str], tokenizer: Tokenizer) -> list[tuple[str, list[int]]]:
    """Return words with the positions of their tokens, for tokens of bytes."""
    decoder: Any = tokenizer.backend_tokenizer.decoder
    words: list[tuple[str, list[int]]] = []
    bytes_before: list[str] = []
    for number, token in enumerate(tokens):
        text = decoder.decode([*bytes_before, token])
        # Bytes that are not yet a character are decoded together with the next token.
        is_part = text.endswith(_PART_OF_A_CHARACTER) and len(bytes_before) < _MAX_BYTES
        _add_token(words, "" if is_part else text.strip(), number, begins=token.startswith("Ġ"))
        bytes_before = [*bytes_before, token] if is_part else []
    return words


def _add_token(words: list[tuple[str, list[int]]], text: str, number: int, *, begins: bool) -> None:
    if begins or not words:
        words.append((text, [number]))
    else:
        before, members = words[-1]
        words[-1] = (before + text, [*members, number])

"""The words of an input, put together from its tokens, so that values of tokens can be summed per word."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bertkit.tokens.features import Tokenizer, special_ids


@dataclass(frozen=True)
class Word:
    """A word of an input, as the model reads it."""

    text: str
    segment: int
    """Index of its text among the texts between special tokens."""
    positions: tuple[tuple[int, int], ...]
    """Its tokens: index of the feature's text, and position in it."""


def find_words(texts: Sequence[Sequence[int]], tokenizer: Tokenizer) -> list[Word]:
    """Return the words of a feature's texts, each a list of token ids."""
    special, words, segment = special_ids(tokenizer), [], 0
    for index, ids in enumerate(texts):
        for is_special, run in itertools.groupby(enumerate(map(int, ids)), lambda place: place[1] in special):
            if is_special:
                continue
            for members in _split_words(list(run), tokenizer):
                # Decode a word as a whole: a character can be several tokens of bytes.
                text = "".join(tokenizer.decode([token for _, token in members]).split())
                words.append(Word(text, segment, tuple((index, position) for position, _ in members)))
            segment += 1
    return words


def _split_words(run: Sequence[tuple[int, int]], tokenizer: Tokenizer) -> Iterator[list[tuple[int, int]]]:
    """Split tokens, given as position and id, into words."""
    tokens = tokenizer.convert_ids_to_tokens([token for _, token in run])
    is_bytes = type(tokenizer.backend_tokenizer.decoder).__name__ == "ByteLevel"
    # Byte-level BPE and SentencePiece mark the beginning of a word, WordPiece its continuation.
    mark = "Ġ" if is_bytes else "▁"
    has_marks = is_bytes or any(token.startswith(mark) for token in tokens)
    word: list[tuple[int, int]] = []
    for place, token in zip(run, tokens, strict=True):
        begins = token.startswith(mark) if has_marks else not token.startswith("##")
        if word and (begins or (token == tokenizer.unk_token and not is_bytes)):
            yield word
            word = []
        word.append(place)
    yield word

"""The words of an input, put together from its tokens, so that values of tokens can be summed per word."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
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
    is_bytes = type(tokenizer.backend_tokenizer.decoder).__name__ == "ByteLevel"
    for index, ids in enumerate(texts):
        # Special tokens separate texts, so each run of other tokens is one text.
        for is_special, run in itertools.groupby(enumerate(map(int, ids)), lambda place: place[1] in special):
            if is_special:
                continue
            places = list(run)
            tokens = tokenizer.convert_ids_to_tokens([token_id for _, token_id in places])
            for start, end in itertools.pairwise(_find_bounds(tokens, tokenizer.unk_token, is_bytes=is_bytes)):
                # A character can be several tokens of bytes, so these are decoded together.
                word_ids = [token_id for _, token_id in places[start:end]]
                text = tokenizer.decode(word_ids) if is_bytes else "".join(map(_strip_marks, tokens[start:end]))
                positions = tuple((index, position) for position, _ in places[start:end])
                words.append(Word("".join(text.split()), segment, positions))
            segment += 1
    return words


def _find_bounds(tokens: Sequence[str], unknown: str | None, *, is_bytes: bool) -> list[int]:
    """Return the index of the first token of each word, and the number of tokens."""
    # Byte-level BPE and SentencePiece mark the beginning of a word, WordPiece its continuation.
    mark = "Ġ" if is_bytes else "▁"
    if is_bytes or any(token.startswith(mark) for token in tokens):
        begins = [token.startswith(mark) for token in tokens]
    else:
        begins = [not token.startswith("##") for token in tokens]
    # WordPiece replaces a complete word by [UNK], so an unknown token is a separate word.
    is_unknown = [token == unknown and not is_bytes for token in tokens]
    return [0, *(index for index in range(1, len(tokens)) if begins[index] or is_unknown[index]), len(tokens)]


def _strip_marks(token: str) -> str:
    return token.removeprefix("##").replace("▁", "").removesuffix("</w>")

"""The rows over which heads are measured: token ids, which of them are special, and words with their relations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bertkit.data.text import Record
from bertkit.errors import located
from bertkit.insight.syntax import read_column, read_heads
from bertkit.tokens.features import Feature, Tokenizer, find_template, tokenize_texts
from bertkit.tokens.words import tokenize_words
from bertkit.vectors.text_files import text_of

WORDS, HEADS, RELATIONS = "tokens", "head", "deprel"
"""Columns of Universal Dependencies, as the hub has them and as CoNLL-U is read."""


@dataclass(frozen=True)
class TextOrWords:
    """A row of a file: a text, or words and perhaps what they depend on."""

    text: str | None
    words: list[str] | None
    heads: list[int] | None = None
    """The position of the word that each word depends on, from 1; 0 for the root and for words without a head."""
    relations: list[str] | None = None


@dataclass(frozen=True)
class HeadRow:
    """A row as the model reads it."""

    feature: Feature
    is_special: list[bool]
    separators: list[bool]
    """Special tokens that are not the first."""
    spans: list[tuple[int, int]]
    """First token and last + 1 of each word, in the input; none where the row is a text."""
    heads: list[int]
    relations: list[str]


def parse_row(record: Record, column: str, file: str) -> TextOrWords:
    """Read what heads are measured on from a row: words where it has them, else a text.

    Raises:
        DataError: it has neither, or the heads and relations of its words do not fit.
    """
    line, values = record
    words = values.get(WORDS) if column == "text" else values.get(column)
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return TextOrWords(text_of(record, column, file), None)
    if not isinstance(values.get(HEADS), list) or not isinstance(values.get(RELATIONS), list):
        return TextOrWords(None, words)
    with located(file=file, row=line):
        heads = read_heads(values[HEADS], len(words))
        relations = read_column(values[RELATIONS], len(words), RELATIONS)
    return TextOrWords(None, words, heads, list(map(str, relations)))


def encode_rows(rows: Iterable[TextOrWords], tokenizer: Tokenizer, max_tokens: int) -> list[HeadRow]:
    """Tokenize rows; those that are empty or longer than `max_tokens`, with special tokens, are left out."""
    template = find_template(tokenizer, pair=False)
    listed = list(rows)
    of_words = [row for row in listed if row.words]
    of_texts = [row for row in listed if row.text]
    split = iter(tokenize_words(tokenizer, [row.words or [] for row in of_words], max_tokens))
    encoded = iter(tokenize_texts(tokenizer, [row.text or "" for row in of_texts]) if of_texts else [])
    encoded_rows = []
    for row in listed:
        if row.words:
            words = next(split)
        elif row.text:
            words = [next(encoded).ids]
        else:
            continue
        ids = [token for word in words for token in word]
        if not ids or len(ids) + template.size > max_tokens:
            continue
        before, after = len(template.before), len(template.after)
        encoded_rows.append(
            HeadRow(
                feature=template.fill(ids),
                is_special=[True] * before + [False] * len(ids) + [True] * after,
                separators=[False] * (before + len(ids)) + [True] * after,
                spans=_spans(words, before) if row.words else [],
                heads=row.heads or [],
                relations=row.relations or [],
            )
        )
    return encoded_rows


def _spans(words: Sequence[Sequence[int]], first: int) -> list[tuple[int, int]]:
    spans = []
    for word in words:
        spans.append((first, first + len(word)))
        first += len(word)
    return spans

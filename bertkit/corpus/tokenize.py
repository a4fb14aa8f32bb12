"""Documents cut into tokens: sentences first, then tokens, as arrays."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from bertkit.corpus.sentences import split_sentences

Numbers = np.ndarray[Any, Any]

_CHARS = 1 << 20  # that are cut at once: what the tokenizer gives takes a hundred times the room of the tokens


class TokenizedDocuments(NamedTuple):
    """The tokens of some documents, without sentences and documents that have none."""

    tokens: Numbers
    word_starts: Numbers
    """(tokens,) whether a token begins a word."""
    sentences: Numbers
    """(sentences,) tokens of each."""
    documents: Numbers
    """(documents,) sentences of each."""
    bytes: int
    """UTF-8 bytes of the documents."""


class DocumentTokenizer:
    """Cuts documents into tokens with the tokenizer's own threads: nothing is cut off, and nothing special is added."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = copy.deepcopy(tokenizer.backend_tokenizer)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True  # text that spells [SEP] is text
        self._blank = " " if self._needs_blank() else ""

    def cut(self, documents: Sequence[str]) -> TokenizedDocuments:
        """Split documents into sentences and these into tokens."""
        split = [split_sentences(document) for document in documents]
        texts = [self._blank * (place > 0) + text for sentences in split for place, text in enumerate(sentences)]
        parts = [self._encode(batch) for batch in _batches(texts)] or [(np.zeros(0, np.int64),) * 3]
        tokens, starts, lengths = (np.concatenate(column) for column in zip(*parts, strict=True))
        owners = np.repeat(np.arange(len(split)), [len(sentences) for sentences in split])
        counts = np.bincount(owners[lengths > 0], minlength=len(split))
        size = sum(len(document.encode()) for document, count in zip(documents, counts, strict=True) if count)
        return TokenizedDocuments(tokens, starts, lengths[lengths > 0], counts[counts > 0], size)

    def _encode(self, texts: list[str]) -> tuple[Numbers, Numbers, Numbers]:
        """Give the tokens of texts, whether each begins a word, and how many each text has."""
        encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        lengths = np.array([len(encoding) for encoding in encodings], dtype=np.int64)
        total = int(lengths.sum())
        tokens = np.fromiter(chain.from_iterable(encoding.ids for encoding in encodings), np.int64, total)
        words = list(chain.from_iterable(encoding.word_ids for encoding in encodings))
        numbers = np.array(words, dtype=np.float64)  # a token of no word is not a number, so unlike the one before
        starts = np.ones(total, dtype=bool)
        starts[1:] = numbers[1:] != numbers[:-1]
        starts[(np.cumsum(lengths) - lengths)[lengths > 0]] = True
        return tokens, starts, lengths

    def _needs_blank(self) -> bool:
        """Tell whether words have other tokens at a text's start than behind a blank (byte-level vocabularies).

        A sentence inside a document is then cut as it stands there: behind a blank.
        """
        whole, alone, behind = (self._ids(text) for text in ("the old man", "man", " man"))
        return behind != alone and whole[-len(behind) :] == behind

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)


def _batches(texts: list[str]) -> Iterator[list[str]]:
    """Give texts in batches of so many characters, each at least one text."""
    batch, size = list[str](), 0
    for text in texts:
        if batch and size + len(text) > _CHARS:
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += len(text)
    if batch:
        yield batch

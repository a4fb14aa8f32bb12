"""Documents split into sentences and these into tokens, as arrays."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from bertkit.storage.columns import Numbers
from bertkit.tokens.features import Tokenizer, split_by_size
from bertkit.tokens.light import plain
from bertkit.tokens.sentences import split_sentences

# characters tokenized at once: encodings take a hundred times the memory of token ids
_BATCH_CHARS = 1 << 20


class TokenizedDocuments(NamedTuple):
    """The tokens of some documents; sentences and documents without tokens are left out."""

    tokens: Numbers
    """(tokens,) ids."""
    word_starts: Numbers
    """(tokens,) whether a token begins a word."""
    sentences: Numbers
    """(sentences,) the number of tokens of each."""
    documents: Numbers
    """(documents,) the number of sentences of each."""
    bytes: int
    """The size of the documents in UTF-8."""


class DocumentTokenizer:
    """Tokenizes documents with the tokenizer's own threads, without truncation and special tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = plain(copy.deepcopy(tokenizer.backend_tokenizer))
        self._space = " " if self._needs_space() else ""

    def tokenize(self, documents: Sequence[str]) -> TokenizedDocuments:
        """Split documents into sentences and these into tokens."""
        split = [split_sentences(document) for document in documents]
        texts = [self._space * (number > 0) + text for sentences in split for number, text in enumerate(sentences)]
        batches = [self._encode_texts(batch) for batch in split_by_size(texts, _BATCH_CHARS, len)] or [
            (np.zeros(0, np.int64),) * 3
        ]
        tokens, starts, lengths = (np.concatenate(column) for column in zip(*batches, strict=True))
        # (sentences,) the document of each, from which the sentences with tokens are counted per document
        owners = np.repeat(np.arange(len(split)), [len(sentences) for sentences in split])
        counts = np.bincount(owners[lengths > 0], minlength=len(split))
        size = sum(len(document.encode()) for document, count in zip(documents, counts, strict=True) if count)
        return TokenizedDocuments(tokens, starts, lengths[lengths > 0], counts[counts > 0], size)

    def _encode_texts(self, texts: list[str]) -> tuple[Numbers, Numbers, Numbers]:
        """Encode texts: (tokens,) ids and whether each begins a word, and (texts,) the number of tokens."""
        encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        lengths = np.array([len(encoding) for encoding in encodings], dtype=np.int64)
        total = int(lengths.sum())
        tokens = np.fromiter(chain.from_iterable(encoding.ids for encoding in encodings), np.int64, total)
        words = list(chain.from_iterable(encoding.word_ids for encoding in encodings))
        # A word begins where the word's number changes, found in one comparison instead of a loop over tokens. As a
        # float, the None of a token without a word is NaN, which differs from every number and from itself.
        numbers = np.array(words, dtype=np.float64)
        starts = np.ones(total, dtype=bool)
        starts[1:] = numbers[1:] != numbers[:-1]
        starts[(np.cumsum(lengths) - lengths)[lengths > 0]] = True
        return tokens, starts, lengths

    def _needs_space(self) -> bool:
        """Tell whether a word has other tokens after a space than at the start of a text (byte-level vocabularies).

        Then a space is put before each sentence that is not the first one, so that it is tokenized as in its document.
        """
        probes = self._tokenizer.encode_batch(["the old man", "man", " man"], add_special_tokens=False)
        text, alone, spaced = (list(probe.ids) for probe in probes)
        return spaced != alone and text[-len(spaced) :] == spaced

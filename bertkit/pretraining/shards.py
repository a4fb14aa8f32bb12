"""Tokens of each file of a corpus, stored in the cache, so that another corpus with the same file can use them.

A shard is a folder with one array file per chunk of text. Its manifest is written last, and marks it as complete.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertkit.errors import ResourceError
from bertkit.pretraining.deduplicate import digest_texts
from bertkit.pretraining.documents import Text, encode_text
from bertkit.storage.cache import lock_folder, touch
from bertkit.storage.disk import load_arrays, save_arrays
from bertkit.storage.fingerprints import read_with_checksum, write_with_checksum
from bertkit.storage.outputs import delete_leftover_files
from bertkit.tokens.fast_tokenizer import configure_for_plain_text
from bertkit.tokens.features import Tokenizer, special_ids, split_by_size
from bertkit.tokens.sentences import split_sentences

CHUNK = 1 << 22
"""Bytes of text per array file; a preparation that was killed resumes after the last file."""
# Texts are tokenized in batches, because encodings need a hundred times the memory of token ids.
_BATCH_CHARS = 1 << 18


class TokenizedDocuments(NamedTuple):
    """Tokens of some documents, without sentences that have no tokens, but with documents that have no sentences."""

    tokens: np.ndarray
    """(tokens,) ids, uint16 or uint32."""
    word_starts: np.ndarray
    """(tokens,) bool: whether a token begins a word."""
    sentences: np.ndarray
    """(sentences,) number of tokens per sentence."""
    documents: np.ndarray
    """(documents,) number of sentences per document."""
    bytes: np.ndarray
    """(documents,) size of each document in UTF-8, or of its ids."""
    digests: np.ndarray
    """(documents,) digest of each document."""

    def select(self, is_selected: np.ndarray) -> TokenizedDocuments:
        """Return the documents with a True in `is_selected`, (documents,)."""
        # Repeat the flag of each document for its sentences, then the flag of each sentence for its tokens.
        sentences = np.repeat(is_selected, self.documents)
        tokens = np.repeat(sentences, self.sentences)
        return TokenizedDocuments(
            self.tokens[tokens],
            self.word_starts[tokens],
            self.sentences[sentences],
            *(column[is_selected] for column in (self.documents, self.bytes, self.digests)),
        )


class TokenShard:
    """Folder in the cache with the tokens of a file."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._manifest = folder, folder / "manifest.json"

    def lock(self, *, wait: bool) -> AbstractContextManager[None]:
        """Hold the lock of the shard; if another process holds it, wait or raise a ResourceError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        error = ResourceError("another process tokenizes the file", file=self.folder)
        return lock_folder(self.folder, make_error=None if wait else lambda _: error)

    def is_complete(self) -> bool:
        """Return whether all chunks exist and are not damaged."""
        with suppress(ResourceError):
            return all(True for _ in self.read())
        return False

    def has_documents(self, index: int, documents: Sequence[Text]) -> bool:
        """Return whether a chunk exists with these documents; a dataset of the Hub can have changed."""
        arrays = load_arrays(self._file(index))
        digests = digest_texts(map(encode_text, documents))
        return arrays is not None and np.array_equal(arrays["digests"], digests)

    def save(self, index: int, tokens: TokenizedDocuments) -> None:
        """Write a chunk, and delete temporary files that a killed process left; the caller holds the lock."""
        delete_leftover_files(self._file(index))
        save_arrays(self._file(index), tokens._asdict())

    def finish(self, chunks: int) -> None:
        """Write the manifest, which makes the shard complete."""
        write_with_checksum(self._manifest, {"chunks": chunks})

    def read(self) -> Iterator[TokenizedDocuments]:
        """Read the tokens chunk by chunk.

        Raises:
            ResourceError: If tokens are missing or damaged.
        """
        error = ResourceError("cached tokens are missing or damaged", "check the disk", file=self.folder)
        manifest = read_with_checksum(self._manifest, error)
        if manifest is None:
            raise error
        # The cache deletes shards whose manifest has an old modification time.
        touch(self._manifest)
        for index in range(manifest["chunks"]):
            arrays = load_arrays(self._file(index))
            if arrays is None:
                raise error
            yield TokenizedDocuments(**arrays)

    def _file(self, index: int) -> Path:
        return self.folder / f"{index:06}.arrays"


def split_into_chunks(documents: Iterable[Text]) -> Iterator[list[Text]]:
    """Split documents into chunks for array files; 100 extra bytes per document limit their number per chunk."""
    return split_by_size(documents, CHUNK, lambda document: len(encode_text(document)) + 100)


def _measure_documents(documents: Sequence[Text]) -> tuple[np.ndarray, np.ndarray]:
    """Return the sizes and the digests of documents. Shape of both: (documents,)."""
    encoded = list(map(encode_text, documents))
    return np.array(list(map(len, encoded)), dtype=np.int64), digest_texts(encoded)


class DocumentTokenizer:
    """Tokenizer of documents, without truncation and special tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = configure_for_plain_text(copy.deepcopy(tokenizer.backend_tokenizer))
        self._space = " " if self._needs_space() else ""
        self.dtype = "<u2" if max(tokenizer.get_vocab().values()) < 2**16 else "<u4"
        """Dtype of token ids: two bytes if all fit."""
        self._special = list(special_ids(tokenizer))

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Read special tokens as text again, because pickling loses this setting."""
        self.__dict__.update(state)
        configure_for_plain_text(self._tokenizer)

    @cached_property
    def _begins_word(self) -> np.ndarray:
        """Whether each token of the vocabulary begins a word; used for token ids. Shape: (vocabulary,)."""
        # WordPiece marks tokens that continue a word; byte-level BPE and SentencePiece mark tokens that begin a word.
        names = [self._tokenizer.id_to_token(token_id) or "" for token_id in range(self._tokenizer.get_vocab_size())]
        continues, begins = ([name.startswith(prefix) for name in names] for prefix in ("##", ("Ġ", "▁")))
        return np.array(begins) if sum(begins) > sum(continues) else ~np.array(continues)

    def tokenize(self, documents: Sequence[Text]) -> TokenizedDocuments:
        """Split documents into sentences, and sentences into tokens; a document of token ids is one sentence."""
        if any(isinstance(document, bytes) for document in documents):
            return self._read_token_ids(documents)
        sentences = [split_sentences(str(document)) for document in documents]
        texts = [self._space * (index > 0) + text for part in sentences for index, text in enumerate(part)]
        batches = [self._encode_texts(batch) for batch in split_by_size(texts, _BATCH_CHARS, len)] or [
            (np.zeros(0, self.dtype), np.zeros(0, bool), np.zeros(0, np.int64))
        ]
        tokens, starts, lengths = (np.concatenate(column) for column in zip(*batches, strict=True))
        # `document_ids`, of shape (sentences,), has the document of each sentence.
        document_ids = np.repeat(np.arange(len(documents)), list(map(len, sentences)))
        counts = np.bincount(document_ids[lengths > 0], minlength=len(documents))
        return TokenizedDocuments(tokens, starts, lengths[lengths > 0], counts, *_measure_documents(documents))

    def _read_token_ids(self, documents: Sequence[Text]) -> TokenizedDocuments:
        """Read documents that are token ids, without their special tokens."""
        ids = [np.frombuffer(encode_text(document), "<u4") for document in documents]
        ids = [row[~np.isin(row, self._special)] for row in ids]
        tokens, lengths = np.concatenate(ids), np.array(list(map(len, ids)), dtype=np.int64)
        starts = self._begins_word[tokens]
        # The first token of a document begins a word, even without a mark.
        starts[(np.cumsum(lengths) - lengths)[lengths > 0]] = True
        counts = (lengths > 0).astype(np.int64)
        return TokenizedDocuments(
            tokens.astype(self.dtype), starts, lengths[lengths > 0], counts, *_measure_documents(documents)
        )

    def _encode_texts(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return token ids, whether each token begins a word, and the number of tokens per text."""
        encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        lengths = np.array([len(encoding) for encoding in encodings], dtype=np.int64)
        total = int(lengths.sum())
        tokens = np.fromiter(chain.from_iterable(encoding.ids for encoding in encodings), self.dtype, total)
        words = list(chain.from_iterable(encoding.word_ids for encoding in encodings))
        # A word begins where the word id changes. Tokens without a word have the id None, which becomes NaN, and NaN
        # differs from every number, also from NaN.
        word_ids = np.array(words, dtype=np.float64)
        starts = np.ones(total, dtype=bool)
        starts[1:] = word_ids[1:] != word_ids[:-1]
        # Word ids restart in each text, so the last word of a text and the first of the next can have the same id.
        starts[(np.cumsum(lengths) - lengths)[lengths > 0]] = True
        return tokens, starts, lengths

    def _needs_space(self) -> bool:
        """Return whether a word has other tokens after a space than at the start of a text, as in byte-level BPE.

        If so, a space before each sentence except the first gives the sentence the same tokens as in its document.
        """
        probes = self._tokenizer.encode_batch(["the old man", "man", " man"], add_special_tokens=False)
        text, unspaced, spaced = (list(probe.ids) for probe in probes)
        return spaced != unspaced and text[-len(spaced) :] == spaced

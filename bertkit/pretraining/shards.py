"""The tokens of every file of a corpus, kept in the cache, so that a second corpus with the file need not compute them.

A shard is a folder with a file of arrays per chunk of text. It counts once its manifest is written, which comes last.
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
from bertkit.metrics import Numbers
from bertkit.pretraining.deduplicate import digest_texts
from bertkit.pretraining.documents import Text, encode_text
from bertkit.storage.cache import lock_folder, touch
from bertkit.storage.disk import load_arrays, save_arrays
from bertkit.storage.fingerprints import read_signed, write_signed
from bertkit.storage.outputs import sweep_temporaries
from bertkit.tokens.features import Tokenizer, special_ids, split_by_size
from bertkit.tokens.light import plain
from bertkit.tokens.sentences import split_sentences

CHUNK = 1 << 22
"""Bytes of text in a file of arrays, from which a killed preparation continues."""
# characters tokenized at once: encodings take a hundred times the memory of token ids
_BATCH_CHARS = 1 << 18


class TokenizedDocuments(NamedTuple):
    """The tokens of some documents; sentences without tokens are left out, documents without sentences are not."""

    tokens: Numbers
    """(tokens,) ids, uint16 or uint32."""
    word_starts: Numbers
    """(tokens,) whether a token begins a word."""
    sentences: Numbers
    """(sentences,) the number of tokens of each."""
    documents: Numbers
    """(documents,) the number of sentences of each."""
    bytes: Numbers
    """(documents,) the size of each in UTF-8, or of its ids."""
    digests: Numbers
    """(documents,) what stands for the text of each."""

    def select(self, chosen: Numbers) -> TokenizedDocuments:
        """Return the documents that are chosen, (documents,) booleans."""
        sentences = np.repeat(chosen, self.documents)
        tokens = np.repeat(sentences, self.sentences)
        return TokenizedDocuments(
            self.tokens[tokens],
            self.word_starts[tokens],
            self.sentences[sentences],
            *(column[chosen] for column in (self.documents, self.bytes, self.digests)),
        )


class TokenShard:
    """The tokens of the documents of a file, in the cache."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._manifest = folder, folder / "manifest.json"

    def locked(self, *, wait: bool) -> AbstractContextManager[None]:
        """Hold its lock; while another process holds it, wait, or raise a ResourceError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        busy = ResourceError("another process tokenizes the file", file=self.folder)
        return lock_folder(self.folder, refuse=None if wait else lambda _: busy)

    def is_whole(self) -> bool:
        """Tell whether all of it is there, undamaged."""
        with suppress(ResourceError):
            return all(True for _ in self.read())
        return False

    def has(self, number: int, documents: Sequence[Text]) -> bool:
        """Tell whether a chunk is there and of these documents: a data set of the hub may have changed."""
        arrays = load_arrays(self._file(number))
        digests = digest_texts(map(encode_text, documents))
        return arrays is not None and np.array_equal(arrays["digests"], digests)

    def save(self, number: int, tokens: TokenizedDocuments) -> None:
        """Write a chunk, and delete what a killed process left of it; this process holds the lock."""
        sweep_temporaries(self._file(number))
        save_arrays(self._file(number), tokens._asdict())

    def finish(self, chunks: int) -> None:
        """Write the manifest: now so many chunks count."""
        write_signed(self._manifest, {"chunks": chunks})

    def read(self) -> Iterator[TokenizedDocuments]:
        """Read the tokens chunk by chunk.

        Raises:
            ResourceError: they are not there, or damaged.
        """
        damaged = ResourceError("tokens are not as they were written", "check the disk", file=self.folder)
        manifest = read_signed(self._manifest, damaged)
        if manifest is None:
            raise damaged
        touch(self._manifest)
        for number in range(manifest["chunks"]):
            arrays = load_arrays(self._file(number))
            if arrays is None:
                raise damaged
            yield TokenizedDocuments(**arrays)

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:06}.arrays"


def split_into_chunks(documents: Iterable[Text]) -> Iterator[list[Text]]:
    """Split documents into what a file of arrays holds; 100 bytes more for each limit the number of short ones."""
    return split_by_size(documents, CHUNK, lambda document: len(encode_text(document)) + 100)


def _identify(documents: Sequence[Text]) -> tuple[Numbers, Numbers]:
    """Return the sizes and the digests of documents, (documents,) each."""
    encoded = list(map(encode_text, documents))
    return np.array(list(map(len, encoded)), dtype=np.int64), digest_texts(encoded)


class DocumentTokenizer:
    """Tokenizes documents without truncation and special tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = plain(copy.deepcopy(tokenizer.backend_tokenizer))
        self._space = " " if self._needs_space() else ""
        self.dtype = "<u2" if max(tokenizer.get_vocab().values()) < 2**16 else "<u4"
        """The dtype of token ids: two bytes if all fit."""
        self._special = list(special_ids(tokenizer))

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Read special tokens as text in another process too: tokenizers do not pickle that."""
        self.__dict__.update(state)
        plain(self._tokenizer)

    @cached_property
    def _begins_word(self) -> Numbers:
        """Tell which tokens of the vocabulary begin a word, by the marks that it has, for documents of tokens alone."""
        names = [self._tokenizer.id_to_token(number) or "" for number in range(self._tokenizer.get_vocab_size())]
        continues, begins = ([name.startswith(mark) for name in names] for mark in ("##", ("Ġ", "▁")))
        return np.array(begins) if sum(begins) > sum(continues) else ~np.array(continues)

    def tokenize(self, documents: Sequence[Text]) -> TokenizedDocuments:
        """Split documents into sentences and these into tokens; one that is tokens already is one sentence."""
        if any(isinstance(document, bytes) for document in documents):
            return self._take_tokens(documents)
        split = [split_sentences(str(document)) for document in documents]
        texts = [self._space * (number > 0) + text for sentences in split for number, text in enumerate(sentences)]
        batches = [self._encode_texts(batch) for batch in split_by_size(texts, _BATCH_CHARS, len)] or [
            (np.zeros(0, self.dtype), np.zeros(0, bool), np.zeros(0, np.int64))
        ]
        tokens, starts, lengths = (np.concatenate(column) for column in zip(*batches, strict=True))
        # (sentences,) the document of each, from which the sentences with tokens are counted per document
        owners = np.repeat(np.arange(len(split)), [len(sentences) for sentences in split])
        counts = np.bincount(owners[lengths > 0], minlength=len(split))
        return TokenizedDocuments(tokens, starts, lengths[lengths > 0], counts, *_identify(documents))

    def _take_tokens(self, documents: Sequence[Text]) -> TokenizedDocuments:
        """Take documents that are ids of tokens as they are, without special tokens."""
        ids = [np.frombuffer(encode_text(document), "<u4") for document in documents]
        ids = [row[~np.isin(row, self._special)] for row in ids]
        tokens, lengths = np.concatenate(ids), np.array(list(map(len, ids)), dtype=np.int64)
        starts = self._begins_word[tokens]
        starts[(np.cumsum(lengths) - lengths)[lengths > 0]] = True
        counts = (lengths > 0).astype(np.int64)
        return TokenizedDocuments(
            tokens.astype(self.dtype), starts, lengths[lengths > 0], counts, *_identify(documents)
        )

    def _encode_texts(self, texts: list[str]) -> tuple[Numbers, Numbers, Numbers]:
        """Encode texts: (tokens,) ids and whether each begins a word, and (texts,) the number of tokens."""
        encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        lengths = np.array([len(encoding) for encoding in encodings], dtype=np.int64)
        total = int(lengths.sum())
        tokens = np.fromiter(chain.from_iterable(encoding.ids for encoding in encodings), self.dtype, total)
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

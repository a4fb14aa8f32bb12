"""Held-out and duplicate documents, found in two passes over a corpus.

The first pass keeps a digest of 8 bytes per document in memory: 10 GB of text in documents of 1 kB take 80 MB. Among
ten million documents, two different ones share a digest with a probability of 1 in 400,000.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bertkit.errors import DataError
from bertkit.pretraining.documents import CorpusSource, Document, has_validation, plain_text, read_documents
from bertkit.progress import get_progress, stage
from bertkit.recipe.records import CorpusConfig
from bertkit.tokens.features import split_by_size

_BYTES = 8
_NUM_DIGESTS = 1 << 8 * _BYTES
_BLOCK_CHARS = 1 << 22


class SplitDocument(NamedTuple):
    """A document, its split, and whether the same text occurred before."""

    text: str
    split: str
    is_duplicate: bool


@dataclass(frozen=True)
class DeduplicationPass:
    """Result of the first pass over a corpus, which the second pass needs."""

    documents: Mapping[str, int]
    """Split of the source -> number of documents; validation before train, as they are read."""
    repeated_digests: np.ndarray
    """Sorted digests of documents that occur more than once."""
    held_out: int
    """Bound of the digests below which documents are held out; 0 if the source has a validation split."""


class DuplicateFilter:
    """Filter of the second pass, which finds documents that occurred before; it reads blocks of documents in order."""

    def __init__(self, first_pass: DeduplicationPass) -> None:
        # `seen` has a flag per repeated digest. A document that occurs once needs no memory in this pass.
        self.repeated_digests = first_pass.repeated_digests
        self.seen = np.zeros(len(self.repeated_digests), dtype=bool)

    def find_duplicates(self, digests: np.ndarray) -> np.ndarray:
        """Return whether each document occurred before, in this block or an earlier one. Shape: (documents,).

        >>> seven_repeats = DeduplicationPass({}, np.array([7], np.uint64), 0)
        >>> DuplicateFilter(seven_repeats).find_duplicates(np.array([5, 7, 9, 7], np.uint64)).tolist()
        [False, False, False, True]
        """
        # The index below needs at least one repeated digest.
        if not len(self.repeated_digests):
            return np.zeros(len(digests), dtype=bool)
        index = np.minimum(np.searchsorted(self.repeated_digests, digests), len(self.repeated_digests) - 1)
        is_duplicate: np.ndarray = self.repeated_digests[index] == digests
        # The first occurrence in this block is a duplicate only if an earlier block had the digest.
        positions = np.flatnonzero(is_duplicate)
        _, firsts = np.unique(digests[positions], return_index=True)
        is_duplicate[positions[firsts]] = self.seen[index[positions[firsts]]]
        self.seen[index[positions]] = True
        return is_duplicate


def source_splits(source: CorpusSource) -> tuple[str, ...]:
    """Return the splits of a source in reading order.

    Validation comes first, so that a document of both splits is a duplicate in train. So the held-out text does not
    depend on the training text.
    """
    return ("validation", "train") if has_validation(source) else ("train",)


def find_duplicates(source: CorpusSource) -> DeduplicationPass:
    """Read all documents once, and compare their digests.

    Raises:
        DataError: If nothing remains to train on, or nothing can be held out.
    """
    return compare_digests(source.data, {split: _read_digests(source, split) for split in source_splits(source)})


def compare_digests(data: CorpusConfig, by_split: Mapping[str, Iterable[np.ndarray]]) -> DeduplicationPass:
    """Find the repeated documents, and the documents to hold out.

    Args:
        data: Corpus section of the recipe.
        by_split: Split of the source, in reading order -> digests of its documents, block by block.

    Raises:
        DataError: If nothing remains to train on, or nothing can be held out.
    """
    digests, counts = array("Q"), dict[str, int]()
    for split, blocks in by_split.items():
        earlier_count = len(digests)
        for block in blocks:
            digests.frombytes(block.tobytes())
        counts[split] = len(digests) - earlier_count
        if not counts[split]:
            raise DataError(f"the {split} split has no documents", "add text", file=data.source or None)
    # Sort in place, because a sorted copy would double the memory. Then equal digests are neighbors.
    sorted_digests = np.frombuffer(digests, dtype=np.uint64)
    validation = sorted_digests[: counts.get("validation", 0)]
    distinct_count = len(np.unique(validation)) if data.deduplicate else 0
    sorted_digests.sort()
    is_repeated = sorted_digests[1:] == sorted_digests[:-1]
    # If both splits together have no more distinct documents than validation, all training documents are duplicates.
    if distinct_count and len(sorted_digests) - int(is_repeated.sum()) == distinct_count:
        raise DataError("every training document is also in validation", "give other text", file=data.source or None)
    repeated_digests = np.unique(sorted_digests[1:][is_repeated]) if data.deduplicate else sorted_digests[:0].copy()
    held_out = 0 if "validation" in counts else _choose_threshold(data, int(sorted_digests[0]), int(sorted_digests[-1]))
    return DeduplicationPass(counts, repeated_digests, held_out)


def split_documents(source: CorpusSource, first_pass: DeduplicationPass) -> Iterator[SplitDocument]:
    """Read all documents a second time, in the same order, and yield each with its split."""
    duplicates = DuplicateFilter(first_pass)
    for split in first_pass.documents:
        for block in _read_blocks(source, split):
            digests = digest_texts(plain_text(document).encode() for document in block)
            flags = zip(duplicates.find_duplicates(digests).tolist(), digests < first_pass.held_out, strict=True)
            for document, (is_duplicate, is_held_out) in zip(block, flags, strict=True):
                yield SplitDocument(plain_text(document), "validation" if is_held_out else split, is_duplicate)


def digest_texts(texts: Iterable[bytes]) -> np.ndarray:
    """Return a digest of 8 bytes per text, as uint64. Shape: (texts,)."""
    digests = b"".join(hashlib.blake2b(text, digest_size=_BYTES).digest() for text in texts)
    # Digests are big-endian on every machine, so that all machines hold out the same documents.
    return np.frombuffer(digests, dtype=">u8").astype(np.uint64)


def _choose_threshold(data: CorpusConfig, lowest: int, highest: int) -> int:
    """Return the bound of the digests below which documents are held out, so that neither split is empty.

    Only the digest of a document decides its split, so it does not change when other documents are added or removed.
    """
    if lowest == highest:
        hint = "put a blank line between documents, or --set data.documents=lines if each line is a document"
        raise DataError("only one document: nothing can be held out", hint, file=data.source or None)
    return min(max(int(data.validation_fraction * _NUM_DIGESTS), lowest + 1), highest)


def _read_blocks(source: CorpusSource, split: str) -> Iterator[list[Document]]:
    return split_by_size(read_documents(source, split), _BLOCK_CHARS, lambda document: len(document.text) + 100)


def _read_digests(source: CorpusSource, split: str) -> Iterator[np.ndarray]:
    """Yield the digests of documents, block by block, and report the progress in bytes."""
    files = (source.files or {}).get(split, [])
    total = sum(file.stat().st_size for file in files if file.exists())
    bytes_read = 0
    with stage(f"reading {split}", total):
        for block in _read_blocks(source, split):
            texts = [plain_text(document).encode() for document in block]
            bytes_read += sum(map(len, texts))
            if total:
                get_progress().update(min(bytes_read, total), {})
            yield digest_texts(texts)

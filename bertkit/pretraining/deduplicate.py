"""Which documents are held out, and which are dropped as duplicates: two passes over a corpus.

The first pass keeps a digest of 8 bytes per document in memory: 10 GB of text in documents of 1 kB take 80 MB. Among
ten million documents, two different ones share a digest with a probability of 1 in 400,000.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bertkit.errors import DataError
from bertkit.metrics import Numbers
from bertkit.pretraining.documents import CorpusSource, has_validation, read_documents
from bertkit.progress import get_progress, stage
from bertkit.recipe.records import Corpus

_BYTES = 8
_ALL = 1 << 8 * _BYTES
_REPORT = 1 << 22  # bytes between two reports of progress


class SplitDocument(NamedTuple):
    """A document, the split it belongs to, and whether it occurred before."""

    text: str
    split: str
    is_duplicate: bool
    bytes: int
    """Size of the text in UTF-8."""


@dataclass(frozen=True)
class DeduplicationPass:
    """The result of the first pass over a corpus: what the second one needs to know of a document it reads."""

    splits: tuple[str, ...]
    """The splits of the source in reading order: validation before train."""
    documents: int
    repeated: Numbers
    """The digests of documents that occur more than once, sorted."""
    held_out: int
    """Documents with a lower digest are held out; 0 if the source has a validation split."""
    content: str
    """A SHA-256 over the digests of all documents."""


def find_duplicates(source: CorpusSource) -> DeduplicationPass:
    """Read all documents once to find those that occur again and those to hold out.

    Raises:
        DataError: nothing is left to train on, or nothing can be held out.
    """
    data = source.data
    splits = ("validation", "train") if has_validation(source) else ("train",)
    digests, counts = array("Q"), dict[str, int]()
    content = hashlib.sha256()
    for split in splits:
        before = len(digests)
        for digest in _read_digests(source, split):
            content.update(digest)
            digests.append(int.from_bytes(digest, "big"))
        counts[split] = len(digests) - before
        if not counts[split]:
            raise DataError(f"the {split} split has no documents", "add text", file=data.source or None)
    # (documents,) digests, sorted in place since a sorted copy would double the memory: equal ones are neighbors then
    sorted_digests = np.frombuffer(digests, dtype=np.uint64)
    validation = sorted_digests[: counts.get("validation", 0)]
    different = len(np.unique(validation)) if data.deduplicate else 0
    sorted_digests.sort()
    is_repeated = sorted_digests[1:] == sorted_digests[:-1]
    # if both splits have as many distinct documents as validation alone, nothing of train is left
    if different and len(sorted_digests) - int(is_repeated.sum()) == different:
        raise DataError("every document of train is in validation too", "give other text", file=data.source or None)
    repeated = np.unique(sorted_digests[1:][is_repeated]) if data.deduplicate else sorted_digests[:0].copy()
    held_out = 0 if "validation" in counts else _threshold(data, int(sorted_digests[0]), int(sorted_digests[-1]))
    return DeduplicationPass(splits, len(sorted_digests), repeated, held_out, content.hexdigest())


def split_documents(source: CorpusSource, deduplication: DeduplicationPass) -> Iterator[SplitDocument]:
    """Read all documents a second time, in the same order, and yield each with its split.

    A document of both splits is a duplicate in train, not in validation: so the held-out text is the same whatever is
    trained on.
    """
    seen = np.zeros(len(deduplication.repeated), dtype=bool)
    for split in deduplication.splits:
        for document in read_documents(source, split):
            text = document.text.encode()
            digest = int.from_bytes(digest_of(text), "big")
            # Only digests that occur more than once are kept, (repeated,), and `seen` has one flag for each. So a
            # document that occurs once needs no memory in this pass.
            index = int(np.searchsorted(deduplication.repeated, np.uint64(digest)))
            is_repeated = index < len(seen) and int(deduplication.repeated[index]) == digest
            is_duplicate = is_repeated and bool(seen[index])
            if is_repeated:
                seen[index] = True
            own_split = "validation" if digest < deduplication.held_out else split
            yield SplitDocument(document.text, own_split, is_duplicate, len(text))


def digest_of(text: bytes) -> bytes:
    """Return the digest of 8 bytes that stands for a text."""
    return hashlib.blake2b(text, digest_size=_BYTES).digest()


def _threshold(data: Corpus, least: int, most: int) -> int:
    """Compute the digest below which documents are held out, so that neither split is empty.

    The document's own digest decides: it stays in its split when other documents come and go.
    """
    if least == most:
        hint = "put a blank line between documents, or --set data.documents=lines if each line is one"
        raise DataError("only one document: nothing can be held out", hint, file=data.source or None)
    return min(max(int(data.validation_share * _ALL), least + 1), most)


def _read_digests(source: CorpusSource, split: str) -> Iterator[bytes]:
    """Yield the digest of each document, and report how much of the files is read."""
    files = (source.files or {}).get(split, [])
    total = sum(file.stat().st_size for file in files if file.exists())
    done = reported = 0
    with stage(f"reading {split}", total):
        for document in read_documents(source, split):
            text = document.text.encode()
            done += len(text)
            if total and done - reported >= _REPORT:
                reported = done
                get_progress().update(min(done, total), {})
            yield digest_of(text)

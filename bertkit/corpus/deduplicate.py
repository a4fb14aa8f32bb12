"""Which documents are held out, and which are dropped because they occurred before.

Of each document 8 bytes are kept in memory, so 10 GB of text in documents of 1 kB take 80 MB. Two different documents
of ten million have the same 8 bytes once in 400,000 such corpora.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bertkit.corpus.documents import corpus_files, has_validation, read_documents
from bertkit.errors import DataError
from bertkit.progress import Progress
from bertkit.recipe.pretraining import Corpus

_BYTES = 8
_ALL = 1 << 8 * _BYTES
_REPORT = 1 << 22  # bytes between two reports


class SplitDocument(NamedTuple):
    """A document, the split it is for, and whether it occurred before."""

    text: str
    split: str
    is_duplicate: bool
    bytes: int


@dataclass(frozen=True)
class DeduplicationPass:
    """What one pass over all documents of a corpus has found."""

    splits: tuple[str, ...]
    """Those of the source, in the order they are read: validation before train."""
    documents: int
    repeated: np.ndarray[Any, Any]
    """Digests of the documents that occur more than once, sorted."""
    held_out: int
    """Documents with a lower digest are held out; of a source with a validation split none are."""
    content: str
    """SHA-256 over the digests of all documents."""


def find_duplicates(data: Corpus, progress: Progress) -> DeduplicationPass:
    """Read all documents once, to know which to hold out and which to drop.

    Raises:
        DataError: there is nothing to train on, or nothing to hold out.
    """
    splits = ("validation", "train") if has_validation(data) else ("train",)
    digests, counts = array("Q"), dict[str, int]()
    content = hashlib.sha256()
    for split in splits:
        before = len(digests)
        for digest in _read_digests(data, split, progress):
            content.update(digest)
            digests.append(int.from_bytes(digest, "big"))
        counts[split] = len(digests) - before
        if not counts[split]:
            raise DataError(f"the {split} split has no documents", "give it text", file=data.source or None)
    known = np.frombuffer(digests, dtype=np.uint64)
    held = known[: counts.get("validation", 0)]
    lost = len(np.unique(held)) if data.deduplicate else 0
    known.sort()  # in place: what is sorted elsewhere would take as much memory again
    again = known[1:] == known[:-1]
    if lost and len(known) - int(again.sum()) == lost:
        raise DataError("every document of train is in validation too", "give other text", file=data.source or None)
    repeated = np.unique(known[1:][again]) if data.deduplicate else known[:0].copy()
    held_out = 0 if "validation" in counts else _threshold(data, int(known[0]), int(known[-1]))
    return DeduplicationPass(splits, len(known), repeated, held_out, content.hexdigest())


def split_documents(data: Corpus, survey: DeduplicationPass) -> Iterator[SplitDocument]:
    """Give all documents in the order they were surveyed, each with its split.

    A document of train that is in validation too is a duplicate there, so the held-out text is the same whatever one
    trains on.
    """
    seen = np.zeros(len(survey.repeated), dtype=bool)
    for split in survey.splits:
        for document in read_documents(data, split):
            text = document.text.encode()
            digest = int.from_bytes(_digest(text), "big")
            place = int(np.searchsorted(survey.repeated, np.uint64(digest)))
            is_repeated = place < len(seen) and int(survey.repeated[place]) == digest
            is_duplicate = is_repeated and bool(seen[place])
            if is_repeated:
                seen[place] = True
            yield SplitDocument(
                document.text, "validation" if digest < survey.held_out else split, is_duplicate, len(text)
            )


def _digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=_BYTES).digest()


def _threshold(data: Corpus, least: int, most: int) -> int:
    """Give the digest below which documents are held out, so that neither split is empty.

    A document's own digest decides, so others that are added or taken away do not move it.
    """
    if least == most:
        hint = "put a blank line between documents, or --set data.documents=lines if each line is one"
        raise DataError("only one document: nothing can be held out", hint, file=data.source or None)
    return min(max(int(data.validation_share * _ALL), least + 1), most)


def _read_digests(data: Corpus, split: str, progress: Progress) -> Iterator[bytes]:
    """Give the digest of each document, and report how many bytes were read of those that files have."""
    files = (corpus_files(data) or {}).get(split, [])
    total = sum(file.stat().st_size for file in files if file.exists())
    done = said = 0
    progress.start(f"reading {split}", total)
    try:
        for document in read_documents(data, split):
            text = document.text.encode()
            done += len(text)
            if total and done - said >= _REPORT:
                said = done
                progress.update(min(done, total), {})
            yield _digest(text)
    finally:
        progress.finish()

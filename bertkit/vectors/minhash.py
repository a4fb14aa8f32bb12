"""Find texts that repeat others word for word, by digests, or nearly so, by MinHash signatures of long texts."""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from bertkit.pretraining.deduplicate import digest_texts
from bertkit.progress import get_progress, stage

if TYPE_CHECKING:
    from datasketch import MinHash

LONG = 100
"""Minimum characters of a text that has a signature; in shorter texts, a few letters can change the meaning."""

Signature = np.ndarray[Any, np.dtype[np.uint32]]
Signatures = Mapping[int, Signature]
Shingles = np.ndarray[Any, np.dtype[np.uint32]]
"""Hashes of all runs of five characters in a text, sorted and without duplicates, (shingles,)."""
ReadShingles = Callable[[Collection[int]], Mapping[int, Shingles]]
Repeats = dict[int, tuple[int, float]]
"""Row that repeats another -> the row that is kept for it, and their similarity."""

_SHINGLE = 5  # characters
# A band is 4 consecutive hashes of a signature, and texts are compared if they have a band in common. Two texts that
# share 0.8 of their shingles have equal hashes with probability 0.8, and a common band with 1 - (1 - 0.8^4)^32: they
# are missed once in 10^7 pairs.
_HASHES, _BANDS = 128, 32
_BLOCK = 4096  # shingles that are hashed at a time
_ERRORS = 4  # standard errors by which an estimate can be wrong


def digest_text(normalized: str) -> int:
    """Return the digest of a normalized text as an integer."""
    return int(digest_texts([normalized.encode("utf-8", "surrogatepass")])[0])


def cut_shingles(normalized: str) -> Shingles:
    """Return the shingles of a text. Shingles of characters need no words, and a typo changes few of them."""
    # Four bytes per character make a shingle a slice of bytes, which crc32 hashes without decoding.
    text = normalized.encode("utf-32-le", "surrogatepass")
    hashes = [zlib.crc32(text[start : start + 4 * _SHINGLE]) for start in range(0, len(text) - 4 * _SHINGLE + 1, 4)]
    return np.unique(np.array(hashes, dtype=np.uint32))


def sign(normalized: str) -> Signature | None:
    """Return the MinHash signature of a text (Broder 1997), or None if the text is shorter than ``LONG``.

    The fraction of equal hashes in two signatures estimates the fraction of common shingles.
    """
    if len(normalized) < LONG:
        return None
    shingles = cut_shingles(normalized).tolist()
    signature = _empty_signature().copy()
    # `update_batch` holds an array (shingles, hashes): 4 MB for a block, but a gigabyte for a text of a million
    # characters.
    for start in range(0, len(shingles), _BLOCK):
        signature.update_batch(shingles[start : start + _BLOCK])
    return np.asarray(signature.hashvalues, dtype=np.uint32)


def find_repeated(digests: np.ndarray[Any, np.dtype[np.uint64]], order: np.ndarray) -> Repeats:
    """Find the rows whose digest an earlier row has, in an order of preference."""
    # np.unique returns the first position of each digest, which is the preferred row, and the digest at each position.
    _, first, inverse = np.unique(digests[order], return_index=True, return_inverse=True)
    first_rows = order[first[inverse]]
    repeats = np.flatnonzero(first_rows != order)
    return {int(order[position]): (int(first_rows[position]), 1.0) for position in repeats}


def find_near(signatures: Signatures, threshold: float, read: ReadShingles, fixed: int) -> Repeats:
    """Find the rows that share at least a part of their shingles with a row that is kept (Jaccard's coefficient).

    Each row is compared with the rows that are kept before it, so that no chain of small differences joins different
    texts. Signatures find the candidates; their shingles decide.

    Args:
        signatures: Signature of each row, in the order of preference.
        threshold: Minimum fraction of common shingles, from 0 to 1.
        read: Function that returns the shingles of the given rows; called for the candidates.
        fixed: Number of first rows that are always kept.
    """
    if not signatures:
        return {}
    rows, table = list(signatures), np.stack(list(signatures.values()))
    # An estimate from n hashes is a binomial fraction, with standard error sqrt(p (1 - p) / n).
    margin = _ERRORS * math.sqrt(threshold * (1 - threshold) / _HASHES)
    likely_share, certain_share = threshold - margin, min(threshold + margin, 1.0)
    bands = _find_shared_bands(table)
    # 1. Estimate by signatures which rows can be near, because texts must be read again for their shingles. A row that
    # is certainly removed is not compared with later rows.
    rows_to_read, repeated = set[int](), set[int]()
    with stage("comparing long texts", len(rows)):
        for row, neighbors, shares in _compare_signatures(table, bands, range(len(rows)), repeated):
            candidates = neighbors[shares >= likely_share].tolist()
            if candidates:
                rows_to_read.update(candidates, [row])
            if row >= fixed and shares.max(initial=0) >= certain_share:
                repeated.add(row)
    # 2. Compute Jaccard's coefficients of these rows. The order is the same, so that each row is compared with kept
    # rows.
    shingles = read({rows[row] for row in rows_to_read}) if rows_to_read else {}
    repeats: Repeats = {}
    repeated = set()
    with stage("comparing near texts", len(rows_to_read)):
        for row, neighbors, shares in _compare_signatures(table, bands, sorted(rows_to_read), repeated):
            candidates = neighbors[shares >= likely_share].tolist() if row >= fixed else []
            exact = [_jaccard(shingles[rows[row]], shingles[rows[earlier]]) for earlier in candidates]
            if exact and max(exact) >= threshold:
                repeated.add(row)
                repeats[rows[row]] = (rows[candidates[exact.index(max(exact))]], max(exact))
    return repeats


def _find_shared_bands(table: np.ndarray) -> list[list[int]]:
    """Return the ids of the bands of each signature (rows, hashes) that another signature has too; mostly none."""
    # View the four hashes of a band as one value, which np.unique can compare.
    bands = np.ascontiguousarray(table).view(np.dtype((np.void, 4 * _HASHES // _BANDS)))  # (rows, bands)
    shared: list[list[int]] = [[] for _ in range(len(table))]
    first_id = 0
    for band in bands.T:
        _, inverse, counts = np.unique(band, return_inverse=True, return_counts=True)
        for row in np.flatnonzero(counts[inverse] > 1).tolist():
            shared[row].append(first_id + int(inverse[row]))
        first_id += len(counts)
    return shared


def _compare_signatures(
    table: np.ndarray, bands: Sequence[Sequence[int]], rows: Sequence[int], repeated: Collection[int]
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield each row, the earlier rows that share a band with it, and their fractions of equal hashes.

    Only rows that share a band are compared (Leskovec et al. 2014, section 3.4). Rows in `repeated`, which the caller
    fills, are not compared with later ones.
    """
    rows_in_band: dict[int, list[int]] = defaultdict(list)
    for done, row in enumerate(rows):
        earlier = {index for band in bands[row] for index in rows_in_band[band]}
        neighbors = np.array(sorted(earlier), dtype=np.int64)
        yield row, neighbors, (table[neighbors] == table[row]).mean(axis=1)
        if row not in repeated:
            for band in bands[row]:
                rows_in_band[band].append(row)
        if done % _BLOCK == 0:
            get_progress().update(done, {})


def _jaccard(first: Shingles, second: Shingles) -> float:
    shared = len(np.intersect1d(first, second, assume_unique=True))
    return shared / (len(first) + len(second) - shared)


@cache
def _empty_signature() -> MinHash:
    """Return a signature without shingles; its copies share the drawn permutations."""
    from datasketch import MinHash

    return MinHash(_HASHES, hashfunc=int)  # shingles are hashes already

"""Texts that repeat others word for word, or nearly so: digests, and MinHash signatures of long texts."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from bertkit.metrics import Numbers
from bertkit.pretraining.deduplicate import digest_texts
from bertkit.progress import get_progress, stage

LONG = 100
"""Characters from which a text is compared by its wording: in shorter ones, a few letters are another meaning."""

Signature = np.ndarray[Any, np.dtype[np.uint32]]
Signatures = Mapping[int, Signature]
Shingles = np.ndarray[Any, np.dtype[np.uint32]]
"""The hashes of all runs of five characters in a text, sorted and each once, (shingles,)."""
ReadShingles = Callable[[Collection[int]], Mapping[int, Shingles]]
Indices = np.ndarray[Any, np.dtype[np.int64]]
Found = dict[int, tuple[int, float]]
"""Row that repeats another -> the row that is kept for it, and their similarity."""
_Compare = Callable[[int, Indices], tuple[int, float] | None]
"""Returns which of the indices that share a band with one is nearest it, and how near; None where none is near."""

_SHINGLE = 5  # characters
# of two texts that share 0.8 of their shingles, all but 1 in 10^7 share a band
_HASHES, _BANDS = 128, 32
_FACTORS, _TERMS = np.random.default_rng(20_001).integers(1, 2**64, (2, _HASHES), dtype=np.uint64) | np.uint64(1)
_BASE = np.uint64(0x9E3779B1) ** np.arange(_SHINGLE, dtype=np.uint64)
_BLOCK = 4096  # shingles that are hashed at a time
_ERRORS = 4  # standard errors by which an estimate may be too low


def digest_text(normalized: str) -> int:
    """Return the number that stands for a normalized text."""
    return int(digest_texts([normalized.encode("utf-8", "surrogatepass")])[0])


def sign(normalized: str) -> Signature | None:
    """Return the MinHash signature of a text (Broder 1997): the share of equal numbers estimates that of shingles.

    None for a text shorter than ``LONG``.
    """
    if len(normalized) < LONG:
        return None
    shingles = cut_shingles(normalized).astype(np.uint64)
    signature = np.full(_HASHES, np.iinfo(np.uint32).max, dtype=np.uint32)
    for start in range(0, len(shingles), _BLOCK):
        # (shingles, hashes) multiply-shift hashes: the upper 32 bits of a product modulo 2^64
        hashes = (shingles[start : start + _BLOCK, None] * _FACTORS + _TERMS) >> np.uint64(32)
        np.minimum(signature, hashes.astype(np.uint32).min(axis=0), out=signature)
    return signature


def cut_shingles(normalized: str) -> Shingles:
    """Return the shingles of a text of at least five characters. They need no words, and a typo changes few of them."""
    codes = np.frombuffer(normalized.encode("utf-32-le", "surrogatepass"), dtype=np.uint32).astype(np.uint64)
    # (shingles,) polynomials of the characters, mixed so that near characters give far numbers
    shingles = np.lib.stride_tricks.sliding_window_view(codes, _SHINGLE) @ _BASE
    mixed = (shingles ^ (shingles >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9) >> np.uint64(32)
    return np.unique(mixed.astype(np.uint32))


def find_repeated(digests: np.ndarray[Any, np.dtype[np.uint64]], order: Numbers) -> Found:
    """Find the rows whose digest an earlier row has, in an order of preference."""
    _, first, inverse = np.unique(digests[order], return_index=True, return_inverse=True)
    kept = order[first[inverse]]
    repeats = np.flatnonzero(kept != order)
    return {int(order[position]): (int(kept[position]), 1.0) for position in repeats}


def find_near(signatures: Signatures, threshold: float, read: ReadShingles, fixed: int) -> Found:
    """Find the rows that share at least a part of their shingles with a row that is kept (Jaccard's coefficient).

    Rows are looked at one after another, and compared with those kept before, so that no chain of small differences
    joins different texts. Only rows that share a band of their signatures are compared (Leskovec et al. 2014, 3.4).
    Signatures name the pairs that may be near; their shingles decide.

    Args:
        signatures: row -> signature, in the order of preference.
        threshold: the share, from 0 to 1.
        read: returns the shingles of some rows; only of those that may be near another.
        fixed: the first rows, which are kept whatever they repeat.
    """
    rows = np.fromiter(signatures, dtype=np.int64, count=len(signatures))
    if not len(rows):
        return {}
    table = np.stack(list(signatures.values()))
    margin = _ERRORS * math.sqrt(threshold * (1 - threshold) / _HASHES)
    least, surely = threshold - margin, min(threshold + margin, 1.0)
    involved = set[int]()

    def estimate(index: int, near: Indices) -> tuple[int, float] | None:
        shares = (table[near] == table[index]).mean(axis=1)
        chosen = near[shares >= least]
        involved.update(chosen.tolist(), [index] * bool(len(chosen)))
        # a row that may yet turn out to be kept is one to compare later ones with
        return (int(near[shares.argmax()]), 1.0) if shares.max() >= surely else None

    def share(index: int, near: Indices) -> tuple[int, float] | None:
        near = near[(table[near] == table[index]).mean(axis=1) >= least]
        shares = [_jaccard(shingles[int(rows[index])], shingles[int(rows[other])]) for other in near]
        best = int(np.argmax(shares)) if shares else -1
        return (int(near[best]), shares[best]) if shares and shares[best] >= threshold else None

    # Return, for each row, the numbers of the bands that another row has too; most rows have none.
    bands = np.ascontiguousarray(table).view(np.dtype((np.void, 4 * _HASHES // _BANDS)))  # (rows, bands)
    keys: list[list[int]] = [[] for _ in range(len(table))]
    numbered = 0
    for band in range(_BANDS):
        _, inverse, counts = np.unique(bands[:, band], return_inverse=True, return_counts=True)
        for row in np.flatnonzero(counts[inverse] > 1).tolist():
            keys[row].append(numbered + int(inverse[row]))
        numbered += len(counts)
    with stage("comparing long texts", len(rows)):
        _compare_in_order(range(len(rows)), keys, fixed, estimate)
    if not involved:
        return {}
    shingles = read({int(rows[index]) for index in involved})
    with stage("comparing near texts", len(involved)):
        found = _compare_in_order(sorted(involved), keys, fixed, share)
    return {int(rows[index]): (int(rows[kept]), shared) for index, (kept, shared) in found.items()}


def _compare_in_order(indices: Sequence[int], keys: Sequence[Sequence[int]], fixed: int, compare: _Compare) -> Found:
    """Compare each of the indices with those kept before it that share a band; return what is near one."""
    repeats: Found = {}
    kept_in_band: dict[int, list[int]] = defaultdict(list)
    for number, index in enumerate(indices):
        near = np.array(sorted({other for band in keys[index] for other in kept_in_band.get(band, ())}), dtype=np.int64)
        if len(near) and index >= fixed and (nearest := compare(index, near)):
            repeats[index] = nearest
        else:
            for band in keys[index]:
                kept_in_band[band].append(index)
        if number % _BLOCK == 0:
            get_progress().update(number, {})
    return repeats


def _jaccard(one: Shingles, other: Shingles) -> float:
    shared = len(np.intersect1d(one, other, assume_unique=True))
    return shared / (len(one) + len(other) - shared)

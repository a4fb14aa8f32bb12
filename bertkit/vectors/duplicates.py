"""Duplicates among the rows of several files, which are counted through all files from 0.

Duplicates are found in three passes, from cheap to expensive: equal texts by their digests, nearly equal long texts by
MinHash signatures, and texts of the same meaning by their vectors.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bertkit.data.text import as_number, normalize
from bertkit.errors import DataError, UsageError, did_you_mean
from bertkit.metrics.linear import draw_rows
from bertkit.progress import log, stage
from bertkit.vectors import minhash
from bertkit.vectors.near_vectors import find_nearest, find_similar
from bertkit.vectors.text_files import Rows, TextFile, TextRow
from bertkit.vectors.vector_files import Matrix

_QUERIES = 2000  # rows whose nearest neighbors are searched for the similarity curve


class Duplicate(NamedTuple):
    """A row to remove, the row that is kept instead, and how similar both are."""

    row: int
    kept_row: int
    reason: str
    """``exact``, ``near`` or ``meaning``."""
    similarity: float


@dataclass(frozen=True)
class ScannedRows:
    """Digests, order and signatures of all rows, from one pass over the files."""

    files: Sequence[TextFile]
    """Files whose rows are all kept, and last the file to clean."""
    totals: list[int]
    """Number of rows of each file."""
    digests: np.ndarray[Any, np.dtype[np.uint64]]
    has_text: np.ndarray[Any, np.dtype[np.bool_]]
    order: Rows
    """All rows that have text, the preferred ones first."""
    signatures: dict[int, minhash.Signature]
    """Row -> its signature, if the text is long."""

    @property
    def fixed(self) -> int:
        """Number of rows in the files before the last one; these rows are always kept."""
        return sum(self.totals[:-1])

    def read(self) -> Iterator[tuple[int, TextFile, TextRow]]:
        """Yield every row once more, after its index among the rows of all files, and its file."""
        rows = ((file, row) for file in self.files for row in file)
        for index, (file, row) in enumerate(rows):
            yield index, file, row

    def read_shingles(self, rows: Collection[int]) -> dict[int, minhash.Shingles]:
        """Read all rows once more, and return the shingles of some."""
        return {index: minhash.cut_shingles(normalize(row.text)) for index, _, row in self.read() if index in rows}


def scan_rows(files: Sequence[TextFile], keep: str, *, with_signatures: bool) -> ScannedRows:
    """Read all rows once, and keep what finding duplicates needs: a few bytes per row, not the texts.

    Args:
        files: Files whose rows are all kept, and last the file to clean.
        keep: Row to keep of several: ``first``, ``longest`` or ``best:COLUMN``, a column of numbers.
        with_signatures: Whether to compute signatures, which only a search for nearly equal texts needs.

    Raises:
        UsageError: If `keep` is something else.
        DataError: If a row is not valid, or no row of a file has text.
    """
    compute_rank = _make_rank(keep)
    # Arrays and a bytearray take 17 bytes per row, and lists of Python's integers would take several times as many.
    digests, preference, totals = array("Q"), array("d"), []
    has_text, signatures = bytearray(), {}
    for file_index, file in enumerate(files):
        before = len(digests)
        with stage(f"reading {file.path.name}"):
            for row in file:
                normalized = normalize(row.text)
                signature = minhash.sign(normalized) if with_signatures else None
                if signature is not None:
                    signatures[len(digests)] = signature
                digests.append(minhash.digest_text(normalized))
                has_text.append(bool(normalized))
                # Rows of other files always win, because only the last file is cleaned.
                preference.append(compute_rank(row, file) if file_index == len(files) - 1 else math.inf)
        totals.append(len(digests) - before)
        if not any(has_text[before:]):
            raise DataError("no row has text", "name another --column", file=file.name, column=file.column)
    is_text = np.frombuffer(has_text, dtype=np.bool_)
    if empty := int((~is_text[sum(totals[:-1]) :]).sum()):
        log.info(f"rows without text, kept: {empty:,}")
    # The sort is stable, so that the earlier one of two equally preferred rows is kept.
    order = np.argsort(-np.frombuffer(preference, dtype=np.float64), kind="stable")
    order = order[is_text[order]]
    return ScannedRows(files, totals, np.frombuffer(digests, dtype=np.uint64), is_text, order, signatures)


def find_repeated_texts(all_rows: ScannedRows, threshold: float) -> list[Duplicate]:
    """Find the rows that repeat a text, or at least the fraction `threshold` of the shingles of a long text."""
    exact = minhash.find_repeated(all_rows.digests, all_rows.order)
    duplicates = [Duplicate(row, kept_row, "exact", 1.0) for row, (kept_row, _) in exact.items()]
    # Among equal texts, only the kept one is compared with texts that are nearly equal.
    kept_rows = (row for row in all_rows.order.tolist() if row not in exact)
    signatures = {row: all_rows.signatures[row] for row in kept_rows if row in all_rows.signatures}
    fixed = sum(row < all_rows.fixed for row in signatures)
    repeats = minhash.find_near(signatures, threshold, all_rows.read_shingles, fixed)
    return duplicates + [Duplicate(row, kept_row, "near", share) for row, (kept_row, share) in repeats.items()]


def get_remaining_rows(all_rows: ScannedRows, duplicates: Sequence[Duplicate]) -> Rows:
    """Return the rows with text that are not among the duplicates, the preferred ones first."""
    is_remaining = all_rows.has_text.copy()
    is_remaining[[duplicate.row for duplicate in duplicates]] = False
    return all_rows.order[is_remaining[all_rows.order]]


def find_similar_rows(rows: Rows, vectors: Matrix, threshold: float, fixed: int) -> list[Duplicate]:
    """Find the rows whose vectors are near the vectors of others.

    Args:
        rows: Row indices, the preferred ones first.
        vectors: Vectors of the rows, of length 1, (rows, dimension).
        threshold: Minimum cosine of duplicates.
        fixed: Number of first rows of all files that are always kept.
    """
    # The rows of other files come first in the order of preference.
    similar = find_similar(vectors, threshold, fixed=int((rows < fixed).sum()))
    repeats = np.flatnonzero(similar.matches >= 0)
    pairs = zip(rows[repeats], rows[similar.matches[repeats]], similar.cosines[repeats].tolist(), strict=True)
    # In float32, the cosine of equal vectors can exceed 1.
    return [Duplicate(int(row), int(kept_row), "meaning", min(cosine, 1.0)) for row, kept_row, cosine in pairs]


class SimilarityStep(NamedTuple):
    """Fraction of the rows whose nearest row has at least a cosine, and the farthest such pair of rows."""

    threshold: float
    share: float
    pair: tuple[int, int] | None


def measure_similarity(vectors: Matrix) -> list[SimilarityStep]:
    """Measure how similar the nearest other row is, for a sample of the rows.

    Args:
        vectors: Vectors of the rows, of length 1, (rows, dimension).
    """
    rows = draw_rows(len(vectors), _QUERIES, 42)
    nearest, cosines = find_nearest(vectors[rows], vectors, rows)
    steps = []
    for threshold in np.arange(0.95, 0.45, -0.05).round(2).tolist():
        indices = np.flatnonzero(cosines >= threshold)
        farthest = indices[cosines[indices].argmin()] if len(indices) else None
        pair = None if farthest is None else (int(rows[farthest]), int(nearest[farthest]))
        steps.append(SimilarityStep(threshold, len(indices) / len(rows), pair))
    return steps


def resolve_chains(duplicates: Sequence[Duplicate], fixed: int) -> dict[int, Duplicate]:
    """Return row -> its duplicate, whose kept row is never removed; rows before `fixed` are left out.

    A row can repeat a row that a later pass removes for a weaker reason. This reason then applies to both.

    >>> chain = [Duplicate(2, 1, "exact", 1.0), Duplicate(1, 0, "meaning", 0.9)]
    >>> resolve_chains(chain, 0)[2]
    Duplicate(row=2, kept_row=0, reason='meaning', similarity=0.9)
    """
    duplicates_by_row = {duplicate.row: duplicate for duplicate in duplicates}
    resolved = {}
    for row, duplicate in duplicates_by_row.items():
        last = duplicate
        # A chain ends, because each pass only compares rows that all earlier passes have kept.
        while (next_duplicate := duplicates_by_row.get(last.kept_row)) is not None:
            last = next_duplicate
        if row >= fixed:
            resolved[row] = Duplicate(row, last.kept_row, last.reason, min(duplicate.similarity, last.similarity))
    return resolved


def group_rows(all_rows: ScannedRows, removed: Mapping[int, Duplicate]) -> Iterator[dict[str, Any]]:
    """Yield the rows of each group of duplicates: the row that is kept, then the removed rows."""
    groups: dict[int, int] = {}
    for duplicate in removed.values():
        groups.setdefault(duplicate.kept_row, len(groups) + 1)
    members: dict[int, list[dict[str, Any]]] = {group: [] for group in groups.values()}
    for index, file, row in all_rows.read():
        removal = removed.get(index)
        if removal is None and index not in groups:
            continue
        group = groups[removal.kept_row if removal else index]
        members[group].append(
            {
                "group": group,
                "kept": removal is None,
                "reason": removal.reason if removal else "",
                "similarity": round(removal.similarity, 4) if removal else None,
                "file": file.name,
                "row": row.line,
                "id": row.record.get("id"),
                "text": row.text,
            }
        )
    for rows in members.values():
        yield from sorted(rows, key=lambda member: not member["kept"])


def _make_rank(keep: str) -> Callable[[TextRow, TextFile], float]:
    """Build the function that computes the rank of a row; the row with the highest rank is kept."""
    strategy, _, column = keep.partition(":")
    if keep == "first":
        return lambda row, file: 0.0
    if keep == "longest":
        return lambda row, file: float(len(row.text))
    if strategy != "best" or not column:
        raise UsageError(f"--keep {keep}", "first, longest, or best:COLUMN")

    def read_rank(row: TextRow, file: TextFile) -> float:
        if column not in row.record:
            raise DataError(f"no column {column!r} for --keep", did_you_mean(column, row.record), file=file.name)
        value = row.record[column]
        rank = as_number(value)
        if not math.isfinite(rank):
            message = f"{value!r} is not a number"
            raise DataError(message, "--keep best:COLUMN needs numbers", file=file.name, row=row.line, column=column)
        return rank

    return read_rank

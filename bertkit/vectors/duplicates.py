"""The rows of several files, numbered through, and which of them repeat others."""

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
    """A row that goes: the row that is kept for it, how the two are alike, and how much."""

    row: int
    kept: int
    reason: str
    """``exact``, ``near`` or ``meaning``."""
    similarity: float


@dataclass(frozen=True)
class ScannedRows:
    """Digests, order and signatures of all rows, from one pass over the files."""

    files: Sequence[TextFile]
    """The files whose rows are all kept, and last the one that is cleaned."""
    totals: list[int]
    digests: np.ndarray[Any, np.dtype[np.uint64]]
    has_text: np.ndarray[Any, np.dtype[np.bool_]]
    order: Rows
    """All rows that have text, the preferred ones first."""
    signatures: dict[int, minhash.Signature]
    """Row -> its signature, where the text is long."""

    @property
    def fixed(self) -> int:
        """Number of rows before the last file."""
        return sum(self.totals[:-1])

    def read(self) -> Iterator[tuple[int, TextFile, TextRow]]:
        """Yield every row once more, with its number and its file."""
        number = 0
        for file in self.files:
            for row in file:
                yield number, file, row
                number += 1

    def read_shingles(self, rows: Collection[int]) -> dict[int, minhash.Shingles]:
        """Read all rows once more, and return the shingles of some."""
        return {number: minhash.cut_shingles(normalize(row.text)) for number, _, row in self.read() if number in rows}


def scan(files: Sequence[TextFile], keep: str, *, near: bool) -> ScannedRows:
    """Read all rows once.

    Args:
        files: those whose rows are all kept, and last the one that is cleaned.
        keep: ``first``, ``longest`` or ``best:COLUMN``, a column of numbers.
        near: whether signatures are needed.

    Raises:
        UsageError: `keep` is something else.
        DataError: a row is wrong, or no row has text.
    """
    ranks = _ranks(keep)
    digests, preference, totals = array("Q"), array("d"), []
    has_text, signatures = bytearray(), {}
    for number, file in enumerate(files):
        before = len(digests)
        with stage(f"reading {file.path.name}"):
            for row in file:
                normalized = normalize(row.text)
                signature = minhash.sign(normalized) if near else None
                if signature is not None:
                    signatures[len(digests)] = signature
                digests.append(minhash.digest_text(normalized))
                has_text.append(bool(normalized))
                preference.append(ranks(row, file) if number == len(files) - 1 else math.inf)
        totals.append(len(digests) - before)
        if not any(has_text[before:]):
            raise DataError("no row has text", "name another --column", file=file.path, column=file.column)
    is_filled = np.frombuffer(has_text, dtype=np.bool_)
    if empty := int((~is_filled[sum(totals[:-1]) :]).sum()):
        log.info(f"rows without text, kept: {empty:,}")
    order = np.argsort(-np.frombuffer(preference, dtype=np.float64), kind="stable")
    order = order[is_filled[order]]
    return ScannedRows(files, totals, np.frombuffer(digests, dtype=np.uint64), is_filled, order, signatures)


def find_wording(scanned: ScannedRows, near: float) -> list[Duplicate]:
    """Find the rows that repeat others word for word or, of long texts, nearly so; each row once."""
    exact = minhash.find_repeated(scanned.digests, scanned.order)
    duplicates = [Duplicate(row, kept, "exact", 1.0) for row, (kept, _) in exact.items()]
    ordered = {
        row: scanned.signatures[row] for row in scanned.order.tolist() if row in scanned.signatures and row not in exact
    }
    fixed = sum(row < scanned.fixed for row in ordered)
    repeats = minhash.find_near(ordered, near, scanned.read_shingles, fixed)
    return duplicates + [Duplicate(row, kept, "near", share) for row, (kept, share) in repeats.items()]


def remaining_rows(scanned: ScannedRows, duplicates: Sequence[Duplicate]) -> Rows:
    """Return the rows with text that repeat no other so far, the preferred ones first."""
    is_left = scanned.has_text.copy()
    is_left[[duplicate.row for duplicate in duplicates]] = False
    return scanned.order[is_left[scanned.order]]


def find_meaning(rows: Rows, vectors: Matrix, threshold: float, fixed: int) -> list[Duplicate]:
    """Find the rows whose vectors are near the vectors of others.

    Args:
        rows: the preferred ones first.
        vectors: one per row, of length 1, in the same order.
        threshold: a cosine.
        fixed: the rows with lower numbers are kept.
    """
    similar = find_similar(vectors, threshold, fixed=int((rows < fixed).sum()))
    repeats = np.flatnonzero(similar.kept >= 0)
    pairs = zip(rows[repeats], rows[similar.kept[repeats]], similar.cosines[repeats].tolist(), strict=True)
    return [Duplicate(int(row), int(kept), "meaning", min(cosine, 1.0)) for row, kept, cosine in pairs]


class SimilarityStep(NamedTuple):
    """Share of the rows that have a neighbor at a cosine, and the farthest such pair of rows."""

    threshold: float
    share: float
    pair: tuple[int, int] | None


def measure_similarity(vectors: Matrix) -> list[SimilarityStep]:
    """Measure how near the nearest other row is, for a sample of the rows of vectors (rows, dimension) of length 1."""
    rows = draw_rows(len(vectors), _QUERIES, 42)
    nearest, cosines = find_nearest(vectors[rows], vectors, rows)
    steps = []
    for threshold in np.arange(0.95, 0.45, -0.05).round(2).tolist():
        near = np.flatnonzero(cosines >= threshold)
        farthest = near[cosines[near].argmin()] if len(near) else None
        pair = None if farthest is None else (int(rows[farthest]), int(nearest[farthest]))
        steps.append(SimilarityStep(threshold, len(near) / len(rows), pair))
    return steps


def resolve(duplicates: Sequence[Duplicate], fixed: int) -> dict[int, Duplicate]:
    """Return row -> its duplicate, whose kept row is one that stays; rows before `fixed` are left out.

    A row may repeat one that itself goes later, for a weaker reason. Then it goes for that reason.
    """
    by_row = {duplicate.row: duplicate for duplicate in duplicates}
    resolved = {}
    for row, duplicate in by_row.items():
        last = duplicate
        while (following := by_row.get(last.kept)) is not None:
            last = following
        if row >= fixed:
            resolved[row] = Duplicate(row, last.kept, last.reason, min(duplicate.similarity, last.similarity))
    return resolved


def group_rows(scanned: ScannedRows, removed: Mapping[int, Duplicate]) -> Iterator[dict[str, Any]]:
    """Yield the rows of each group of duplicates: the one that is kept, and those that go."""
    groups: dict[int, int] = {}
    for duplicate in removed.values():
        groups.setdefault(duplicate.kept, len(groups) + 1)
    members: dict[int, list[dict[str, Any]]] = {group: [] for group in groups.values()}
    for number, file, row in scanned.read():
        leaves = removed.get(number)
        if leaves is None and number not in groups:
            continue
        group = groups[leaves.kept if leaves else number]
        members[group].append(
            {
                "group": group,
                "kept": leaves is None,
                "reason": leaves.reason if leaves else "",
                "similarity": round(leaves.similarity, 4) if leaves else None,
                "file": str(file.path),
                "row": row.line,
                "id": row.record.get("id"),
                "text": row.text,
            }
        )
    for rows in members.values():
        yield from sorted(rows, key=lambda member: not member["kept"])


def _ranks(keep: str) -> Callable[[TextRow, TextFile], float]:
    """Return the function that computes how much a row is preferred."""
    strategy, _, column = keep.partition(":")
    if keep == "first":
        return lambda row, file: 0.0
    if keep == "longest":
        return lambda row, file: float(len(row.text))
    if strategy != "best" or not column:
        raise UsageError(f"--keep {keep}", "first, longest, or best:COLUMN")

    def rank(row: TextRow, file: TextFile) -> float:
        if column not in row.record:
            raise DataError(f"no column {column!r} for --keep", did_you_mean(column, row.record), file=file.path)
        value = row.record[column]
        number = as_number(value)
        if not math.isfinite(number):
            message = f"{value!r} is not a number"
            raise DataError(message, "--keep best:COLUMN needs numbers", file=file.path, row=row.line, column=column)
        return number

    return rank

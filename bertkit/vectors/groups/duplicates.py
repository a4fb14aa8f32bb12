"""The rows of several files, numbered through, and which of them repeat others."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bertkit.data.text import as_number, normalize
from bertkit.errors import DataError, UsageError, closest
from bertkit.progress import log, stage
from bertkit.vectors import minhash
from bertkit.vectors.groups.meaning import find_similar
from bertkit.vectors.text_files import Rows, TextFile, TextRow
from bertkit.vectors.vector_files import Matrix


class Duplicate(NamedTuple):
    """A row that goes: the row that is kept for it, how the two are alike, and how much."""

    row: int
    kept: int
    reason: str
    """``exact``, ``near`` or ``meaning``."""
    similarity: float


@dataclass(frozen=True)
class ScannedRows:
    """What one pass over the files remembers of each row."""

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
        """The number of rows before those of the last file."""
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
    filled = np.frombuffer(has_text, dtype=np.bool_)
    if empty := int((~filled[sum(totals[:-1]) :]).sum()):
        log.info(f"rows without text, kept: {empty:,}")
    order = np.argsort(-np.frombuffer(preference, dtype=np.float64), kind="stable")
    order = order[filled[order]]
    return ScannedRows(files, totals, np.frombuffer(digests, dtype=np.uint64), filled, order, signatures)


def find_wording(scanned: ScannedRows, near: float | None) -> list[Duplicate]:
    """Find the rows that repeat others word for word or, of long texts, nearly so; each row once."""
    exact = minhash.find_repeated(scanned.digests, scanned.order)
    duplicates = [Duplicate(row, kept, "exact", 1.0) for row, (kept, _) in exact.items()]
    if near is not None:
        ordered = {
            row: scanned.signatures[row]
            for row in scanned.order.tolist()
            if row in scanned.signatures and row not in exact
        }
        fixed = sum(row < scanned.fixed for row in ordered)
        repeats = minhash.find_near(ordered, near, scanned.read_shingles, fixed)
        duplicates += [Duplicate(row, kept, "near", share) for row, (kept, share) in repeats.items()]
    return duplicates


def remaining_rows(scanned: ScannedRows, found: Sequence[Duplicate]) -> Rows:
    """Return the rows with text that repeat no other so far, the preferred ones first."""
    is_left = scanned.has_text.copy()
    is_left[[duplicate.row for duplicate in found]] = False
    return scanned.order[is_left[scanned.order]]


def find_meaning(rows: Rows, vectors: Matrix, threshold: float, fixed: int) -> tuple[list[Duplicate], float | None]:
    """Find the rows whose vectors are near to those of others.

    Args:
        rows: the preferred ones first.
        vectors: one per row, of length 1, in the same order.
        threshold: a cosine.
        fixed: the rows with lower numbers are kept.

    Returns:
        the duplicates, and the share of pairs that an approximate search finds; None of an exact one.
    """
    similar = find_similar(vectors, threshold, fixed=int((rows < fixed).sum()))
    gone = np.flatnonzero(similar.kept >= 0)
    found = zip(rows[gone].tolist(), rows[similar.kept[gone]].tolist(), similar.cosines[gone].tolist(), strict=True)
    return [Duplicate(row, kept, "meaning", min(cosine, 1.0)) for row, kept, cosine in found], similar.recall


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


def group_rows(scanned: ScannedRows, gone: Mapping[int, Duplicate]) -> Iterator[dict[str, Any]]:
    """Yield the rows of each group of duplicates: the one that is kept, and those that go."""
    groups: dict[int, int] = {}
    for duplicate in gone.values():
        groups.setdefault(duplicate.kept, len(groups) + 1)
    members: dict[int, list[dict[str, Any]]] = {group: [] for group in groups.values()}
    for number, file, row in scanned.read():
        leaves = gone.get(number)
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
    way, _, column = keep.partition(":")
    if keep == "first":
        return lambda row, file: 0.0
    if keep == "longest":
        return lambda row, file: float(len(row.text))
    if way != "best" or not column:
        raise UsageError(f"--keep {keep}", "first, longest, or best:COLUMN")

    def rank(row: TextRow, file: TextFile) -> float:
        if column not in row.record:
            raise DataError(f"no column {column!r} for --keep", closest(column, row.record), file=file.path)
        value = row.record[column]
        number = as_number(value)
        if not math.isfinite(number):
            what = f"{value!r} is not a number"
            raise DataError(what, "--keep best:COLUMN needs numbers", file=file.path, row=row.line, column=column)
        return number

    return rank

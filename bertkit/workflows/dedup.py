"""Remove duplicate rows of a file: equal in wording, nearly equal, or equal in meaning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.output import PLAIN, copy_parquet, find_writer, follow_source, write_records
from bertkit.errors import UsageError
from bertkit.storage.outputs import check_not_inputs, lock_output
from bertkit.vectors import duplicates as found_rows
from bertkit.vectors.duplicates import Duplicate, ScannedRows, group_rows, measure_similarity
from bertkit.vectors.text_files import Rows, TextFile, VectorSource
from bertkit.vectors.vector_files import Matrix, to_unit_length


@dataclass(frozen=True)
class DedupResult:
    """Number of duplicates by kind."""

    rows: int
    """Number of rows in the file before cleaning."""
    kept: int
    duplicates: dict[str, int]
    """``exact``, ``near`` and ``meaning`` -> number of removed rows."""
    of_files: dict[str, int]
    """File -> number of removed rows that duplicate one of its rows."""
    threshold: float | None = None
    curve: list[dict[str, Any]] = field(default_factory=list)
    """Cosines with the fraction of rows that have such a neighbor, and an example; empty with a threshold."""
    written: list[str] = field(default_factory=list)


def dedup(
    texts: TextFile,
    *,
    against: Sequence[TextFile] = (),
    source: VectorSource | None = None,
    near: float = 0.9,
    threshold: float | None = None,
    keep: str = "first",
    output: Path | None = None,
    report: Path | None = None,
    dry_run: bool = False,
) -> DedupResult:
    """Find the rows of a file that repeat others, and write the file without them.

    Args:
        texts: The file to clean.
        against: Files whose rows are all kept. Rows of `texts` that repeat one of them go.
        source: Source of vectors; None compares only the wording.
        near: Minimum share of common runs of five characters of two long texts; 1 compares only complete texts.
        threshold: Minimum cosine of duplicates; None measures how near rows are, and removes none by it.
        keep: Row that is kept of several: ``first``, ``longest`` or ``best:COLUMN``.
        output: File for the remaining rows.
        report: File for all groups of duplicates, with one row of a file per line.
        dry_run: Whether to check that `output` can be written, but not to write it.

    Raises:
        BertkitError: If files or options are wrong; see `bertkit.errors`.
    """
    for name, value, lowest in (("threshold", threshold, -1), ("near", near, 0)):
        if value is not None and not lowest <= value <= 1:
            raise UsageError(f"--{name} {value:g}", f"give a number from {lowest} to 1")
    outputs = [file for file in (output, report) if file is not None]
    _check_source(source, threshold, len(against) + 1, has_output=output is not None)
    _check_outputs(outputs, texts, against, source)
    with ExitStack() as held:  # Outputs that cannot be written are rejected before the work.
        for file in outputs:
            held.enter_context(lock_output(file))
        # From cheap to expensive: digests, then signatures of the wording, then vectors of the remaining rows.
        scanned = found_rows.scan_rows([*against, texts], keep, with_signatures=near < 1)
        duplicates = found_rows.find_repeated_texts(scanned, near)
        facts: dict[str, Any] = {}
        if source is not None:
            remaining = found_rows.get_remaining_rows(scanned, duplicates)
            vectors = _read_vectors(scanned, remaining, source)
            # Without a threshold, nothing goes by meaning: the curve shows what each one would remove.
            if threshold is None:
                facts["curve"] = _draw_curve(scanned, remaining, vectors)
            else:
                facts["threshold"] = threshold
                duplicates += found_rows.find_similar_rows(remaining, vectors, threshold, scanned.fixed)
        removed = found_rows.resolve_chains(duplicates, scanned.fixed)
        if report is not None:
            write_records(group_rows(scanned, removed), report)
        if output is not None and not dry_run:
            _write_clean(scanned, removed, output)
        reasons, ends = Counter(duplicate.reason for duplicate in removed.values()), np.cumsum(scanned.totals)
        kept_in = Counter(
            int(np.searchsorted(ends, duplicate.kept_row, side="right")) for duplicate in removed.values()
        )
        return DedupResult(
            rows=scanned.totals[-1],
            kept=scanned.totals[-1] - len(removed),
            duplicates={reason: reasons[reason] for reason in ("exact", "near", "meaning")},
            of_files={str(file.path): kept_in[index] for index, file in enumerate(scanned.files)},
            written=[str(file) for file in outputs if file != output or not dry_run],
            **facts,
        )


def _check_source(source: VectorSource | None, threshold: float | None, files: int, *, has_output: bool) -> None:
    """Check the source of vectors against the options and the number of files of rows."""
    if source is None:
        if threshold is not None:
            raise UsageError("--threshold without vectors", "name a --model, or a file with --vectors")
        return
    _ = source.embedder
    if has_output and threshold is None:
        message = "no --threshold: from which cosine on are texts duplicates?"
        raise UsageError(message, "leave --output out to see how many rows each would remove")
    if source.files and len(source.files) != files:
        message = f"{len(source.files)} files of vectors for {files} files of rows"
        raise UsageError(message, "give --vectors for FILE, then for each --against")


def _check_outputs(
    outputs: Sequence[Path], texts: TextFile, against: Sequence[TextFile], source: VectorSource | None
) -> None:
    """Check that outputs differ, and that none is an input."""
    reads = [("the file to clean", texts.path)]
    reads += [("a file of --against", file.path) for file in against]
    reads += [("a file with vectors", file) for file in (source.files if source else ())]
    for file in outputs:
        find_writer(file)
        check_not_inputs(file, reads)
    # Links are resolved: the second output would overwrite the first.
    if len({file.resolve() for file in outputs}) < len(outputs):
        raise UsageError("two outputs have the same name", "name different files")


def _read_vectors(scanned: ScannedRows, rows: Rows, source: VectorSource) -> Matrix:
    """Return the vectors of some rows, of length 1, in the order of these rows."""
    is_read = np.zeros(len(scanned.digests), dtype=bool)
    is_read[rows] = True
    ascending = np.flatnonzero(is_read)
    texts = (row.text for number, _, row in scanned.read() if is_read[number])
    # the files of vectors are named for the file to clean first, which is the last one of the rows
    ordered = replace(source, files=(*source.files[1:], *source.files[:1]))
    vectors = ordered.read(texts, ascending, scanned.totals)
    return to_unit_length(vectors[np.searchsorted(ascending, rows)])


def _draw_curve(scanned: ScannedRows, rows: Rows, vectors: Matrix) -> list[dict[str, Any]]:
    """Return the share of rows that have a neighbor at each threshold, with the texts of the farthest such pair."""
    if len(rows) < 2:
        return []
    steps = measure_similarity(vectors)
    numbers = {int(rows[index]): index for step in steps for index in step.pair or ()}
    texts = {numbers[number]: row.text for number, _, row in scanned.read() if number in numbers}
    curve = []
    for threshold, share, pair in steps:
        example = {} if pair is None else {"text": texts[pair[0]], "text_pair": texts[pair[1]]}
        curve.append({"threshold": threshold, "share": share, **example})
    return curve


def _write_clean(scanned: ScannedRows, removed: Mapping[int, Duplicate], output: Path) -> None:
    """Write the rows that stay; a Parquet file keeps its types, and a csv or tsv file is written as it was."""
    cleaned = scanned.files[-1]
    if cleaned.path.suffix == output.suffix == ".parquet":
        copy_parquet(cleaned.path, output, [row not in removed for row in range(scanned.fixed, len(scanned.digests))])
        return
    kept = (row.record for number, row in enumerate(cleaned, scanned.fixed) if number not in removed)
    write_records(kept, output, follow_source(PLAIN, output, cleaned.path, cleaned.data))

"""Remove duplicate rows of a file: equal in wording, nearly equal, or equal in meaning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.output import DEFAULT_LAYOUT, copy_parquet, find_writer, follow_source, write_records
from bertkit.errors import UsageError
from bertkit.storage.outputs import check_not_inputs, lock_output
from bertkit.vectors import duplicates as duplicate_search
from bertkit.vectors.duplicates import Duplicate, ScannedRows, group_rows, measure_similarity
from bertkit.vectors.text_files import Rows, TextFile, VectorSource
from bertkit.vectors.vector_files import Matrix, to_unit_length


@dataclass(frozen=True)
class DedupResult:
    """Numbers of kept rows and of duplicates."""

    rows: int
    """Number of rows in the file before cleaning."""
    kept: int
    """Number of rows that remain."""
    duplicates: dict[str, int]
    """``exact``, ``near`` and ``meaning`` -> number of removed rows."""
    of_files: dict[str, int]
    """File -> number of removed rows that duplicate one of its rows."""
    threshold: float | None = None
    curve: list[dict[str, Any]] = field(default_factory=list)
    """Fraction of rows with a neighbor at each cosine, and an example; empty if a threshold is given."""
    written: list[str] = field(default_factory=list)


def dedup(
    texts: TextFile,
    *,
    against: Sequence[TextFile] = (),
    source: VectorSource | None = None,
    near_threshold: float = 0.9,
    threshold: float | None = None,
    keep: str = "first",
    output: Path | None = None,
    report: Path | None = None,
    dry_run: bool = False,
) -> DedupResult:
    """Find the duplicate rows of a file, and write the file without them.

    Args:
        texts: The file to clean.
        against: Files whose rows are all kept. Rows of `texts` that repeat one of them are removed.
        source: Source of vectors; None compares only the wording.
        near_threshold: Minimum fraction of five-character sequences that two long texts share; 1 compares only complete
            texts.
        threshold: Minimum cosine of duplicates in meaning; None only measures how similar the rows are.
        keep: Row to keep of each group of duplicates: ``first``, ``longest`` or ``best:COLUMN``.
        output: File for the remaining rows.
        report: File for the groups of duplicates, one row per line.
        dry_run: Whether to check that `output` can be written, but not to write it.

    Raises:
        BertkitError: If files or options are wrong; see `bertkit.errors`.
    """
    # 1. Check the options and the files.
    for name, value, lowest in (("threshold", threshold, -1), ("near-threshold", near_threshold, 0)):
        if value is not None and not lowest <= value <= 1:
            raise UsageError(f"--{name} {value:g}", f"give a number from {lowest} to 1")
    outputs = [file for file in (output, report) if file is not None]
    _check_source(source, threshold, len(against) + 1, has_output=output is not None)
    _check_outputs(outputs, texts, against, source)
    with ExitStack() as locks:
        # 2. Lock the outputs, so that an output that cannot be written is an error before the work.
        for file in outputs:
            locks.enter_context(lock_output(file))

        # 3. Compare the rows by digests, then by signatures of the wording, then the remaining rows by vectors, which
        #    cost most. Row numbers continue from file to file; the file to clean is last.
        all_rows = duplicate_search.scan_rows([*against, texts], keep, with_signatures=near_threshold < 1)
        duplicates = duplicate_search.find_repeated_texts(all_rows, near_threshold)
        meaning_fields: dict[str, Any] = {}
        if source is not None:
            remaining_rows = duplicate_search.get_remaining_rows(all_rows, duplicates)
            vectors = _read_vectors(all_rows, remaining_rows, source)
            # Without a threshold, remove no row by meaning, but show how many rows each threshold would remove.
            if threshold is None:
                meaning_fields["curve"] = _compute_curve(all_rows, remaining_rows, vectors)
            else:
                meaning_fields["threshold"] = threshold
                duplicates += duplicate_search.find_similar_rows(remaining_rows, vectors, threshold, all_rows.fixed)

        # 4. Follow each chain of duplicates to the row to keep, and write the outputs.
        removals = duplicate_search.resolve_chains(duplicates, all_rows.fixed)
        if report is not None:
            write_records(group_rows(all_rows, removals), report)
        if output is not None and not dry_run:
            _write_remaining_rows(all_rows, removals, output)

        # 5. Count the removed rows by reason, and by the file of the kept row. For files of 3 and 2 rows, `file_stops`
        #    is [3, 5], so `searchsorted` returns file 0 for row 2, and file 1 for row 3.
        reasons = Counter(duplicate.reason for duplicate in removals.values())
        kept_rows = [duplicate.kept_row for duplicate in removals.values()]
        file_stops = np.cumsum(all_rows.totals)
        file_counts = Counter(np.searchsorted(file_stops, kept_rows, side="right").tolist())
        return DedupResult(
            rows=all_rows.totals[-1],
            kept=all_rows.totals[-1] - len(removals),
            duplicates={reason: reasons[reason] for reason in ("exact", "near", "meaning")},
            of_files={file.name: file_counts[index] for index, file in enumerate(all_rows.files)},
            written=[str(file) for file in outputs if file != output or not dry_run],
            **meaning_fields,
        )


def _check_source(source: VectorSource | None, threshold: float | None, files: int, *, has_output: bool) -> None:
    """Check the options for vectors, and that there is one file of vectors per file of rows."""
    if source is None:
        if threshold is not None:
            raise UsageError("--threshold without vectors", "name a --model, or a file with --vectors")
        return
    _ = source.embedder  # An unknown model is an error now.
    if has_output and threshold is None:
        message = "--threshold is missing, the minimum cosine of duplicates"
        raise UsageError(message, "leave --output out to see how many rows each threshold would remove")
    if source.files and len(source.files) != files:
        message = f"{len(source.files)} files of vectors for {files} files of rows"
        raise UsageError(message, "give --vectors for FILE, then for each --against")


def _check_outputs(
    outputs: Sequence[Path], texts: TextFile, against: Sequence[TextFile], source: VectorSource | None
) -> None:
    """Check that the outputs are different files, and that no output is an input."""
    inputs = [("the file to clean", texts.path)]
    inputs += [("a file of --against", file.path) for file in against]
    inputs += [("a file with vectors", file) for file in (source.files if source else ())]
    for file in outputs:
        find_writer(file)
        check_not_inputs(file, inputs)
    # Resolve links: the second output would overwrite the first.
    if len({file.resolve() for file in outputs}) < len(outputs):
        raise UsageError("two outputs have the same name", "name different files")


def _read_vectors(all_rows: ScannedRows, rows: Rows, source: VectorSource) -> Matrix:
    """Return the vectors of `rows`, scaled to length 1, in the order of `rows`.

    Files are read from start to end, so vectors are computed in ascending order. For the rows [4, 0, 2], `sorted_rows`
    is [0, 2, 4], and `searchsorted` returns [2, 0, 1], which restores the order.
    """
    is_read = np.zeros(len(all_rows.digests), dtype=bool)
    is_read[rows] = True
    sorted_rows = np.flatnonzero(is_read)
    texts = (row.text for index, _, row in all_rows.read() if is_read[index])
    # The first --vectors belong to the file to clean, whose rows are numbered last.
    reordered_source = replace(source, files=(*source.files[1:], *source.files[:1]))
    vectors = reordered_source.read(texts, sorted_rows, all_rows.totals)
    return to_unit_length(vectors[np.searchsorted(sorted_rows, rows)])


def _compute_curve(all_rows: ScannedRows, rows: Rows, vectors: Matrix) -> list[dict[str, Any]]:
    """Return the fraction of rows with a neighbor at each threshold, and the texts of its farthest pair."""
    if len(rows) < 2:
        return []
    steps = measure_similarity(vectors)
    # Keep only the texts of the example pairs in memory. A pair has two indices into `rows`.
    positions = {int(rows[position]): position for step in steps for position in step.pair or ()}
    texts = {positions[index]: row.text for index, _, row in all_rows.read() if index in positions}
    curve = []
    for threshold, share, pair in steps:
        example = {} if pair is None else {"text": texts[pair[0]], "text_pair": texts[pair[1]]}
        curve.append({"threshold": threshold, "share": share, **example})
    return curve


def _write_remaining_rows(all_rows: ScannedRows, removals: Mapping[int, Duplicate], output: Path) -> None:
    """Write the rows that are not removed, with the column types or the CSV dialect of the original file."""
    original = all_rows.files[-1]
    if original.path.suffix == output.suffix == ".parquet":
        is_kept = [row not in removals for row in range(all_rows.fixed, len(all_rows.digests))]
        copy_parquet(original.path, output, is_kept)
        return
    records = (row.record for index, row in enumerate(original, all_rows.fixed) if index not in removals)
    write_records(records, output, follow_source(DEFAULT_LAYOUT, output, original.path, original.data))

"""Write cleaned copies of the files of a dataset, without repeated and incomplete rows; other rows are unchanged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from bertkit.checks.repeats import Repeats
from bertkit.data.files import guess_format, read_records
from bertkit.data.output import PLAIN, copy_parquet, follow_source, write_records
from bertkit.data.remote import name_source
from bertkit.data.rows import NO_LABEL, NO_TEXT, RowLocation, Split, place_row
from bertkit.data.sources import files_by_split, single_file
from bertkit.errors import DataError, UsageError
from bertkit.recipe.records import DataConfig
from bertkit.storage.files import disk_errors, make_ignored_folder
from bertkit.storage.outputs import check_empty, stage_folder

_SAME_FORMAT = (".csv", ".tsv", ".jsonl", ".parquet")
_REMOVABLE = {NO_TEXT: "rows with an empty text", NO_LABEL: "rows without a label"}
_READING = ("format", "header", "delimiter", "quoting", "encoding")

Removable = dict[RowLocation, str]
"""Place of a removable row -> reason."""


def find_sources(data: DataConfig, folder: Path) -> dict[str, Path]:
    """Return name of a copy without its ending -> the file to copy.

    Raises:
        UsageError: If the folder is not empty, a split has several files or none, or rows are limited.
    """
    check_empty(folder)
    if data.limit is not None:
        raise UsageError("--fix with --limit", "leave the limit out: only rows that are checked can go")
    if file := single_file(data) if data.source != "demo" else None:
        return {file.name.partition(".")[0]: file}
    files = None if data.source == "demo" or not data.source else files_by_split(data)
    if files is None:
        raise UsageError(f"--fix without files: {data.source or 'no source'}", "save the rows to files first")
    for split, paths in files.items():
        if len(paths) > 1:
            raise UsageError(f"the {split} split is in {len(paths)} files", "join them first", file=paths[0])
    return {data.splits.get(split, split): paths[0] for split, paths in files.items()}


def find_removable(splits: Mapping[str, Split], repeats: Repeats, faults: Iterable[DataError]) -> Removable:
    """Collect the removable rows: rows without a text or a label, and training rows that repeat others."""
    places = {RowLocation(str(fault.file), fault.row): _REMOVABLE.get(fault.message, "") for fault in faults}
    removable = {place: reason for place, reason in places.items() if reason}
    train = splits["train"]
    for indices, reason in (
        (repeats.repeated, "training rows that repeat an earlier one"),
        (repeats.leaked, "training rows that another split has too"),
    ):
        # The first of equal rows stays, and so do validation rows: only training rows are removed.
        removable |= dict.fromkeys(map(train.place, indices), reason)
    return removable


def write_copies(sources: Mapping[str, Path], data: DataConfig, removable: Removable, folder: Path) -> dict[str, int]:
    """Write the files without the removable rows, all or none, and return reason -> number of removed rows.

    A copy has the format, the delimiter and the encoding of its file, or is .jsonl if bertkit cannot write that format.
    The caller holds `lock_output_folder`.

    Raises:
        UsageError: If the folder is not empty.
        ResourceError: If the folder cannot be written.
    """
    is_plain = all(getattr(data, key) == DataConfig.model_fields[key].default for key in _READING)
    with disk_errors(folder.parent), stage_folder(folder) as staging:
        make_ignored_folder(staging)
        for name, file in sources.items():
            # Keep the format if bertkit can write it as it was read. Otherwise write JSON lines, which fit any row.
            ending = guess_format(file.name)[1].removesuffix(".gz")
            copy = staging / f"{name}{ending if ending in _SAME_FORMAT and is_plain else '.jsonl'}"
            if file.suffix == copy.suffix == ".parquet":
                copy_parquet(file, copy, _find_remaining(file, removable))
            else:
                remaining = (
                    record
                    for line, record in read_records(file, data)
                    if place_row(name_source(file), line, record) not in removable
                )
                write_records(remaining, copy, follow_source(PLAIN, copy, file, data))
    return dict(Counter(removable.values()))


def _find_remaining(file: Path, left_out: Collection[RowLocation]) -> Sequence[bool]:
    """Return for each row of a Parquet file whether it stays; rows are counted from 1."""
    from pyarrow import parquet

    rows = range(1, parquet.ParquetFile(file).metadata.num_rows + 1)
    return [RowLocation(name_source(file), row) not in left_out for row in rows]

"""Write cleaned copies of the files of a dataset, without repeated and incomplete rows; other rows are unchanged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from bertkit.checks.repeats import Repeats
from bertkit.data.files import guess_format, read_records
from bertkit.data.output import DEFAULT_LAYOUT, copy_parquet, follow_source, write_records
from bertkit.data.remote import name_source
from bertkit.data.rows import NO_LABEL, NO_TEXT, RowLocation, Split, locate_row
from bertkit.data.sources import find_single_file, find_split_files
from bertkit.errors import DataError, UsageError
from bertkit.recipe.records import DataConfig
from bertkit.storage.files import disk_errors, make_ignored_folder
from bertkit.storage.outputs import check_empty, stage_folder

_SAME_FORMAT = (".csv", ".tsv", ".jsonl", ".parquet")
_REMOVABLE = {NO_TEXT: "rows with an empty text", NO_LABEL: "rows without a label"}
_READ_SETTINGS = ("format", "header", "delimiter", "quoting", "encoding")

Removable = dict[RowLocation, str]
"""Location of a row to remove -> reason."""


def find_sources(data: DataConfig, folder: Path) -> dict[str, Path]:
    """Return the files to copy, by the name of the copy without its ending.

    Raises:
        UsageError: If the folder is not empty, the data is not in files, a split has several files, or ``data.limit``
            is set.
    """
    check_empty(folder)
    if data.limit is not None:
        raise UsageError("--fix with --limit", "leave the limit out: only checked rows can be removed")
    if file := find_single_file(data) if data.source != "demo" else None:
        return {file.name.partition(".")[0]: file}
    files = None if data.source == "demo" or not data.source else find_split_files(data)
    if files is None:
        raise UsageError(
            f"--fix needs files, not {data.source or 'a recipe without data'}", "save the rows to files first"
        )
    for split, paths in files.items():
        if len(paths) > 1:
            raise UsageError(f"--fix: the {split} split has {len(paths)} files", "join them first", file=paths[0])
    return {data.splits.get(split, split): paths[0] for split, paths in files.items()}


def find_removable(splits: Mapping[str, Split], repeats: Repeats, errors: Iterable[DataError]) -> Removable:
    """Find the rows to remove: rows without a text or a label, and training rows that repeat others."""
    reasons = {RowLocation(str(error.file), error.row): _REMOVABLE.get(error.message) for error in errors}
    removable = {location: reason for location, reason in reasons.items() if reason}
    train = splits["train"]
    for indices, reason in (
        (repeats.repeated_rows, "training rows that repeat an earlier row"),
        (repeats.leaked_rows, "training rows that are also in another split"),
    ):
        # Only training rows are removed, and the first of several equal rows stays.
        removable |= dict.fromkeys(map(train.locate, indices), reason)
    return removable


def write_copies(sources: Mapping[str, Path], data: DataConfig, removable: Removable, folder: Path) -> dict[str, int]:
    """Write all files without the removable rows, atomically, and return reason -> number of removed rows.

    A copy has the format, the delimiter and the encoding of the original, or is .jsonl if bertkit cannot write that
    format.
    The caller holds `lock_output_folder`.

    Raises:
        UsageError: If the folder is not empty.
        ResourceError: If the folder cannot be written.
    """
    is_plain = all(getattr(data, key) == DataConfig.model_fields[key].default for key in _READ_SETTINGS)
    with disk_errors(folder.parent), stage_folder(folder) as staging_folder:
        make_ignored_folder(staging_folder)
        for name, file in sources.items():
            # JSON Lines can hold any row. It is used if bertkit cannot write the format of the original.
            ending = guess_format(file.name)[1].removesuffix(".gz")
            copy = staging_folder / f"{name}{ending if ending in _SAME_FORMAT and is_plain else '.jsonl'}"
            if file.suffix == copy.suffix == ".parquet":
                copy_parquet(file, copy, _find_kept_rows(file, removable))
            else:
                remaining = (
                    record
                    for line, record in read_records(file, data)
                    if locate_row(name_source(file), line, record) not in removable
                )
                write_records(remaining, copy, follow_source(DEFAULT_LAYOUT, copy, file, data))
    return dict(Counter(removable.values()))


def _find_kept_rows(file: Path, removable: Collection[RowLocation]) -> Sequence[bool]:
    """Return whether each row of a Parquet file stays."""
    from pyarrow import parquet

    rows = range(1, parquet.ParquetFile(file).metadata.num_rows + 1)
    return [RowLocation(name_source(file), row) not in removable for row in rows]

"""Arrow streams, as `Dataset.save_to_disk` writes them: a file, or the folder of a data set."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from bertkit.data.formats import Format
from bertkit.data.formats.parquet import name_batches
from bertkit.data.text import Record, Source, require_path
from bertkit.errors import DataError
from bertkit.recipe.records import Data

_STATE = "state.json"


def read(source: Source, data: Data, name: str) -> Iterator[Record]:
    """Yield the rows of a file, or of the files that a folder's ``state.json`` lists, as those of Parquet are read.

    Raises:
        DataError: it is not such a file, a damaged one, or one without rows.
        UsageError: the source is standard input.
    """
    return _read_rows(require_path(source, "Arrow"))


def _read_rows(path: Path) -> Iterator[Record]:
    import pyarrow

    row = 0
    try:
        files = [path]
        if path.is_dir():
            state = json.loads((path / _STATE).read_text(encoding="utf-8"))
            files = [path / entry["filename"] for entry in state["_data_files"]]
        batches = chain.from_iterable(map(_read_batches, files))
        with pyarrow.OSFile(str(files[0])) as stream:
            schema = pyarrow.ipc.open_stream(stream).schema
        for row, record in name_batches(schema, batches, path):
            yield row, record
    except (pyarrow.ArrowException, OSError, ValueError, RecursionError, LookupError, TypeError) as error:
        what, remedy = "not an Arrow stream, or a damaged one", "save it again with Dataset.save_to_disk"
        raise DataError(what, remedy, file=path, row=row + 1 if row else None) from error
    if row == 0:
        raise DataError("the file has columns but no rows", "add rows", file=path)


def _read_batches(file: Path) -> Iterator[Any]:
    import pyarrow

    with pyarrow.OSFile(str(file)) as stream:
        for batch in pyarrow.ipc.open_stream(stream):
            # Arrow trusts offsets and lengths: to read a damaged one could end the process
            batch.validate(full=True)
            yield batch


FORMAT = Format("arrow", read, endings=(".arrow",), magic=b"\xff\xff\xff\xff", folder=_STATE)

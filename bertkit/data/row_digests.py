"""Digests of what a model reads of its rows: they draw those to hold out, and tell those that a run was trained on."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.data.rows import Split, feed_row
from bertkit.errors import ModelError
from bertkit.recipe import Row
from bertkit.storage import runs
from bertkit.storage.files import write_bytes

if TYPE_CHECKING:
    import numpy as np

    Digests = np.ndarray[Any, np.dtype[np.uint64]]

_KEY = b"bertkit hold-out"  # with another key, other rows would be held out


def digest_text(row: Row, gold: str) -> bytes:
    """Return a digest of what a model reads of a row: all but its gold answer and its id."""
    digest = hashlib.blake2b(key=_KEY, digest_size=16)
    feed_row(digest, {name: value for name, value in row.items() if name not in (gold, "id")})
    return digest.digest()


def digest_rows(rows: Iterable[Row], gold: str) -> Digests:
    """Return the digests of rows; the half of each that is kept is unique among billions of texts."""
    import numpy as np

    return np.fromiter((int.from_bytes(digest_text(row, gold)[:8], "little") for row in rows), dtype="<u8")


def mark_training_rows(split: Split, gold: str, trained: Digests) -> Split:
    """Return a split that knows which of its rows have one of the digests."""
    import numpy as np

    seen = np.isin(digest_rows(split.rows, gold), trained)
    return replace(split, training_rows=frozenset(np.flatnonzero(seen).tolist()))


def write_digests(folder: Path, trained: Digests) -> None:
    """Write the digests of the rows that a run is trained on into its folder: sorted, eight bytes each."""
    import numpy as np

    content = io.BytesIO()
    np.save(content, np.unique(trained), allow_pickle=False)
    write_bytes(folder / runs.TRAINING_ROWS, content.getvalue())


def read_digests(folder: Path) -> Digests | None:
    """Read the digests of a run, or of the run that a checkpoint belongs to; None where there are none.

    Raises:
        ModelError: the file is damaged.
    """
    import numpy as np

    folder = folder.resolve()
    file = (folder.parent if folder.name.startswith("checkpoint-") else folder) / runs.TRAINING_ROWS
    if not file.is_file():
        return None
    try:
        with file.open("rb") as stream:
            digests: Digests = np.lib.format.read_array(stream, allow_pickle=False)
        return digests
    except ValueError:
        remedy = "restore the file or delete it"
        raise ModelError("the digests of the training rows are damaged", remedy, file=file) from None

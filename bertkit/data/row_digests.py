"""Digests of what a model reads of its rows: they draw those to hold out, and tell those that a run was trained on."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from bertkit.data.rows import Split, feed_row
from bertkit.data.text import normalize
from bertkit.errors import ModelError
from bertkit.recipe import Row
from bertkit.storage import runs
from bertkit.storage.files import write_bytes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Digests: TypeAlias = "NDArray[np.uint64]"
"""Two numbers per row of a run, (rows, 2): for it as it is, and without case, white space and Unicode forms."""

_KEY = b"bertkit hold-out"  # with another key, other rows would be held out


def digest_text(row: Row, gold: str) -> bytes:
    """Return a digest of what a model reads of a row: all but its gold answer and its id."""
    digest = hashlib.blake2b(key=_KEY, digest_size=16)
    feed_row(digest, without_answer(row, gold))
    return digest.digest()


def without_answer(row: Row, gold: str) -> Row:
    """Return what a model reads of a row: all but its gold answer and its id."""
    # The words of a text follow from it, and its spans are gold.
    left_out = (gold, "id", "tokens", "offsets", "spans", "left_out_spans") if "offsets" in row else (gold, "id")
    return {name: value for name, value in row.items() if name not in left_out}


def digest_rows(rows: Iterable[Row], gold: str) -> Digests:
    """Return the digests of rows; the half of each that is kept is unique among billions of texts."""
    import numpy as np

    return np.fromiter((int.from_bytes(digest_text(row, gold)[:8], "little") for row in rows), dtype="<u8")


def digest_trained(rows: Iterable[Row], gold: str) -> Digests:
    """Return two digests of each row that a run is trained on, (rows, 2); see `Digests`."""
    both = digest_rows((version for row in rows for version in (row, _fold_texts(row))), gold)
    return both.reshape(-1, 2)


def _fold_texts(value: object) -> Any:
    """Return a row without what case, white space and forms of Unicode add to its texts."""
    if isinstance(value, dict):
        return {name: _fold_texts(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_fold_texts(part) for part in value]
    return normalize(value) if isinstance(value, str) else value


def mark_training_rows(split: Split, gold: str, trained: Digests) -> Split:
    """Return a split that knows which of its rows have one of the digests, and how many only the second of two."""
    import numpy as np

    digests = digest_trained(split.rows, gold)
    is_same, is_alike = (np.isin(digests[:, column], trained[:, column]) for column in (0, 1))
    seen = np.flatnonzero(is_same | is_alike).tolist()
    return replace(split, training_rows=frozenset(seen), nearly_trained=int((~is_same & is_alike).sum()))


def write_digests(folder: Path, trained: Digests) -> None:
    """Write the digests of the rows that a run is trained on into its folder: sorted, eight bytes each."""
    import numpy as np

    content = io.BytesIO()
    np.save(content, unique_digests(trained), allow_pickle=False)
    write_bytes(folder / runs.TRAINING_ROWS, content.getvalue())


def unique_digests(trained: Digests) -> Digests:
    """Return digests sorted and without repetition: `numpy.unique` of rows takes several times as long and as much."""
    import numpy as np

    ordered = trained[np.lexsort((trained[:, 1], trained[:, 0]))]
    is_new = np.append(True, (ordered[1:] != ordered[:-1]).any(axis=1))[: len(ordered)]
    return np.asarray(ordered[is_new])


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
            return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))
    except ValueError:
        remedy = "restore the file or delete it"
        raise ModelError("the digests of the training rows are damaged", remedy, file=file) from None

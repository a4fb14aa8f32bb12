"""The same number of training rows of each label, drawn by their content and a seed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from bertkit.data.rows import Split, feed_row
from bertkit.errors import DataError


def draw_per_label(split: Split, gold: str, labels: Sequence[str], count: int, seed: int) -> Split:
    """Return `count` rows of each label, in the order that they have in the split.

    A row is drawn by a hash of its content and the seed. So the order of a file does not matter, and with one seed a
    larger draw has the rows of a smaller one.

    Raises:
        DataError: a label has fewer rows, or a row has several labels.
    """
    by_label: dict[str, list[tuple[bytes, int]]] = {label: [] for label in labels}
    for index, row in enumerate(split.rows):
        if isinstance(row[gold], (list, tuple)):
            what = "data.per_class draws rows by their label, and this row has several"
            raise DataError(what, "leave data.per_class out", file=split.source, row=split.lines[index], column=gold)
        digest = hashlib.blake2b(str(seed).encode(), digest_size=16)
        feed_row(digest, {name: value for name, value in row.items() if name != "id"})
        by_label[row[gold]].append((digest.digest(), index))
    for label, rows in by_label.items():
        if len(rows) < count:
            what = f"data.per_class is {count}, and the label {label!r} has {len(rows)} training rows"
            raise DataError(what, "lower data.per_class, or add rows", file=split.source)
    return split.select(sorted(index for rows in by_label.values() for _, index in sorted(rows)[:count]))

"""The rows that probes learn from and are scored on: two splits that share no text, drawn by their content."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bertkit.data.row_digests import digest_text
from bertkit.data.rows import Split
from bertkit.data.sources import is_validation
from bertkit.errors import DataError
from bertkit.recipe import Row

_SHARE = 2  # of training rows, one of so many is scored at most


def is_needed(split: str) -> bool:
    """Tell whether probes learn from a split, or are scored on it."""
    return split == "train" or is_validation(split)


def choose_rows(
    splits: Mapping[str, Split], inputs: Callable[[Row], Row], limit: int
) -> tuple[list[Row], list[Row], list[str]]:
    """Return training rows, held-out rows and what there is to say of them.

    Rows are drawn by a hash of what a model reads of them, so that neither the order of a file nor a seed decides, and
    two tasks on the same words have the same rows. A training row that is held out too is left out.

    Args:
        splits: ``train``, and one that validates.
        inputs: returns what a model reads of a row.
        limit: so many training rows at most, and half as many held-out ones.

    Raises:
        DataError: one of the two is missing, or has no rows.
    """
    validation = next((split for name, split in splits.items() if is_validation(name)), None)
    if "train" not in splits or validation is None:
        what = f"probes need rows to learn from and others to be scored on; there is {', '.join(splits) or 'no split'}"
        raise DataError(what, "name them, e.g. --set 'data.files={train: a.jsonl, validation: b.jsonl}'")
    held_out = _draw_rows(validation, inputs, max(limit // _SHARE, 1))
    theirs = {digest_text(inputs(row), "") for row in held_out}
    train = splits["train"]
    new_rows = [number for number, row in enumerate(train.rows) if digest_text(inputs(row), "") not in theirs]
    notes = []
    if len(new_rows) < len(train.rows):
        notes.append(f"training rows whose text is held out too, left out: {len(train.rows) - len(new_rows):,}")
    return _draw_rows(train.select(new_rows), inputs, limit), held_out, notes


def _draw_rows(split: Split, inputs: Callable[[Row], Row], count: int) -> list[Row]:
    order = sorted(range(len(split.rows)), key=lambda number: digest_text(inputs(split.rows[number]), ""))
    return [split.rows[number] for number in sorted(order[:count])]

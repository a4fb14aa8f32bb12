"""Rows that are held out for validation where a source has no such split: drawn by their content, label by label."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from bertkit.data.labels import spelled_names
from bertkit.data.row_digests import digest_text
from bertkit.data.rows import Split
from bertkit.errors import DataError
from bertkit.recipe import Row

log = logging.getLogger("bertkit")

HOLD_OUT = "by text and label"
"""How rows are drawn; a run keeps it in its identity, so that no run is resumed or scored with other rows."""


@dataclass(frozen=True)
class _Group:
    """The rows with one text, which stay together: their indices, their draw, and how many have each label."""

    rows: list[int]
    draw: bytes
    labels: Counter[str]


def hold_out(split: Split, share: float, gold: str, *, named: bool, together: Sequence[str] = ()) -> dict[str, Split]:
    """Split rows into ``train`` and ``validation``, which holds a share of them.

    A row is drawn by a hash of its text, so that neither order nor limit nor seed decides. Rows with one text are on
    one side, each label gives up its share of rows, and a larger share holds out the same rows and more. A label never
    leaves training.

    Args:
        split: the rows.
        share: of them to hold out.
        gold: the column of gold answers, which is no part of the text.
        named: whether gold answers are label names, or lists of them.
        together: columns that stand for the text, such as the query of several passages.

    Raises:
        DataError: no row can be held out.
    """
    count = len(split.rows)
    if count < 2:
        what = "one row cannot be split into training and validation"
        raise DataError(what, "give more rows", file=split.source)
    groups = _group_by_text(split.rows, gold, named, together)
    held_out = set(_choose(groups, min(max(1, round(count * share)), count - 1)))
    if not held_out:
        what = "no row can be held out: each text is the only one of its label" if len(groups) > 1 else "one text only"
        raise DataError(
            what, "check which column holds the labels, give more rows, or name a validation file", file=split.source
        )
    log.info(f"no validation split: {len(held_out):,} of {count:,} rows of {split.source} are held out for it")
    train = [index for index in range(count) if index not in held_out]
    return {
        name: replace(split.select(indices), name=name, is_held_out=True)
        for name, indices in (("train", train), ("validation", sorted(held_out)))
    }


def _group_by_text(rows: Sequence[Row], gold: str, named: bool, together: Sequence[str]) -> list[_Group]:
    groups: dict[bytes, _Group] = {}
    for index, row in enumerate(rows):
        draw = digest_text({name: row[name] for name in together or row}, gold)
        group = groups.setdefault(draw, _Group([], draw, Counter()))
        group.rows.append(index)
        group.labels.update(set(spelled_names(row.get(gold))) if named else ())
    return list(groups.values())


def _choose(groups: Sequence[_Group], count: int) -> Iterator[int]:
    """Yield the indices of at least `count` rows to hold out, whole groups of them."""
    left = Counter(label for group in groups for label in group.labels.elements())
    kept: set[str] = set()
    rest, chosen = len(groups), 0
    for group in _in_order(groups, left.copy()):
        if chosen >= count or rest == 1:
            break
        last = {label for label, rows in group.labels.items() if left[label] == rows}
        if last:
            kept |= last
            continue
        left -= group.labels
        rest, chosen = rest - 1, chosen + len(group.rows)
        yield from group.rows
    if kept:
        names = ", ".join(sorted(kept)[:5]) + (", ..." if len(kept) > 5 else "")
        log.info(f"fewer rows of {names} are held out: a label never leaves training")


def _in_order(groups: Sequence[_Group], rows_of: Counter[str]) -> Iterable[_Group]:
    """Order groups so that the first of them are an even share of each label (of a row's labels, its rarest)."""
    strata: dict[str, list[_Group]] = {}
    for group in groups:
        rarest = min(group.labels, key=lambda label: (rows_of[label], label), default="")
        strata.setdefault(rarest, []).append(group)
    placed = []
    for stratum in strata.values():
        total, before = sum(len(group.rows) for group in stratum), 0
        for group in sorted(stratum, key=lambda group: group.draw):
            # The middle of a group, as a share of its label's rows. Cut at any share, an ordered list of all groups has
            # given up about that share of each label (the divisor method of Webster and Sainte-Laguë).
            placed.append(((before + len(group.rows) / 2) / total, group.draw, group))
            before += len(group.rows)
    return [group for _, _, group in sorted(placed, key=lambda entry: entry[:2])]

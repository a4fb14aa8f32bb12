"""Rows drawn by their content: held out where there is no validation split; fewer for training, or rare ones again."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice

from bertkit.data.checks import share_of
from bertkit.data.labels import spelled_names
from bertkit.data.row_digests import digest_text
from bertkit.data.rows import Columns, Split, feed_row
from bertkit.errors import DataError, RecipeError, closest
from bertkit.recipe import Data, Recipe, Row
from bertkit.storage.cache import say_once

DRAWS = {"by_hash": "by hash of text", "by_label": "by text and label"}
"""``data.hold_out`` -> what a run calls it in its identity, so that no run is resumed or scored with other rows."""


@dataclass(frozen=True)
class _Group:
    """The rows with one text, which stay together: their indices, their draw, and how many have each label."""

    rows: list[int]
    draw: bytes
    labels: Counter[str]


def hold_out(split: Split, data: Data, columns: Columns, *, named: bool) -> dict[str, Split]:
    """Split rows into ``train`` and ``validation``, which holds about a share of them (``data.validation_share``).

    A row is drawn by a hash of its text, so that neither order nor limit nor seed decides. Rows with one text are on
    one side, and a larger share holds out the same rows and more. A label never leaves training.

    ``data.hold_out`` says which rows. `by_hash`: those whose hash, as a number from 0 to 1, is below the share, and at
    least one. So no row changes sides when others join it, but the share is met only about. `by_label`: an even share
    of each label, to the row. Each row that joins may move others.

    Args:
        split: the rows.
        data: how many to hold out, and how.
        columns: those of the task family.
        named: whether gold answers are label names, or lists of them.

    Raises:
        DataError: no row can be held out.
    """
    count = len(split.rows)
    if count < 2:
        what = "one row cannot be split into training and validation"
        raise DataError(what, "give more rows", file=split.source)
    groups = _group_by_text(split.rows, columns, named)
    held_out = set(_choose_rows(groups, data, count))
    if not held_out:
        what = "no row can be held out: each text is the only one of its label" if len(groups) > 1 else "one text only"
        remedy = "check which column holds the labels, give more rows, or name a validation file"
        raise DataError(what, remedy, file=split.source)
    say_once(f"no validation split: {share_of(len(held_out), count)} rows of {split.source} are held out for it")
    train = [index for index in range(count) if index not in held_out]
    return {
        name: replace(split.select(indices), name=name, is_held_out=True)
        for name, indices in (("train", train), ("validation", sorted(held_out)))
    }


def _group_by_text(rows: Sequence[Row], columns: Columns, named: bool) -> list[_Group]:
    groups: dict[bytes, _Group] = {}
    for index, row in enumerate(rows):
        # Equal texts stay together: one of them in training would tell the other's answer.
        names = columns.together or [name for name in row if name not in columns.beside]
        draw = digest_text({name: row[name] for name in names}, columns.gold)
        group = groups.setdefault(draw, _Group([], draw, Counter()))
        group.rows.append(index)
        group.labels.update(set(spelled_names(row.get(columns.gold))) if named else ())
    return list(groups.values())


def _choose_rows(groups: Sequence[_Group], data: Data, count: int) -> Iterator[int]:
    """Yield the indices of rows to hold out, whole groups of them."""
    left = Counter(label for group in groups for label in group.labels.elements())
    by_hash, share = data.hold_out == "by_hash", data.validation_share
    ordered = sorted(groups, key=lambda group: group.draw) if by_hash else _in_order(groups, left.copy())
    most = min(max(1, round(count * share)), count - 1)
    kept_labels: set[str] = set()
    rest, chosen = len(groups), 0
    for group in ordered:
        # By hash, a text is held out whatever other rows there are; by label, until the share is reached.
        is_enough = chosen > 0 and _as_share(group.draw) >= share if by_hash else chosen >= most
        if is_enough or rest == 1:
            break
        # A label must stay in training: what is never trained is never predicted.
        last = {label for label, rows in group.labels.items() if left[label] == rows}
        if last:
            kept_labels |= last
            continue
        left -= group.labels
        rest, chosen = rest - 1, chosen + len(group.rows)
        yield from group.rows
    if kept_labels:
        names = ", ".join(sorted(kept_labels)[:5]) + (
            f" and {len(kept_labels) - 5:,} more" if len(kept_labels) > 5 else ""
        )
        say_once(f"all {len(left):,} labels are in training, so fewer rows of {names} are held out")


def _as_share(draw: bytes) -> float:
    """Return a draw as a number from 0 to 1; all draws are spread evenly between them."""
    return float(int.from_bytes(draw, "big") / (1 << 8 * len(draw)))


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


def check_draw(recipe: Recipe, columns: Columns, *, named: bool) -> None:
    """Check that rows can be drawn where the recipe draws some; `named` says whether their gold values are labels.

    Raises:
        RecipeError: they cannot.
    """
    data = recipe.data
    drawn = [key for key in ("per_class", "train_limit", "oversample") if getattr(data, key)]
    if data.streaming and drawn:
        what = f"data.{drawn[0]} draws from all training rows, and a stream is not known whole"
        raise RecipeError(what, "leave it out")
    if data.oversample and data.oversample not in columns.names:
        what = f"data.oversample: the rows have no canonical column {data.oversample!r}"
        raise RecipeError(what, closest(data.oversample, columns.names))
    if data.per_class and not named:
        what = f"data.per_class draws rows by their label, and the rows of {recipe.task} have no labels"
        raise RecipeError(what, f"data.train_limit draws any: --set data.train_limit={data.per_class}")


def draw_training_rows(split: Split, recipe: Recipe, gold: str = "", labels: Sequence[str] = ()) -> Split:
    """Return the training rows that the recipe draws, or all of them; raises what the functions below do."""
    data, seed = recipe.data, recipe.training.seed
    if data.per_class:
        return draw_per_label(split, gold, labels, data.per_class, seed)
    return draw_rows(split, data.train_limit, seed) if data.train_limit else split


def draw_rows(split: Split, count: int, seed: int) -> Split:
    """Return `count` rows in the order that they have in the split; see `draw_per_label` for which.

    Raises:
        DataError: the split has fewer.
    """
    if count > len(split.rows):
        what = f"data.train_limit is {count:,}, and there are {len(split.rows):,} training rows"
        raise DataError(what, "lower data.train_limit, or add rows", file=split.source)
    return split.select(sorted(_shuffle_rows(split, seed)[:count]))


def draw_per_label(split: Split, gold: str, labels: Sequence[str], count: int, seed: int) -> Split:
    """Return `count` rows of each label, in the order that they have in the split.

    A row is drawn by a hash of its content and the seed. So the order of a file does not matter, and with one seed a
    larger draw has the rows of a smaller one.

    Raises:
        DataError: a label has fewer rows, or a row has several labels.
    """
    by_label: dict[str, list[int]] = {label: [] for label in labels}
    for index in _shuffle_rows(split, seed):
        label = split.rows[index][gold]
        if isinstance(label, (list, tuple)):
            what = "data.per_class draws rows by their label, and this row has several"
            raise DataError(what, "data.train_limit draws any", file=split.source, row=split.lines[index], column=gold)
        by_label[label].append(index)
    for label, rows in by_label.items():
        if len(rows) < count:
            what = f"data.per_class is {count}, and the label {label!r} has {len(rows)} training rows"
            raise DataError(what, "lower data.per_class, or add rows", file=split.source)
    return split.select(sorted(index for rows in by_label.values() for index in rows[:count]))


def oversample(split: Split, recipe: Recipe) -> Split:
    """Return the rows with those of rare values in `data.oversample` repeated: each value has as many in the end.

    Of values with 4, 2 and 3 rows, each row of the second comes twice, and one of the third.

    Raises:
        DataError: a row has a list there.
    """
    if not (column := recipe.data.oversample):
        return split
    by_value: dict[str, list[int]] = {}
    for index in _shuffle_rows(split, recipe.training.seed):
        value = split.rows[index].get(column)
        if isinstance(value, (list, tuple)):
            what = "data.oversample counts rows by one value, and this row has a list"
            raise DataError(what, "leave it out", file=split.source, row=split.lines[index], column=column)
        by_value.setdefault(str(value), []).append(index)
    most = max(map(len, by_value.values()))
    repeated = split.select(sorted(index for rows in by_value.values() for index in islice(cycle(rows), most)))
    say_once(f"data.oversample: {len(split.rows):,} training rows, {len(repeated.rows):,} with those that are repeated")
    return repeated


def _shuffle_rows(split: Split, seed: int) -> list[int]:
    """Return the indices of the rows in the order of a hash of their content and the seed."""
    digests = []
    for row in split.rows:
        digest = hashlib.blake2b(str(seed).encode(), digest_size=16)
        feed_row(digest, {name: value for name, value in row.items() if name != "id"})
        digests.append(digest.digest())
    return sorted(range(len(digests)), key=digests.__getitem__)

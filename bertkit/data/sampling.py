"""Draw rows by their content: hold out validation rows, limit the training rows, or repeat rows with rare values."""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import TYPE_CHECKING

from bertkit.data.checks import format_fraction
from bertkit.data.columns import SOFT_LABELS, ColumnSpec
from bertkit.data.labels import labels_to_strs
from bertkit.data.rows import Split, digest_text, update_hash
from bertkit.errors import DataError, RecipeError, did_you_mean
from bertkit.recipe.records import DataConfig, Recipe
from bertkit.recipe.sections import Row
from bertkit.storage.cache import log_once

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class _Groups:
    """Groups of rows with the same text, which stay in one split, in the order of their draws.

    For rows with the draws 7, 3, 7, `order` is 1, 0, 2 and `starts` is 0, 1, 3.
    """

    draws: np.ndarray
    """Draw of each row, two 64-bit integers, (rows, 2)."""
    order: np.ndarray
    """Indices of the rows, group by group, (rows,)."""
    starts: np.ndarray
    """Start of each group in `order`, and the end of the last group, (groups + 1,)."""
    names: np.ndarray
    """Index in `sets` of the labels of each row, (rows,)."""
    sets: Sequence[frozenset[str]]

    def __len__(self) -> int:
        return len(self.starts) - 1

    def rows(self, group: int) -> np.ndarray:
        """Return the indices of the rows of a group, in order."""
        return self.order[self.starts[group] : self.starts[group + 1]]

    def labels(self, group: int) -> Counter[str]:
        """Count the rows of a group that have each label."""
        return Counter(label for names in self.names[self.rows(group)] for label in self.sets[names])

    def share(self, group: int) -> float:
        """Return the draw of a group as a number from 0 to 1; the draws are distributed uniformly."""
        # All rows of a group have the same draw, so the first row is enough.
        high, low = self.draws[self.order[self.starts[group]]].tolist()
        return float((high << 64 | low) / (1 << 128))


def hold_out(split: Split, data: DataConfig, columns: ColumnSpec, *, named: bool) -> dict[str, Split]:
    """Split rows into ``train`` and ``validation``, which has about ``data.validation_fraction`` of them.

    A row is drawn by a hash of its text, so the draw does not depend on the order, the limit or the seed. Rows with the
    same text stay in one split, and a larger fraction holds out the same rows and more. Each label keeps training rows.

    ``data.hold_out`` is the method. `by_hash` holds out rows whose hash, as a number from 0 to 1, is below the
    fraction, and at least one row. New rows move no other row, but the fraction is only approximate. `by_label` holds
    out the same exact fraction of each label, but new rows may move other rows.

    Args:
        split: Rows to split.
        data: Settings with the fraction and the method.
        columns: Columns of the task family.
        named: Whether gold answers are label names, or lists of them.

    Raises:
        DataError: If no row can be held out.
    """
    import numpy as np

    count = len(split.rows)
    if count < 2:
        message = "one row cannot be split into training and validation"
        raise DataError(message, "give more rows", file=split.source)
    groups = _group_by_text(split.rows, columns, named)
    is_held_out = np.zeros(count, dtype=bool)
    for group in _choose_groups(groups, data, count):
        is_held_out[groups.rows(group)] = True
    if not is_held_out.any():
        message = "no row can be held out: each text is the only one with its label"
        if len(groups) == 1:
            message = "no row can be held out: all rows have the same text"
        remedy = "check which column holds the labels, give more rows, or name a validation file"
        raise DataError(message, remedy, file=split.source)
    fraction = format_fraction(int(is_held_out.sum()), count)
    log_once(f"{fraction} rows of {split.source} are held out for validation, because it has no such split")
    return {
        name: replace(split.select(np.flatnonzero(is_in).tolist()), name=name, is_held_out=True)
        for name, is_in in (("train", ~is_held_out), ("validation", is_held_out))
    }


def _group_by_text(rows: Sequence[Row], columns: ColumnSpec, named: bool) -> _Groups:
    import numpy as np

    index_by_set: dict[frozenset[str], int] = {}
    names = array("q")

    def draw(row: Row) -> bytes:
        label_set = frozenset(labels_to_strs(row.get(columns.gold)) if named else ())
        names.append(index_by_set.setdefault(label_set, len(index_by_set)))
        # Equal texts stay together, because a copy in the training rows would reveal the answer.
        read = columns.groups or [name for name in row if name not in columns.extra]
        return digest_text({name: row[name] for name in read}, columns.gold)

    draws, order = _order_digests(map(draw, rows))
    # A group starts where the draw differs from the draw before it. The inverted bits of the first draw precede it, so
    # that the first row always starts a group.
    starts = np.flatnonzero(np.diff(draws[order], axis=0, prepend=~draws[order[:1]]).any(axis=1))
    return _Groups(draws, order, np.append(starts, len(order)), np.array(names), list(index_by_set))


def _order_digests(digests: Iterable[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Return digests of 16 bytes as two numbers each, (rows, 2), and the indices that sort them, (rows,)."""
    import numpy as np

    # Bytes take 16 per row. A Python integer of 128 bits would take 44.
    content = bytearray()
    for digest in digests:
        content += digest
    halves = np.frombuffer(content, ">u8").astype(np.uint64).reshape(-1, 2)
    # `lexsort` sorts by its last key first, so the high half comes last.
    return halves, np.lexsort((halves[:, 1], halves[:, 0]))


def _choose_groups(groups: _Groups, data: DataConfig, count: int) -> Iterator[int]:
    """Yield the groups to hold out."""
    # 1. Count the rows of each label. At first, all rows are training rows.
    remaining = Counter[str]()
    for index, rows in Counter(groups.names.tolist()).items():
        remaining.update(dict.fromkeys(groups.sets[index], rows))
    by_hash, share = data.hold_out == "by_hash", data.validation_fraction
    # 2. Go through the groups by draw or by label, until the fraction is reached. Each side gets at least one row.
    max_rows = min(max(1, round(count * share)), count - 1)
    kept_labels: set[str] = set()
    rest, held_out = len(groups), 0
    for group in range(len(groups)) if by_hash else _order_by_label(groups, remaining):
        # `by_hash` holds out a text regardless of other rows; `by_label` stops when the fraction is reached.
        is_enough = held_out > 0 and groups.share(group) >= share if by_hash else held_out >= max_rows
        if is_enough or rest == 1:
            break
        # A label without training rows would never be predicted, so its last rows stay.
        labels = groups.labels(group)
        last = {label for label, rows in labels.items() if remaining[label] == rows}
        if last:
            kept_labels |= last
            continue
        remaining.subtract(labels)
        rest, held_out = rest - 1, held_out + len(groups.rows(group))
        yield group
    # 3. Log the labels that could not give rows, because their scores will be missing or uncertain.
    if kept_labels:
        names = ", ".join(sorted(kept_labels)[:5])
        more = f" and {len(kept_labels) - 5:,} more" if len(kept_labels) > 5 else ""
        label = "label" if len(kept_labels) == 1 else "labels"
        log_once(f"few or no validation rows have the {label} {names}{more}: each label must keep rows to train on")


def _order_by_label(groups: _Groups, label_counts: Mapping[str, int]) -> list[int]:
    """Order groups so that any first part has the same fraction of each label; a row counts for its rarest label."""
    import numpy as np

    # The stratum of a group, (groups,), is the rank of its rarest label.
    by_count = sorted(label_counts, key=lambda label: (label_counts[label], label))
    rank = {label: index for index, label in enumerate(by_count)}
    rarest = np.array([min(map(rank.__getitem__, names), default=len(rank)) for names in groups.sets])
    stratum = np.minimum.reduceat(rarest[groups.names[groups.order]], groups.starts[:-1])
    sizes, by_stratum = np.diff(groups.starts), np.argsort(stratum, kind="stable")
    totals = np.bincount(stratum, sizes)
    # `before` counts the rows of earlier groups with the same rarest label.
    before = np.empty(len(groups))
    before[by_stratum] = np.cumsum(sizes[by_stratum]) - sizes[by_stratum]
    before -= (np.cumsum(totals) - totals)[stratum]
    # Order by the middle of a group, as a fraction of its label's rows. Any first part of the ordered groups then has
    # about the same fraction of each label (the divisor method of Webster and Sainte-Laguë). With 4 rows of
    # label x, the middles are 0.125, 0.375, 0.625 and 0.875; with 2 rows of label y, they are 0.25 and 0.75. So the
    # order is x y x x y x.
    order: list[int] = np.argsort((before + sizes / 2) / totals[stratum], kind="stable").tolist()
    return order


def check_draw(recipe: Recipe, columns: ColumnSpec, *, named: bool) -> None:
    """Check that a recipe can draw its training rows.

    Args:
        recipe: Recipe to check.
        columns: Columns of the task family.
        named: Whether gold values are labels.

    Raises:
        RecipeError: If it cannot.
    """
    data = recipe.data
    if data.oversample and data.oversample not in columns.names:
        message = f"data.oversample: the rows have no canonical column {data.oversample!r}"
        raise RecipeError(message, did_you_mean(data.oversample, columns.names))
    if data.train_rows_per_label and not named:
        message = f"data.train_rows_per_label draws rows by their label, and the rows of {recipe.task} have no labels"
        raise RecipeError(message, f"data.train_limit draws any: --set data.train_limit={data.train_rows_per_label}")


def draw_training_rows(split: Split, recipe: Recipe, gold: str = "", labels: Sequence[str] = ()) -> Split:
    """Return the training rows that the recipe draws, or all of them.

    Raises:
        DataError: If there are fewer rows than the recipe draws; see `draw_per_label` and `draw_rows`.
    """
    data, seed = recipe.data, recipe.training.seed
    if data.train_rows_per_label:
        return draw_per_label(split, gold, labels, data.train_rows_per_label, seed)
    return draw_rows(split, data.train_limit, seed) if data.train_limit else split


def draw_rows(split: Split, count: int, seed: int) -> Split:
    """Return `count` rows in the order of the split, drawn as in `draw_per_label`.

    Raises:
        DataError: If the split has fewer rows.
    """
    if count > len(split.rows):
        message = f"data.train_limit is {count:,}, and there are {len(split.rows):,} training rows"
        raise DataError(message, "lower data.train_limit, or add rows", file=split.source)
    return split.select(sorted(_shuffle_rows(split, seed)[:count]))


def draw_per_label(split: Split, gold: str, labels: Sequence[str], count: int, seed: int) -> Split:
    """Return `count` rows of each label, in the order of the split.

    A row is drawn by a hash of its content and the seed. So the order of a file does not matter, and with the same seed
    a larger draw contains a smaller one.

    Raises:
        DataError: If a label has fewer rows, or a row has several labels.
    """
    message = "data.train_rows_per_label draws rows by their label, and this row has several"
    by_label = _shuffle_by_value(split, gold, seed, (message, "data.train_limit draws any"))
    for label in labels:
        if len(by_label[label]) < count:
            available = f"the label {label!r} has {len(by_label[label])} training rows"
            message = f"data.train_rows_per_label is {count}, and {available}"
            raise DataError(message, "lower data.train_rows_per_label, or add rows", file=split.source)
    return split.select(sorted(index for label in labels for index in by_label[label][:count]))


def oversample(split: Split, column: str, seed: int) -> Split:
    """Repeat the rows with rare values of a column until all values have the same number of rows.

    For values with 4, 2 and 3 rows, each row of the second is repeated once, and one row of the third.

    Raises:
        DataError: If a row has a list in this column.
    """
    message = "data.oversample counts rows by one value, and this row has a list"
    by_value = _shuffle_by_value(split, column, seed, (message, "leave it out"))
    # `cycle` goes through the shuffled rows of a value, so the numbers of copies of its rows differ by at most one.
    max_rows = max(map(len, by_value.values()))
    repeated = split.select(sorted(index for rows in by_value.values() for index in islice(cycle(rows), max_rows)))
    log_once(f"data.oversample: {len(split.rows):,} training rows, {len(repeated.rows):,} with repeated rows")
    return repeated


def _shuffle_by_value(split: Split, column: str, seed: int, refusal: tuple[str, str]) -> dict[str, list[int]]:
    """Return value -> indices of its rows, in the order of `_shuffle_rows`; raise the error for a list."""
    by_value = defaultdict[str, list[int]](list)
    values = list(split.column(column))
    for index in _shuffle_rows(split, seed):
        if isinstance(values[index], (list, tuple)):
            raise DataError(*refusal, **split.locate(index)._asdict(), column=column)
        by_value[str(values[index])].append(index)
    return by_value


def _shuffle_rows(split: Split, seed: int) -> list[int]:
    """Return the indices of the rows in the order of a hash of their content and the seed."""

    def digest(row: Row) -> bytes:
        hashed = hashlib.blake2b(str(seed).encode(), digest_size=16)
        # The id may be the position in the file, and the order of the file must not matter. Soft labels must not
        # matter either, so that a run without them draws the same rows.
        update_hash(hashed, {name: value for name, value in row.items() if name not in ("id", SOFT_LABELS)})
        return hashed.digest()

    order: list[int] = _order_digests(map(digest, split.rows))[1].tolist()
    return order

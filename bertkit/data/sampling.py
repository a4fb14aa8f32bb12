"""Draw rows by a hash of their content: hold out validation rows, draw training rows, or repeat rare rows."""

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
    """Groups of rows with the same text, which must stay in one split, in the order of their digests.

    For rows with the digests 7, 3, 7, `order` is 1, 0, 2 and `starts` is 0, 1, 3.
    """

    digests: np.ndarray
    """Digest of each row as two 64-bit integers. Shape: (rows, 2)."""
    order: np.ndarray
    """Indices of the rows, group by group. Shape: (rows,)."""
    starts: np.ndarray
    """Start of each group in `order`, and the end of the last group. Shape: (groups + 1,)."""
    label_set_ids: np.ndarray
    """Index in `label_sets` of each row's labels. Shape: (rows,)."""
    label_sets: Sequence[frozenset[str]]
    """Different sets of labels that rows have."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    def get_rows(self, group: int) -> np.ndarray:
        """Return the indices of the rows of a group."""
        return self.order[self.starts[group] : self.starts[group + 1]]

    def count_labels(self, group: int) -> Counter[str]:
        """Return label -> number of rows of a group with the label."""
        label_set_ids = self.label_set_ids[self.get_rows(group)]
        return Counter(label for index in label_set_ids for label in self.label_sets[index])

    def get_hash_fraction(self, group: int) -> float:
        """Return the digest of a group as a number from 0 to 1; these numbers are distributed uniformly."""
        # All rows of a group have the same digest.
        high, low = self.digests[self.order[self.starts[group]]].tolist()
        return float((high << 64 | low) / (1 << 128))


def hold_out(split: Split, data: DataConfig, columns: ColumnSpec, *, has_label_names: bool) -> dict[str, Split]:
    """Split rows into ``train`` and ``validation``; validation gets about ``data.validation_fraction`` of the rows.

    Rows are drawn by a hash of their text, so the draw does not depend on the order, the limit or the seed. Rows with
    the same text stay in one split. A larger fraction holds out the same rows and more. Each label keeps training rows.

    ``data.hold_out`` selects the method. `by_hash` holds out rows whose hash, as a number from 0 to 1, is below the
    fraction, and at least one row. The fraction is approximate, but new rows never change the split of other rows.
    `by_label` holds out the same exact fraction of each label, but new rows can change the split of other rows.

    Args:
        split: Rows to split.
        data: Settings with the fraction and the method.
        columns: Columns of the task family.
        has_label_names: Whether gold values are label names, or lists of label names.

    Raises:
        DataError: If no row can be held out.
    """
    import numpy as np

    count = len(split.rows)
    if count < 2:
        message = "a single row cannot be divided into training and validation rows"
        raise DataError(message, "add rows", file=split.source)
    groups = _group_by_text(split.rows, columns, has_label_names)
    is_held_out = np.zeros(count, dtype=bool)
    for group in _choose_groups(groups, data, count):
        is_held_out[groups.get_rows(group)] = True
    if not is_held_out.any():
        message = "no row can be held out: each text is the only one with its label"
        if len(groups) == 1:
            message = "no row can be held out: all rows have the same text"
        remedy = "check which column holds the labels, add rows, or name a validation file"
        raise DataError(message, remedy, file=split.source)
    fraction = format_fraction(int(is_held_out.sum()), count)
    log_once(f"{fraction} rows of {split.source} are held out for validation, because it has no such split")
    return {
        name: replace(split.select(np.flatnonzero(is_selected).tolist()), name=name, is_held_out=True)
        for name, is_selected in (("train", ~is_held_out), ("validation", is_held_out))
    }


def _group_by_text(rows: Sequence[Row], columns: ColumnSpec, has_label_names: bool) -> _Groups:
    import numpy as np

    index_by_set: dict[frozenset[str], int] = {}
    label_set_ids = array("q")

    def draw(row: Row) -> bytes:
        label_set = frozenset(labels_to_strs(row.get(columns.gold)) if has_label_names else ())
        label_set_ids.append(index_by_set.setdefault(label_set, len(index_by_set)))
        # Equal texts need equal digests, because a copy in the training rows would reveal the answer.
        column_names = columns.groups or [name for name in row if name not in columns.extra]
        return digest_text({name: row[name] for name in column_names}, columns.gold)

    draws, order = _order_digests(map(draw, rows))
    # A group starts at each digest that differs from the previous one. The first digest is compared with its inverted
    # bits, so it always starts a group.
    starts = np.flatnonzero(np.diff(draws[order], axis=0, prepend=~draws[order[:1]]).any(axis=1))
    return _Groups(draws, order, np.append(starts, len(order)), np.array(label_set_ids), list(index_by_set))


def _order_digests(digests: Iterable[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Return 16-byte digests as pairs of integers, shape (rows, 2), and the indices that sort them, shape (rows,)."""
    import numpy as np

    # This takes 16 bytes per row. A Python integer of 128 bits would take 44.
    content = bytearray()
    for digest in digests:
        content += digest
    halves = np.frombuffer(content, ">u8").astype(np.uint64).reshape(-1, 2)
    # `lexsort` sorts by its last key first, so the high half comes last.
    return halves, np.lexsort((halves[:, 1], halves[:, 0]))


def _choose_groups(groups: _Groups, data: DataConfig, num_rows: int) -> Iterator[int]:
    """Yield the groups to hold out."""
    # 1. Count the training rows of each label. At first, all rows are training rows.
    remaining = Counter[str]()
    for index, rows in Counter(groups.label_set_ids.tolist()).items():
        remaining.update(dict.fromkeys(groups.label_sets[index], rows))
    by_hash, fraction = data.hold_out == "by_hash", data.validation_fraction
    # 2. Hold out groups in the order of digests or labels, until the fraction is reached. Both splits get a row.
    max_rows = min(max(1, round(num_rows * fraction)), num_rows - 1)
    kept_labels: set[str] = set()
    remaining_groups, held_out = len(groups), 0
    for group in range(len(groups)) if by_hash else _order_by_label(groups, remaining):
        # `by_hash` compares each digest with the fraction; `by_label` counts rows.
        is_enough = held_out > 0 and groups.get_hash_fraction(group) >= fraction if by_hash else held_out >= max_rows
        if is_enough or remaining_groups == 1:
            break
        # The last rows of a label stay in training, because a label without training rows is never predicted.
        labels = groups.count_labels(group)
        last_labels = {label for label, rows in labels.items() if remaining[label] == rows}
        if last_labels:
            kept_labels |= last_labels
            continue
        remaining.subtract(labels)
        remaining_groups, held_out = remaining_groups - 1, held_out + len(groups.get_rows(group))
        yield group
    # 3. Log the labels whose rows had to stay, because their scores will be missing or uncertain.
    if kept_labels:
        names = ", ".join(sorted(kept_labels)[:5])
        more = f" and {len(kept_labels) - 5:,} more" if len(kept_labels) > 5 else ""
        label = "label" if len(kept_labels) == 1 else "labels"
        log_once(f"few or no validation rows have the {label} {names}{more}, because each label needs training rows")


def _order_by_label(groups: _Groups, label_counts: Mapping[str, int]) -> list[int]:
    """Order groups so that any first part has the same fraction of each label; a row counts for its rarest label."""
    import numpy as np

    # The stratum of a group is the rank of its rarest label. Shape: (groups,).
    labels_by_count = sorted(label_counts, key=lambda label: (label_counts[label], label))
    rank = {label: index for index, label in enumerate(labels_by_count)}
    rarest = np.array([min(map(rank.__getitem__, names), default=len(rank)) for names in groups.label_sets])
    stratum = np.minimum.reduceat(rarest[groups.label_set_ids[groups.order]], groups.starts[:-1])
    sizes, by_stratum = np.diff(groups.starts), np.argsort(stratum, kind="stable")
    totals = np.bincount(stratum, sizes)
    # `earlier_rows` counts the rows of earlier groups with the same rarest label.
    earlier_rows = np.empty(len(groups))
    earlier_rows[by_stratum] = np.cumsum(sizes[by_stratum]) - sizes[by_stratum]
    earlier_rows -= (np.cumsum(totals) - totals)[stratum]
    # Order groups by their middle, as a fraction of the label's rows (divisor method of Webster and Sainte-Laguë). With
    # 4 rows of label x, the middles are 0.125, 0.375, 0.625 and 0.875; with 2 rows of label y, they are 0.25 and 0.75.
    # So the order is x y x x y x, and any first part has about the same fraction of each label.
    order: list[int] = np.argsort((earlier_rows + sizes / 2) / totals[stratum], kind="stable").tolist()
    return order


def check_draw(recipe: Recipe, columns: ColumnSpec, *, has_label_names: bool) -> None:
    """Check that a recipe can draw its training rows.

    Args:
        recipe: Recipe to check.
        columns: Columns of the task family.
        has_label_names: Whether gold values are labels.

    Raises:
        RecipeError: If the column to oversample is unknown, or the draw needs labels that the rows do not have.
    """
    data = recipe.data
    if data.oversample and data.oversample not in columns.names:
        message = f"data.oversample: the rows have no canonical column {data.oversample!r}"
        raise RecipeError(message, did_you_mean(data.oversample, columns.names))
    if data.train_rows_per_label and not has_label_names:
        message = f"data.train_rows_per_label needs labels, and the rows of {recipe.task} have none"
        raise RecipeError(message, f"draw any rows: --set data.train_limit={data.train_rows_per_label}")


def draw_training_rows(split: Split, recipe: Recipe, gold: str = "", labels: Sequence[str] = ()) -> Split:
    """Return the training rows that the recipe draws, or all training rows.

    Raises:
        DataError: If there are fewer rows than the recipe draws; see `draw_per_label` and `draw_rows`.
    """
    data, seed = recipe.data, recipe.training.seed
    if data.train_rows_per_label:
        return draw_per_label(split, gold, labels, data.train_rows_per_label, seed)
    return draw_rows(split, data.train_limit, seed) if data.train_limit else split


def draw_rows(split: Split, count: int, seed: int) -> Split:
    """Draw `count` rows as in `draw_per_label`, and return them in the order of the split.

    Raises:
        DataError: If the split has fewer rows.
    """
    if count > len(split.rows):
        message = f"data.train_limit is {count:,}, but there are {len(split.rows):,} training rows"
        raise DataError(message, "lower data.train_limit, or add rows", file=split.source)
    return split.select(sorted(_shuffle_rows(split, seed)[:count]))


def draw_per_label(split: Split, gold: str, labels: Sequence[str], count: int, seed: int) -> Split:
    """Draw `count` rows of each label, and return them in the order of the split.

    Rows are drawn by a hash of their content and the seed. So the draw does not depend on the order of the file, and
    with the same seed, a larger draw contains a smaller one.

    Raises:
        DataError: If a label has fewer rows, or a row has several labels.
    """
    message = "data.train_rows_per_label needs one label per row, and this row has several"
    by_label = _shuffle_by_value(split, gold, seed, (message, "draw any rows with data.train_limit"))
    for label in labels:
        if len(by_label[label]) < count:
            available = f"the label {label!r} has {len(by_label[label])} training rows"
            message = f"data.train_rows_per_label is {count}, but {available}"
            raise DataError(message, "lower data.train_rows_per_label, or add rows", file=split.source)
    return split.select(sorted(index for label in labels for index in by_label[label][:count]))


def oversample(split: Split, column: str, seed: int) -> Split:
    """Repeat the rows with rare values of a column until all values have the same number of rows.

    If three values have 4, 2 and 3 rows, both rows of the second value are repeated once, and one row of the third.

    Raises:
        DataError: If a row has a list in this column.
    """
    message = "data.oversample needs one value per row, and this row has a list"
    by_value = _shuffle_by_value(split, column, seed, (message, "leave data.oversample out"))
    # `cycle` repeats the rows of a value evenly: their numbers of copies differ by at most one.
    max_rows = max(map(len, by_value.values()))
    oversampled = split.select(sorted(index for rows in by_value.values() for index in islice(cycle(rows), max_rows)))
    log_once(f"data.oversample: {len(split.rows):,} training rows become {len(oversampled.rows):,} by repetition")
    return oversampled


def _shuffle_by_value(split: Split, column: str, seed: int, list_error: tuple[str, str]) -> dict[str, list[int]]:
    """Return value -> indices of its rows, in the order of `_shuffle_rows`; raise `list_error` if a value is a list."""
    by_value = defaultdict[str, list[int]](list)
    values = list(split.column(column))
    for index in _shuffle_rows(split, seed):
        if isinstance(values[index], (list, tuple)):
            raise DataError(*list_error, **split.locate(index)._asdict(), column=column)
        by_value[str(values[index])].append(index)
    return by_value


def _shuffle_rows(split: Split, seed: int) -> list[int]:
    """Return the indices of the rows, ordered by a hash of their content and the seed."""

    def digest(row: Row) -> bytes:
        hashed = hashlib.blake2b(str(seed).encode(), digest_size=16)
        # The id can be the position in the file, on which the draw must not depend. A run without soft labels must
        # draw the same rows as a run with soft labels.
        update_hash(hashed, {name: value for name, value in row.items() if name not in ("id", SOFT_LABELS)})
        return hashed.digest()

    order: list[int] = _order_digests(map(digest, split.rows))[1].tolist()
    return order

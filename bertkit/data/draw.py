"""Rows drawn by their content: held out where there is no validation split; fewer for training, or rare ones again."""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice

from bertkit.data.checks import share_of
from bertkit.data.columns import Columns
from bertkit.data.labels import spelled_names
from bertkit.data.rows import Split, digest_text, feed_row
from bertkit.errors import DataError, RecipeError, closest
from bertkit.metrics import Numbers
from bertkit.recipe.records import Data, Recipe
from bertkit.recipe.sections import Row
from bertkit.storage.cache import say_once


@dataclass(frozen=True)
class _Groups:
    """The rows of each text, which stay together: one group per text, in the order of their draws.

    Of rows with the draws 7, 3, 7, `order` is 1, 0, 2 and `starts` is 0, 1, 3.
    """

    draws: Numbers
    """The draw of each row, two numbers of 64 bits, (rows, 2)."""
    order: Numbers
    """The indices of the rows, group by group, (rows,)."""
    starts: Numbers
    """Where in `order` each group begins, and the last one ends, (groups + 1,)."""
    names: Numbers
    """Which of `sets` has the labels of a row, (rows,)."""
    sets: Sequence[frozenset[str]]

    def __len__(self) -> int:
        return len(self.starts) - 1

    def rows(self, group: int) -> Numbers:
        """Return the indices of the rows of a group, in order."""
        return self.order[self.starts[group] : self.starts[group + 1]]

    def labels(self, group: int) -> Counter[str]:
        """Count the rows of a group that have each label."""
        return Counter(label for names in self.names[self.rows(group)] for label in self.sets[names])

    def share(self, group: int) -> float:
        """Return the draw of a group as a number from 0 to 1; all draws are spread evenly between them."""
        high, low = self.draws[self.order[self.starts[group]]].tolist()
        return float((high << 64 | low) / (1 << 128))


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
    import numpy as np

    count = len(split.rows)
    if count < 2:
        what = "one row cannot be split into training and validation"
        raise DataError(what, "give more rows", file=split.source)
    groups = _group_by_text(split.rows, columns, named)
    is_held_out = np.zeros(count, dtype=bool)
    for group in _choose_groups(groups, data, count):
        is_held_out[groups.rows(group)] = True
    if not is_held_out.any():
        what = "no row can be held out: each text is the only one of its label" if len(groups) > 1 else "one text only"
        remedy = "check which column holds the labels, give more rows, or name a validation file"
        raise DataError(what, remedy, file=split.source)
    say_once(
        f"no validation split: {share_of(int(is_held_out.sum()), count)} rows of {split.source} are held out for it"
    )
    return {
        name: replace(split.select(np.flatnonzero(is_in).tolist()), name=name, is_held_out=True)
        for name, is_in in (("train", ~is_held_out), ("validation", is_held_out))
    }


def _group_by_text(rows: Sequence[Row], columns: Columns, named: bool) -> _Groups:
    import numpy as np

    number_of: dict[frozenset[str], int] = {}
    names = array("q")

    def draw(row: Row) -> bytes:
        of_row = frozenset(spelled_names(row.get(columns.gold)) if named else ())
        names.append(number_of.setdefault(of_row, len(number_of)))
        # Equal texts stay together: one of them in training would tell the other's answer.
        read = columns.together or [name for name in row if name not in columns.beside]
        return digest_text({name: row[name] for name in read}, columns.gold)

    draws, order = _order_digests(map(draw, rows))
    starts = np.flatnonzero(np.diff(draws[order], axis=0, prepend=~draws[order[:1]]).any(axis=1))
    return _Groups(draws, order, np.append(starts, len(order)), np.array(names), list(number_of))


def _order_digests(digests: Iterable[bytes]) -> tuple[Numbers, Numbers]:
    """Return digests of 16 bytes as two numbers each, (rows, 2), and the indices that sort them, (rows,)."""
    import numpy as np

    content = bytearray()
    for digest in digests:
        content += digest
    numbers = np.frombuffer(content, ">u8").astype(np.uint64).reshape(-1, 2)
    return numbers, np.lexsort((numbers[:, 1], numbers[:, 0]))


def _choose_groups(groups: _Groups, data: Data, count: int) -> Iterator[int]:
    """Yield the groups to hold out."""
    left = Counter[str]()
    for number, rows in Counter(groups.names.tolist()).items():
        left.update(dict.fromkeys(groups.sets[number], rows))
    by_hash, share = data.hold_out == "by_hash", data.validation_share
    most = min(max(1, round(count * share)), count - 1)
    kept_labels: set[str] = set()
    rest, chosen = len(groups), 0
    for group in range(len(groups)) if by_hash else _order_by_label(groups, left):
        # By hash, a text is held out whatever other rows there are; by label, until the share is reached.
        is_enough = chosen > 0 and groups.share(group) >= share if by_hash else chosen >= most
        if is_enough or rest == 1:
            break
        # A label must stay in training: what is never trained is never predicted.
        labels = groups.labels(group)
        last = {label for label, rows in labels.items() if left[label] == rows}
        if last:
            kept_labels |= last
            continue
        left.subtract(labels)
        rest, chosen = rest - 1, chosen + len(groups.rows(group))
        yield group
    if kept_labels:
        names = ", ".join(sorted(kept_labels)[:5])
        more = f" and {len(kept_labels) - 5:,} more" if len(kept_labels) > 5 else ""
        label = "label" if len(kept_labels) == 1 else "labels"
        say_once(f"few or no validation rows have the {label} {names}{more}: each label must keep rows to train on")


def _order_by_label(groups: _Groups, rows_of: Mapping[str, int]) -> list[int]:
    """Order groups so that the first of them are an even share of each label (of a row's labels, its rarest)."""
    import numpy as np

    # The stratum of a group, (groups,), is the rank of its rarest label.
    rank = {label: number for number, label in enumerate(sorted(rows_of, key=lambda label: (rows_of[label], label)))}
    rarest = np.array([min(map(rank.__getitem__, names), default=len(rank)) for names in groups.sets])
    stratum = np.minimum.reduceat(rarest[groups.names[groups.order]], groups.starts[:-1])
    sizes, by_stratum = np.diff(groups.starts), np.argsort(stratum, kind="stable")
    totals = np.bincount(stratum, sizes)
    before = np.empty(len(groups))
    before[by_stratum] = np.cumsum(sizes[by_stratum]) - sizes[by_stratum]
    before -= (np.cumsum(totals) - totals)[stratum]
    # The middle of a group, as a share of its label's rows. Cut at any share, an ordered list of all groups has given
    # up about that share of each label (the divisor method of Webster and Sainte-Laguë).
    order: list[int] = np.argsort((before + sizes / 2) / totals[stratum], kind="stable").tolist()
    return order


def check_draw(recipe: Recipe, columns: Columns, *, named: bool) -> None:
    """Check that the rows that a recipe draws can be drawn; `named` says whether their gold values are labels.

    Raises:
        RecipeError: they cannot.
    """
    data = recipe.data
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
    what = "data.per_class draws rows by their label, and this row has several"
    by_label = _shuffle_by_value(split, gold, seed, (what, "data.train_limit draws any"))
    for label in labels:
        if len(by_label[label]) < count:
            what = f"data.per_class is {count}, and the label {label!r} has {len(by_label[label])} training rows"
            raise DataError(what, "lower data.per_class, or add rows", file=split.source)
    return split.select(sorted(index for label in labels for index in by_label[label][:count]))


def oversample(split: Split, column: str, seed: int) -> Split:
    """Return the rows with those of rare values of a column repeated: each value has as many in the end.

    Of values with 4, 2 and 3 rows, each row of the second comes twice, and one of the third.

    Raises:
        DataError: a row has a list there.
    """
    what = "data.oversample counts rows by one value, and this row has a list"
    by_value = _shuffle_by_value(split, column, seed, (what, "leave it out"))
    most = max(map(len, by_value.values()))
    repeated = split.select(sorted(index for rows in by_value.values() for index in islice(cycle(rows), most)))
    say_once(f"data.oversample: {len(split.rows):,} training rows, {len(repeated.rows):,} with those that are repeated")
    return repeated


def _shuffle_by_value(split: Split, column: str, seed: int, refusal: tuple[str, str]) -> dict[str, list[int]]:
    """Return the indices of the rows of each value, in the order of `_shuffle_rows`; refuse a list."""
    by_value = defaultdict[str, list[int]](list)
    values = list(split.column(column))
    for index in _shuffle_rows(split, seed):
        if isinstance(values[index], (list, tuple)):
            raise DataError(*refusal, **split.place(index)._asdict(), column=column)
        by_value[str(values[index])].append(index)
    return by_value


def _shuffle_rows(split: Split, seed: int) -> list[int]:
    """Return the indices of the rows in the order of a hash of their content and the seed."""

    def digest(row: Row) -> bytes:
        hashed = hashlib.blake2b(str(seed).encode(), digest_size=16)
        feed_row(hashed, {name: value for name, value in row.items() if name != "id"})
        return hashed.digest()

    order: list[int] = _order_digests(map(digest, split.rows))[1].tolist()
    return order

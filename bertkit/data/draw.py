"""Other training rows, drawn by their content and a seed: fewer, as many of each label, or rare ones repeated."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import cycle, islice

from bertkit.data.rows import Columns, Split, feed_row
from bertkit.errors import DataError, RecipeError, closest
from bertkit.recipe import Recipe
from bertkit.storage.cache import say_once


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

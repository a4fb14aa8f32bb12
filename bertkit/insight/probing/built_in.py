"""Tasks for probes that are made from the rows themselves: surface, syntax where trees are given, and features.

Length, word content, bigram shift and tree depth are those of Conneau et al. 2018 ("What you can cram into a single
vector"), on the rows at hand; arcs and their relations are the edge probes of Tenney et al. 2019.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from bertkit.data.columns import Columns
from bertkit.data.sources import read_splits
from bertkit.errors import DataError, located
from bertkit.insight.probing.items import Control, ProbeItems, ProbeTask, one_per_text, one_per_word
from bertkit.insight.probing.recipe_labels import choose_metric
from bertkit.insight.probing.rows import choose_rows, is_needed
from bertkit.insight.syntax import depth_of, read_column, read_heads
from bertkit.metrics.statistics import quantile_bins
from bertkit.recipe import Recipe, Row
from bertkit.tokens.features import Rows
from bertkit.vectors.units import UNITS

ARC, NO_ARC = "arc", "no arc"


def _read_features(value: object, count: int) -> list[dict[str, str]]:
    """Read features as CoNLL-U writes them, ``Number=Sing|Person=3``; ``_`` stands for none."""
    pairs = [str(text or "_").split("|") for text in read_column(value, count, "feats")]
    return [dict(pair.split("=", 1) for pair in of_word if "=" in pair) for of_word in pairs]


READ: Mapping[str, Callable[[Any, int], list[Any]]] = {
    "head": read_heads,
    "deprel": lambda value, count: list(map(str, read_column(value, count, "deprel"))),
    "feats": _read_features,
}
"""Column -> what reads its value in a row with so many words."""


def relations(rows: Sequence[Row], seed: int) -> ProbeItems:
    """Return each word with its head; the label is their relation, without its subtype."""
    pairs = [
        (number, word, head - 1, row["deprel"][word].partition(":")[0])
        for number, row in enumerate(rows)
        for word, head in enumerate(row["head"])
        if head
    ]
    return _pairs(rows, pairs)


def arcs(rows: Sequence[Row], seed: int) -> ProbeItems:
    """Return words with their heads, and as many pairs of words without an arc, at the same distances.

    The other pair of an arc is from the same row, and its second word stands as far from its first, on the same side:
    so neither distance nor direction tells an arc. An arc without such a pair is left out.
    """
    rng = np.random.default_rng(seed)
    pairs = []
    for number, row in enumerate(rows):
        heads = row["head"]
        for word, head in enumerate(heads):
            distance = head - 1 - word
            others = [
                other
                for other in range(max(0, -distance), min(len(heads), len(heads) - distance))
                if heads[other] - 1 != other + distance
            ]
            if head and others:
                other = int(rng.choice(others))
                pairs.append((number, word, head - 1, ARC))
                pairs.append((number, other, other + distance, NO_ARC))
    return _pairs(rows, pairs)


def feature(name: str, rows: Sequence[Row], seed: int) -> ProbeItems:
    """Return the words that have a feature, with its value."""
    words = [
        (number, word, features[name])
        for number, row in enumerate(rows)
        for word, features in enumerate(row["feats"])
        if name in features
    ]
    return one_per_word([row["words"] for row in rows], [word[:2] for word in words], [value for *_, value in words])


def _pairs(rows: Sequence[Row], pairs: Sequence[tuple[int, int, int, str]]) -> ProbeItems:
    """Return pairs of a row, a word, another word and a label as items of an edge probe."""
    places = [((number, word), (number, other)) for number, word, other, _ in pairs]
    return one_per_word([row["words"] for row in rows], places, [label for *_, label in pairs], "edge")


_SEED = 0  # of the draws that make a task; the seeds of probes are others
_LEAST_ROWS = 10  # with a word, for it to be one of those to find
_MOST_WORDS = 50
_FREQUENT_WORDS = 20  # which are in most texts

Both = tuple[ProbeItems, ProbeItems]
"""The items of training rows and of held-out rows."""


@dataclass(frozen=True)
class BuiltInTask:
    """A task that is made from the rows themselves."""

    about: str
    make: Callable[[Rows, Rows], Both]
    columns: tuple[str, ...] = ()
    """What rows must have, beside their words."""
    group_name: str = ""
    control: Control = "shuffled"


def read_built_in_task(name: str, recipe: Recipe, limit: int, metric: str | None = None) -> ProbeTask:
    """Read rows, and make one of `BUILT_IN` of them.

    Args:
        name: of the task.
        recipe: its data section says where rows are.
        limit: training rows at most.
        metric: as `read_recipe_task` takes it.

    Raises:
        DataError: rows lack a column, or the task cannot be made of them.
        RecipeError: a metric that probes of labels do not have.
    """
    task = BUILT_IN[name]
    chosen = choose_metric(metric, (), is_regression=False)
    columns = Columns(
        given=("tokens", *task.columns),
        gold="",
        lists=("tokens", *task.columns),
        text_instead={"tokens": "text"},
        text_always=True,
    )
    splits = read_splits(recipe, columns, partial(_read_columns, columns=task.columns), is_needed)
    train, held_out, notes = choose_rows(splits, lambda row: {"tokens": row["words"]}, limit)
    with located(file=recipe.data.source or None):
        made = task.make(train, held_out)
    return ProbeTask(
        name=name,
        about=task.about,
        train=made[0],
        test=made[1],
        metric=chosen,
        group_name=task.group_name,
        control=task.control,
        notes=notes,
    )


def _read_columns(row: Row, columns: Sequence[str]) -> Row | None:
    """Check the words of a row and its other columns, which have a value per word; None for a row without words."""
    words = UNITS["word"].read(row)
    checked = {name: READ[name](row[name], len(words)) for name in columns}
    return {"words": words, **checked} if words else None


def _bin_sizes(measure: Callable[[Row], int], train: Rows) -> Callable[[Row], str]:
    """Return what tells the bin of a row's size; bins hold about equally many training rows."""
    bins = quantile_bins(list(map(measure, train)))

    def name_bin(row: Row) -> str:
        size = measure(row)
        first, last = next((ends for ends in bins if size <= ends[1]), bins[-1])
        return f"{first}" if first == last else f"{first} to {last}"

    return name_bin


def _count_words(row: Row) -> int:
    return len(row["words"])


def _length(train: Rows, held_out: Rows) -> Both:
    return _both(train, held_out, _bin_sizes(_count_words, train))


def _content(train: Rows, held_out: Rows) -> Both:
    """Choose words of middling frequency, and keep the texts that have exactly one of them."""
    counts = Counter(word for row in train for word in _letters(row))
    frequent = [word for word, count in counts.most_common() if count >= _LEAST_ROWS]
    chosen = set(frequent[_FREQUENT_WORDS : _FREQUENT_WORDS + _MOST_WORDS])
    if len(chosen) < 2:
        what = f"fewer than two words beyond the {_FREQUENT_WORDS} most frequent are in {_LEAST_ROWS} texts"
        raise DataError(what, "give more rows, or raise --limit")

    def find(row: Row) -> str | None:
        inside = _letters(row) & chosen
        return inside.pop() if len(inside) == 1 else None

    return _both(train, held_out, find)


def _letters(row: Row) -> set[str]:
    return {word.lower() for word in row["words"] if word.isalpha()}


def _shift_words(train: Rows, held_out: Rows) -> Both:
    """Swap two neighboring words in one half of the texts."""
    made = []
    for split, rows in enumerate((train, held_out)):
        rng = np.random.default_rng([_SEED, split])
        long = [row for row in rows if len(set(row["words"])) > 1]
        swapped = rng.permutation(len(long)) < len(long) // 2
        texts = [
            _swap_neighbors(row["words"], rng) if swap else row["words"]
            for row, swap in zip(long, swapped, strict=True)
        ]
        made.append(one_per_text(texts, ["swapped" if swap else "as it is" for swap in swapped]))
    return made[0], made[1]


def _swap_neighbors(words: Sequence[str], rng: np.random.Generator) -> list[str]:
    """Return the words with two different neighbors swapped."""
    differ = [number for number in range(len(words) - 1) if words[number] != words[number + 1]]
    first = int(rng.choice(differ))
    return [*words[:first], words[first + 1], words[first], *words[first + 2 :]]


def _depth(train: Rows, held_out: Rows) -> Both:
    """Bin the depths of trees; the length of the text is what a probe must know more than."""
    depth = _bin_sizes(lambda row: depth_of(row["head"]), train)
    return _both(train, held_out, depth, _bin_sizes(_count_words, train))


def _both(
    train: Rows, held_out: Rows, label: Callable[[Row], str | None], group: Callable[[Row], str] | None = None
) -> Both:
    """Return an item per text that has a label."""
    made = []
    for rows in (train, held_out):
        labeled = [(row, name) for row in rows if (name := label(row)) is not None]
        groups = [group(row) for row, _ in labeled] if group else []
        made.append(one_per_text([row["words"] for row, _ in labeled], [name for _, name in labeled], groups))
    return made[0], made[1]


def _each(make: Callable[[Rows, int], ProbeItems], train: Rows, held_out: Rows) -> Both:
    return make(train, _SEED), make(held_out, _SEED + 1)


def _feature(name: str) -> Callable[[Rows, Rows], Both]:
    return partial(_each, partial(feature, name))


_ARCS = "Does the first word depend on the second? (as many pairs that do not, at the same distances)"
_RELATIONS = "In which relation is a word to its head?"
BUILT_IN: Mapping[str, BuiltInTask] = {
    "length": BuiltInTask("How many words has the text?", _length),
    "content": BuiltInTask("Which of some words is in the text?", _content),
    "shift": BuiltInTask("Were two neighboring words swapped?", _shift_words),
    "depth": BuiltInTask("How deep is the dependency tree of the text?", _depth, ("head",), "length"),
    "arcs": BuiltInTask(_ARCS, partial(_each, arcs), ("head",), "word", "types"),
    "relations": BuiltInTask(_RELATIONS, partial(_each, relations), ("head", "deprel"), "word", "types"),
    "tense": BuiltInTask("Which tense has the verb?", _feature("Tense"), ("feats",), "word", "types"),
    "number": BuiltInTask("Which number has the word?", _feature("Number"), ("feats",), "word", "types"),
}

"""What a probe classifies: texts, words, or pairs of either, with their labels and their vectors at a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from bertkit.errors import DataError
from bertkit.insight.layer_vectors import LayerVectors
from bertkit.metrics import Numbers
from bertkit.recipe import Row

_LEAST_TRAINING, _LEAST_HELD_OUT = 10, 2  # rows

Combination = Literal["alone", "difference", "edge"]
"""How vectors become features: one alone; of two, ``|u - v|`` and ``u * v``; of two words, ``u``, ``v`` and ``u * v``.

The second is for two texts, whose order says nothing; the third is the edge probe, which knows the dependent.
"""

Control = Literal["types", "shuffled"]
"""What a control task is: a random label per group, or the labels shuffled within each group."""


@dataclass(frozen=True)
class ProbeItems:
    """Items of one split, in the order of their rows, and which vectors they have."""

    rows: list[Row]
    unit: str
    """What a vector stands for, as `bertkit.insight.layer_vectors.LayerReader.read` takes it."""
    addresses: Numbers
    """(items, vectors, 2): which of `rows` each vector is of, and which word of it."""
    labels: Sequence[Any]
    """Names, or numbers for regression."""
    groups: Sequence[str]
    """What could tell the label without the text: the word itself, or the length; empty where nothing could."""
    combination: Combination = "alone"

    @property
    def owners(self) -> Numbers:
        """The row of the data that each item is from, (items,), ascending; items of one row are drawn together."""
        return np.asarray(self.addresses[:, 0, 0])

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.labels)

    def select(self, numbers: Numbers) -> ProbeItems:
        """Return some of the items."""
        labels = [self.labels[number] for number in numbers.tolist()]
        groups = [self.groups[number] for number in numbers.tolist()] if len(self.groups) else []
        return replace(self, addresses=self.addresses[numbers], labels=labels, groups=groups)


@dataclass(frozen=True)
class ProbeTask:
    """A task for probes: items to learn from, others to score, and what the scores mean."""

    name: str
    about: str
    train: ProbeItems
    test: ProbeItems
    metric: str
    """A function of `bertkit.metrics.basic`."""
    is_regression: bool = False
    group_name: str = ""
    """What `ProbeItems.groups` are: ``word``, ``length``; empty where there are none."""
    control: Control = "shuffled"
    notes: list[str] = field(default_factory=list)

    def check(self) -> None:
        """Check that there is something to learn and to score; raises DataError where there is not."""
        labels = sorted({str(label) for label in self.train.labels})
        if len(labels) < 2:
            what = f"{self.name}: the training rows have {f'one label, {labels[0]}' if labels else 'no label'}"
            raise DataError(what, "give more rows, or raise --limit")
        for what, items, least in (("training", self.train, _LEAST_TRAINING), ("held-out", self.test, _LEAST_HELD_OUT)):
            rows = len(np.unique(items.owners))
            if rows < least:
                raise DataError(f"{self.name}: {rows} {what} rows with a label, of at least {least}", "give more rows")


@dataclass(frozen=True)
class ItemVectors:
    """The vectors of items at all layers."""

    vectors: LayerVectors
    numbers: Numbers
    """(items, vectors): where each is in `vectors`."""
    combination: Combination

    def features(self, layer: int, chosen: Numbers | None = None) -> Numbers:
        """Return the features of items at a layer, float32 of shape (items, features)."""
        numbers = self.numbers if chosen is None else self.numbers[chosen]
        every = self.vectors.at(layer)
        first = every[numbers[:, 0]]
        if self.combination == "alone":
            return first
        second = every[numbers[:, 1]]
        product = first * second
        parts = [np.abs(first - second)] if self.combination == "difference" else [first, second]
        return np.concatenate([*parts, product], axis=1)


def one_per_text(texts: Sequence[Sequence[str]], labels: Sequence[str], groups: Sequence[str] = ()) -> ProbeItems:
    """Return an item per text, given as its words, which a space joins."""
    numbers = np.arange(len(texts))
    return ProbeItems(
        rows=[{"text": " ".join(words)} for words in texts],
        unit="text",
        addresses=np.stack([numbers, np.zeros_like(numbers)], axis=1)[:, None],
        labels=labels,
        groups=groups,
    )


def one_per_word(
    texts: Sequence[Sequence[str]], places: Sequence[Any], labels: Sequence[Any], combination: Combination = "alone"
) -> ProbeItems:
    """Return an item per word of texts, which are given as their words, or an item per edge between two of them.

    A place is the number of a text and that of a word in it; an edge has two of them, and its first word is its group.
    """
    addresses = np.array(places, dtype=np.int64).reshape(-1, 2 if combination == "edge" else 1, 2)
    return ProbeItems(
        rows=[{"tokens": words} for words in texts],
        unit="word",
        addresses=addresses,
        labels=labels,
        groups=[texts[text][word].lower() for text, word in addresses[:, 0].tolist()],
        combination=combination,
    )


def find_vectors(items: ProbeItems, vectors: LayerVectors) -> tuple[ProbeItems, ItemVectors]:
    """Find where the vectors of items are; items with a word that has none are left out.

    A word has no vector if it has no tokens, such as one of control characters.
    """
    # rows and words of a row are in ascending order, so their numbers can be looked up by bisection
    width = int(max(vectors.index.max(initial=0), items.addresses[..., 1].max(initial=0))) + 1
    keys = np.asarray(vectors.rows) * width + np.asarray(vectors.index)
    wanted = items.addresses[..., 0] * width + items.addresses[..., 1]
    numbers = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    has_vectors = (keys[numbers] == wanted).all(axis=1)
    kept = np.flatnonzero(has_vectors)
    return items.select(kept), ItemVectors(vectors, numbers[kept], items.combination)

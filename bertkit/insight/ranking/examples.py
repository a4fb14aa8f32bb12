"""The examples that encoders are ranked on: which rows are read, as what, and what is to be told from their vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bertkit.data.rows import Split
from bertkit.errors import DataError, UsageError
from bertkit.insight.layer_vectors import LayerReader
from bertkit.insight.ranking.layers import Pool
from bertkit.metrics import Numbers
from bertkit.metrics.linear import sample
from bertkit.recipe import Row
from bertkit.tasks import Task
from bertkit.vectors.vector_files import to_unit_length

TEXT, PAIR, TWO_TEXTS, WORD, TARGET = "text", "pair", "two texts", "word", "target"
"""What an example is: a text, a pair read together, two texts read each by itself, a word, or the target of a row."""

_LEAST = 30  # examples; the scores of fewer say next to nothing
_LEAST_PER_WORD = 10  # rows of a word whose senses are told apart
_WORDS_PER_ROW = 4  # at most, where there are fewer rows than examples are wanted


@dataclass(frozen=True)
class RankedExamples:
    """Examples with their gold values, in the order of their rows."""

    unit: str
    rows: list[Row]
    """What is read, one per example."""
    gold: Numbers
    """(examples,); whole numbers for classes."""
    origin: Numbers
    """(examples,): the row of the data that each comes from."""
    groups: list[Numbers]
    """Indices of examples that are compared with one another: all of them, or those of one word."""
    classes: int | None
    """How many there are; None for numbers."""

    @property
    def is_named(self) -> bool:
        """Whether gold values are classes."""
        return self.classes is not None

    def score(self, score: Callable[[Numbers], float], chosen: Numbers) -> float:
        """Return the mean of the scores of the groups, weighted by their examples.

        Args:
            score: computes the score of the examples with some indices.
            chosen: a mask, (examples,), of those that count.
        """
        parts = [group[chosen[group]] for group in self.groups]
        return float(np.average([score(part) for part in parts], weights=[len(part) for part in parts]))


def unit_of(task: Task, rows: Sequence[Row]) -> str | None:
    """Return what an example of these rows is; None where their family has no vector per gold value."""
    columns = task.COLUMNS
    if columns.given == ("tokens", "target"):
        return TARGET
    if columns.given == ("tokens",):
        return WORD
    if columns.given == ("text", "text_pair"):
        return TWO_TEXTS
    if columns.given == ("text",) and columns.gold:
        return PAIR if "text_pair" in rows[0] else TEXT
    return None


def choose_examples(task: Task, split: Split, most: int) -> RankedExamples:
    """Choose evenly spaced rows of a split, and the gold values of their vectors.

    Of rows of words, words are drawn at random: one of each row, or a few where rows are fewer than wanted.

    Args:
        task: the family of the recipe.
        split: rows with canonical columns; classes are names.
        most: examples.

    Raises:
        UsageError: vectors of such rows cannot be scored.
        DataError: there are too few examples, or all have the same gold value.
    """
    unit = unit_of(task, split.rows)
    if unit is None:
        what = "these rows have no gold value per text, pair or word"
        remedy = "rank with a recipe that classifies or scores texts or pairs, tags words, or tells senses apart"
        raise UsageError(what, remedy)
    gold = task.COLUMNS.gold
    examples = _draw_words(split, gold, most) if unit == WORD else _take_rows(split, task, unit, most)
    if unit == TARGET:
        examples = _group_by_word(examples)
    if len(examples.gold) < _LEAST:
        remedy = f"give at least {_LEAST}"
        raise DataError(f"{len(examples.gold)} examples are too few to rank encoders", remedy, file=split.source)
    if len(np.unique(examples.gold)) < 2:
        raise DataError("all examples have the same gold value", "give rows of several", file=split.source)
    return examples


@dataclass(frozen=True)
class LayerFeatures:
    """Vectors of examples at every layer."""

    sides: list[Numbers]
    """(examples, layers + 1, width) each: one, or those of the first and of the second text."""

    @property
    def layers(self) -> int:
        """The number of layers, without the embeddings."""
        return int(self.sides[0].shape[1]) - 1

    def pooled(self, pool: Pool) -> Numbers:
        """Return what is scored, (examples, dimensions), for a choice of layers.

        Of two texts u and v, these are |u - v| and u * v of their unit vectors (Conneau et al. 2017).
        """
        vectors = [np.asarray(pool(side), dtype=np.float64) for side in self.sides]
        if len(vectors) == 1:
            return vectors[0]
        # A linear model of two vectors side by side cannot tell whether they are alike; of these two it can.
        first, second = map(to_unit_length, vectors)
        return np.concatenate([np.abs(first - second), first * second], axis=1)


def read_features(reader: LayerReader, examples: RankedExamples) -> LayerFeatures:
    """Read the vectors of all layers of examples.

    Raises:
        ModelError: the model is damaged, or a hidden state is not finite.
    """
    if examples.unit != TWO_TEXTS:
        unit = TARGET if examples.unit == WORD else examples.unit
        return LayerFeatures([reader.read(examples.rows, unit).vectors])
    columns = ("text", "text_pair")
    texts = [[{"text": row[column]} for row in examples.rows] for column in columns]
    return LayerFeatures([reader.read(side, TEXT).vectors for side in texts])


def _take_rows(split: Split, task: Task, unit: str, most: int) -> RankedExamples:
    gold = task.COLUMNS.gold
    origin = sample(range(len(split.rows)), most)
    rows = [split.rows[number] for number in origin]
    several = next((number for number, row in zip(origin, rows, strict=True) if isinstance(row[gold], list)), None)
    if several is not None:
        what = "a row with several labels, which these scores do not know"
        raise UsageError(what, "rank with a recipe of one label per row", **split.place(several)._asdict())
    values, classes = _encode_gold([row[gold] for row in rows], named=task.NAMED)
    return RankedExamples(unit, rows, values, np.array(origin), [np.arange(len(rows))], classes)


def _draw_words(split: Split, gold: str, most: int) -> RankedExamples:
    """Draw words at random, each with its sentence; those without a tag do not count."""
    per_row = min(_WORDS_PER_ROW, max(1, most // len(split.rows)))
    # Few words of each row: words of one sentence are alike, and count as less than so many examples.
    random = np.random.default_rng(0)
    rows, tags, origin = [], [], []
    for number in sample(range(len(split.rows)), most):
        row = split.rows[number]
        words = zip(row["tokens"], row[gold], strict=True)
        tagged = [place for place, (word, tag) in enumerate(words) if tag is not None and word.strip().isprintable()]
        for word in sorted(random.permutation(tagged)[:per_row].tolist()):
            rows.append({"tokens": row["tokens"], "target": word})
            tags.append(row[gold][word])
            origin.append(number)
    values, classes = _encode_gold(tags, named=True)
    return RankedExamples(WORD, rows, values, np.array(origin), [np.arange(len(rows))], classes)


def _group_by_word(examples: RankedExamples) -> RankedExamples:
    """Keep the rows of words with several senses, each of which occurs more than once, and group them by word."""
    by_word: dict[str, list[int]] = {}
    for number, row in enumerate(examples.rows):
        by_word.setdefault(row["word"], []).append(number)
    groups = []
    for numbers in by_word.values():
        senses, counts = np.unique(examples.gold[numbers], return_counts=True)
        # A sense that occurs once has no other example to be near to.
        common = senses[counts > 1]
        kept = [number for number in numbers if examples.gold[number] in common]
        if len(common) > 1 and len(kept) >= _LEAST_PER_WORD:
            groups.append(kept)
    order = sorted(number for group in groups for number in group)
    place = {number: index for index, number in enumerate(order)}
    gold = examples.gold[order]
    return replace(
        examples,
        rows=[examples.rows[number] for number in order],
        gold=gold,
        origin=examples.origin[order],
        groups=[np.array([place[number] for number in group]) for group in groups],
        classes=len(np.unique(gold)),
    )


def _encode_gold(values: Sequence[Any], *, named: bool) -> tuple[Numbers, int | None]:
    """Number the classes in alphabetical order; return numbers as they are."""
    if not named:
        return np.array(values, dtype=np.float64), None
    names, numbers = np.unique([str(value) for value in values], return_inverse=True)
    return numbers.astype(np.int64), len(names)

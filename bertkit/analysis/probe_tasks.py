"""Tasks of probes: labels of a recipe, or built-in tasks whose labels are computed from the rows.

Length, bigram shift and tree depth come from Conneau et al. 2018 ("What you can cram into a single vector"); relations
are an edge probe of Tenney et al. 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from bertkit.analysis.syntax import compute_depth, read_column, read_heads
from bertkit.data.columns import ColumnSpec
from bertkit.data.labels import find_names, replace_raw_labels
from bertkit.data.rows import Split, digest_text
from bertkit.data.sources import is_validation, read_splits
from bertkit.errors import DataError, RecipeError, error_location
from bertkit.evaluation.splits import read_task_splits
from bertkit.metrics.registry import REGRESSION_METRICS, is_lower_better
from bertkit.metrics.reliability import quantile_bins
from bertkit.recipe.records import Recipe
from bertkit.recipe.sections import Row
from bertkit.tasks import load_task
from bertkit.tokens.features import Rows
from bertkit.vectors.units import UNITS

_MIN_ROWS = {"training": 10, "held-out": 2}

Combination = Literal["alone", "difference", "edge"]
"""Features of an item: ``u`` alone; ``|u - v|`` and ``u * v`` for two texts; ``u``, ``v`` and ``u * v`` for two words.

The features of two texts do not depend on their order. The edge probe needs the order of the dependent and its head.
"""

Control = Literal["types", "shuffled"]
"""Kind of control task: one random label per group, or labels shuffled within each group."""


@dataclass(frozen=True)
class ProbeItems:
    """Labeled items of one split, in the order of their rows, such as texts, words or pairs of words."""

    rows: list[Row]
    unit: str
    """Unit of a vector; see `bertkit.analysis.layer_vectors.LayerReader.read`."""
    addresses: np.ndarray
    """Row index and word index of each vector of an item, (items, vectors, 2)."""
    labels: Sequence[Any]
    """Label names, or numbers for regression."""
    groups: Sequence[str] = ()
    """Group of each item, such as its word or length, which may predict the label; empty without groups."""
    combination: Combination = "alone"

    @property
    def owners(self) -> np.ndarray:
        """Row index of each item, ascending, (items,); items of one row are drawn together."""
        return np.asarray(self.addresses[:, 0, 0])

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.labels)

    def select(self, indices: np.ndarray) -> ProbeItems:
        """Return the items with some indices."""
        labels = [self.labels[index] for index in indices.tolist()]
        groups = [self.groups[index] for index in indices.tolist()] if len(self.groups) else []
        return replace(self, addresses=self.addresses[indices], labels=labels, groups=groups)


@dataclass(frozen=True)
class ProbeTask:
    """Task of probes: training items, test items and the metric."""

    name: str
    about: str
    train: ProbeItems
    test: ProbeItems
    metric: str
    """Name of a function of `bertkit.metrics.registry`."""
    is_regression: bool = False
    group_name: str = ""
    """Kind of `ProbeItems.groups`: ``word``, ``length``, or empty."""
    control: Control = "shuffled"
    notes: list[str] = field(default_factory=list)

    def check(self) -> None:
        """Check that there are at least two labels, and enough rows.

        Raises:
            DataError: If there are too few labels or rows.
        """
        labels = sorted({str(label) for label in self.train.labels})
        if len(labels) < 2:
            message = f"{self.name}: the training rows have {f'one label, {labels[0]}' if labels else 'no label'}"
            raise DataError(message, "give more rows, or raise --limit")
        for (kind, min_rows), items in zip(_MIN_ROWS.items(), (self.train, self.test), strict=True):
            rows = len(np.unique(items.owners))
            if rows < min_rows:
                raise DataError(
                    f"{self.name}: {rows} {kind} rows with a label, of at least {min_rows}", "give more rows"
                )


def make_row_items(
    rows: list[Row], unit: str, labels: Sequence[Any], groups: Sequence[str] = (), words: Sequence[int] = ()
) -> ProbeItems:
    """Return one item per row; `words` are the indices of the target words, if rows have target words."""
    addresses = np.stack([np.arange(len(rows)), words if len(words) else np.zeros(len(rows), dtype=int)], axis=1)
    return ProbeItems(rows, unit, addresses[:, None], labels, groups)


def make_word_items(
    texts: Sequence[Sequence[str]], positions: Sequence[Any], labels: Sequence[Any], combination: Combination = "alone"
) -> ProbeItems:
    """Return one item per word, or one per edge between two words; texts are lists of words.

    A position is (text index, word index); an edge has two positions. The group of an item is its first word.
    """
    # Without an explicit shape, an empty list would have only one axis.
    addresses = np.array(positions, dtype=np.int64).reshape(-1, 2 if combination == "edge" else 1, 2)
    groups = [texts[text][word].lower() for text, word in addresses[:, 0].tolist()]
    return ProbeItems([{"tokens": words} for words in texts], "word", addresses, labels, groups, combination)


# --- Rows ---


def _is_needed(split: str) -> bool:
    return split == "train" or is_validation(split)


def choose_rows(splits: Mapping[str, Split], limit: int) -> tuple[list[Row], list[Row], list[str]]:
    """Return training rows, held-out rows and notes about them.

    Rows are drawn by a hash of their inputs, so the order of the file does not matter, and two tasks on the same texts
    draw the same rows. Training rows that are also held out are left out.

    Args:
        splits: ``train`` and a validation split.
        limit: Maximum number of training rows; the maximum of held-out rows is half of it.

    Raises:
        DataError: If one of the two splits is missing.
    """
    validation = next((split for name, split in splits.items() if is_validation(name)), None)
    if "train" not in splits or validation is None:
        message = f"probes need training rows and held-out rows; there is {', '.join(splits) or 'no split'}"
        raise DataError(message, "name them, e.g. --set 'data.files={train: a.jsonl, validation: b.jsonl}'")

    def draw(split: Split, count: int, excluded_digests: Collection[bytes]) -> tuple[list[Row], list[bytes], int]:
        digests = list(map(_digest_input, split.rows))
        available = [index for index, digest in enumerate(digests) if digest not in excluded_digests]
        # Draw the rows with the lowest digests, in the order of the file.
        indices = sorted(sorted(available, key=digests.__getitem__)[:count])
        return [split.rows[index] for index in indices], [digests[index] for index in indices], len(available)

    held_out, digests, _ = draw(validation, max(limit // 2, 1), ())
    train, _, available = draw(splits["train"], limit, set(digests))
    overlap = len(splits["train"].rows) - available
    notes = [f"training rows left out, because their text is also held out: {overlap:,}"] if overlap else []
    return train, held_out, notes


def _digest_input(row: Row) -> bytes:
    inputs = ("tokens", "target", "text", "text_pair")
    return digest_text({name: row[name] for name in inputs if name in row}, "")


# --- Built-in tasks ---


def _read_features(value: object, count: int) -> list[dict[str, str]]:
    """Read the features of words in the format of CoNLL-U, ``Number=Sing|Person=3``; ``_`` means no features."""
    pairs = [str(text or "_").split("|") for text in read_column(value, count, "feats")]
    return [dict(pair.split("=", 1) for pair in word_pairs if "=" in pair) for word_pairs in pairs]


_READERS: Mapping[str, Callable[[Any, int], list[Any]]] = {
    "head": read_heads,
    "deprel": lambda value, count: list(map(str, read_column(value, count, "deprel"))),
    "feats": _read_features,
}
"""Column -> function that reads its value, given the number of words in the row."""


@dataclass(frozen=True)
class BuiltInTask:
    """Task whose labels are computed from the rows."""

    about: str
    make: Callable[[Rows, Rows, int], ProbeItems]
    """Function that makes items, given the rows of a split, the training rows and the index of the split."""
    columns: tuple[str, ...] = ()
    """Columns that rows must have, in addition to their words."""
    group_name: str = ""
    control: Control = "shuffled"


def read_built_in_task(name: str, recipe: Recipe, limit: int, metric: str | None = None) -> ProbeTask:
    """Read rows, and make a built-in task from them.

    Args:
        name: Name in `BUILT_IN`.
        recipe: Recipe with a data section.
        limit: Maximum number of training rows.
        metric: Metric; see `choose_metric`.

    Raises:
        DataError: If rows lack a column.
        RecipeError: If the metric does not apply to probes of labels.
    """
    task = BUILT_IN[name]
    metric = choose_metric(metric, (), is_regression=False)
    names = ("tokens", *task.columns)
    columns = ColumnSpec(inputs=names, gold="", lists=names, fallback_columns={"tokens": "text"}, always_fall_back=True)
    splits = read_splits(recipe, columns, partial(_read_columns, columns=task.columns), _is_needed)
    train_rows, test_rows, notes = choose_rows(splits, limit)
    with error_location(file=recipe.data.source or None):
        train, test = (task.make(rows, train_rows, split) for split, rows in enumerate((train_rows, test_rows)))
    return ProbeTask(
        name, task.about, train, test, metric, group_name=task.group_name, control=task.control, notes=notes
    )


def _read_columns(row: Row, columns: Sequence[str]) -> Row | None:
    """Read and check the words of a row and its other columns; return None for a row without words."""
    words = UNITS["word"].read(row)
    checked = {name: _READERS[name](row[name], len(words)) for name in columns}
    return {"tokens": words, **checked} if words else None


def _list_words(rows: Rows) -> list[list[str]]:
    return [row["tokens"] for row in rows]


def _label_texts(texts: Sequence[Sequence[str]], labels: Sequence[str], groups: Sequence[str] = ()) -> ProbeItems:
    return make_row_items([{"text": " ".join(words)} for words in texts], "text", labels, groups)


def _bin_sizes(values: Sequence[int], train_sizes: Sequence[int]) -> list[str]:
    """Return the name of each value's bin; bins have about equal numbers of training rows."""
    bins = quantile_bins(train_sizes)

    def name_bin(value: int) -> str:
        first, last = next((bounds for bounds in bins if value <= bounds[1]), bins[-1])
        return f"{first}" if first == last else f"{first} to {last}"

    return list(map(name_bin, values))


def _bin_lengths(rows: Rows, train: Rows) -> list[str]:
    return _bin_sizes(list(map(len, _list_words(rows))), list(map(len, _list_words(train))))


def _length(rows: Rows, train: Rows, _: int) -> ProbeItems:
    return _label_texts(_list_words(rows), _bin_lengths(rows, train))


def _depth(rows: Rows, train: Rows, _: int) -> ProbeItems:
    """Label each text with the bin of its tree's depth; its group is its length, on which depth depends."""
    depths, train_depths = ([compute_depth(row["head"]) for row in split_rows] for split_rows in (rows, train))
    return _label_texts(_list_words(rows), _bin_sizes(depths, train_depths), _bin_lengths(rows, train))


def _shift(rows: Rows, _: Rows, split: int) -> ProbeItems:
    """Swap two neighboring words in half of the texts, so that the accuracy of a constant answer is one half."""
    rng = np.random.default_rng([0, split])
    texts = [words for words in _list_words(rows) if len(set(words)) > 1]
    is_swapped = rng.permutation(len(texts)) < len(texts) // 2
    texts = [_swap_neighbors(words, rng) if swap else words for words, swap in zip(texts, is_swapped, strict=True)]
    return _label_texts(texts, ["swapped" if swap else "original" for swap in is_swapped])


def _swap_neighbors(words: Sequence[str], rng: np.random.Generator) -> list[str]:
    """Return the words with two different neighbors swapped."""
    first = int(rng.choice([index for index in range(len(words) - 1) if words[index] != words[index + 1]]))
    return [*words[:first], words[first + 1], words[first], *words[first + 2 :]]


def _relations(rows: Rows, _: Rows, __: int) -> ProbeItems:
    """Return the edges from words to their heads, labeled with their relations without subtypes."""
    edges = [(index, word, head - 1) for index, row in enumerate(rows) for word, head in enumerate(row["head"]) if head]
    labels = [rows[index]["deprel"][word].partition(":")[0] for index, word, _ in edges]
    positions = [((index, word), (index, head)) for index, word, head in edges]
    return make_word_items(_list_words(rows), positions, labels, "edge")


def _tense(rows: Rows, _: Rows, __: int) -> ProbeItems:
    """Return the words that have a tense, labeled with it."""
    features = [(index, word, values) for index, row in enumerate(rows) for word, values in enumerate(row["feats"])]
    tenses = {(index, word): values["Tense"] for index, word, values in features if "Tense" in values}
    return make_word_items(_list_words(rows), list(tenses), list(tenses.values()))


BUILT_IN: Mapping[str, BuiltInTask] = {
    "length": BuiltInTask("How many words has the text?", _length),
    "shift": BuiltInTask("Were two neighboring words swapped?", _shift),
    "depth": BuiltInTask("How deep is the dependency tree of the text?", _depth, ("head",), "length"),
    "relations": BuiltInTask(
        "In which relation is a word to its head?", _relations, ("head", "deprel"), "word", "types"
    ),
    "tense": BuiltInTask("Which tense has the verb?", _tense, ("feats",), "word", "types"),
}


# --- Labels of recipes ---

LABEL_METRICS = ("accuracy", "f1_macro", "f1_weighted", "balanced_accuracy", "matthews_correlation")
"""Metrics for probes of labels: the classification metrics without a positive class."""
NUMBER_METRICS = tuple(name for name in REGRESSION_METRICS if not is_lower_better(name))
"""Metrics for probes of numbers."""

_UNITS: Mapping[tuple[tuple[str, ...], str], str] = {
    (("tokens",), "tags"): "word",
    (("tokens", "target"), "sense"): "target",
    (("text",), "label"): "text",
    (("text", "text_pair"), "label"): "text",
}
"""Inputs and gold column of a task family -> unit that has a label; probes do not support other families."""


def read_recipe_task(recipe: Recipe, limit: int, metric: str | None = None) -> ProbeTask:
    """Read the rows of a recipe, and make a task of predicting their labels.

    Args:
        recipe: Recipe of the rows and labels.
        limit: Maximum number of training rows.
        metric: Metric in `LABEL_METRICS` or `NUMBER_METRICS`; by default, the first such metric of the recipe.

    Raises:
        RecipeError: If the recipe's task family does not label texts or words, or a row has several labels.
        DataError: If a row is wrong.
    """
    task = load_task(recipe)
    gold = task.COLUMNS.gold
    unit = _UNITS.get((task.COLUMNS.inputs, gold))
    if unit is None or recipe.options.get("multi_label"):
        reason = "has several labels per row" if unit else f"belongs to the family {recipe.task}"
        message = f"{recipe.name} {reason}, but probes need one label per text, pair or word"
        raise RecipeError(message, "name a recipe of text classification, regression, tags or senses")
    metric = choose_metric(metric, [recipe.best_metric, *recipe.metrics], is_regression=not task.HAS_LABEL_NAMES)
    splits = read_task_splits(recipe, task, _is_needed)
    if task.HAS_LABEL_NAMES:
        names = recipe.labels or find_names(row[gold] for split in splits.values() for row in split.rows)
        splits = {name: replace_raw_labels(split, gold, names, recipe.data) for name, split in splits.items()}
    train_rows, test_rows, notes = choose_rows(splits, limit)
    train, test = (_label_rows(rows, unit, is_named=task.HAS_LABEL_NAMES) for rows in (train_rows, test_rows))
    groups: dict[str, Any] = {
        "group_name": "word" if unit in ("word", "target") else "",
        "control": "types" if unit == "word" else "shuffled",
    }
    about = (recipe.name, recipe.about)
    return ProbeTask(*about, train, test, metric, is_regression=not task.HAS_LABEL_NAMES, notes=notes, **groups)


def choose_metric(metric: str | None, recipe_metrics: Sequence[str], *, is_regression: bool) -> str:
    """Return the requested metric, or else the first metric of the recipe that probes support.

    Raises:
        RecipeError: If probes of such labels do not support the requested metric.
    """
    allowed = NUMBER_METRICS if is_regression else LABEL_METRICS
    if metric is None:
        return next((name for name in recipe_metrics if name in allowed), allowed[0])
    if metric not in allowed:
        raise RecipeError(f"--metric {metric} does not apply to this task", f"choose one of: {', '.join(allowed)}")
    return metric


def _label_rows(rows: list[Row], unit: str, *, is_named: bool) -> ProbeItems:
    """Return one item per labeled word, target word, text or pair of texts."""
    if unit == "word":
        tags = {
            (index, word): tag
            for index, row in enumerate(rows)
            for word, tag in enumerate(row["tags"])
            if tag is not None
        }
        return make_word_items(_list_words(rows), list(tags), list(tags.values()))
    if unit == "target":
        targets = [int(row["target"]) for row in rows]
        inputs = _pick_columns(rows, "tokens", "target")
        return make_row_items(inputs, unit, [row["sense"] for row in rows], [str(row["word"]) for row in rows], targets)
    labels = [row["label"] for row in rows]
    if not rows or "text_pair" not in rows[0]:
        return make_row_items(_pick_columns(rows, "text"), "text", labels)
    if is_named:
        return make_row_items(_pick_columns(rows, "text", "text_pair"), "pair", labels)
    # Regression of a pair, such as text similarity, compares the vectors of both texts, so each text is a separate row.
    # All first texts come first: with two pairs, the addresses are [[[0, 0], [2, 0]], [[1, 0], [3, 0]]].
    texts = [{"text": row[column]} for column in ("text", "text_pair") for row in rows]
    indices = np.arange(2 * len(rows)).reshape(2, -1).T
    addresses = np.stack([indices, np.zeros_like(indices)], axis=2)
    return ProbeItems(texts, "text", addresses, labels, combination="difference")


def _pick_columns(rows: Rows, *names: str) -> list[Row]:
    return [{name: row[name] for name in names} for row in rows]

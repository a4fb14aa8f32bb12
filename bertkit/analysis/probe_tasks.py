"""Tasks of probes: the labels of a recipe's rows, or tasks that are made from the rows themselves.

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
from bertkit.metrics.registry import REGRESSION, is_lower_better
from bertkit.metrics.reliability import quantile_bins
from bertkit.recipe.records import Recipe
from bertkit.recipe.sections import Row
from bertkit.tasks import load_task
from bertkit.tokens.features import Rows
from bertkit.vectors.units import UNITS

_MIN_ROWS = {"training": 10, "held-out": 2}

Combination = Literal["alone", "difference", "edge"]
"""How vectors become features: ``u`` alone; ``|u - v|`` and ``u * v`` of two texts; ``u``, ``v``, ``u * v`` of words.

The order of two texts does not matter; the edge probe knows which word is the dependent.
"""

Control = Literal["types", "shuffled"]
"""Kind of a control task: a random label per group, or the labels shuffled within each group."""


@dataclass(frozen=True)
class ProbeItems:
    """Items of one split, in the order of their rows, with the addresses of their vectors."""

    rows: list[Row]
    unit: str
    """Unit of a vector, as `bertkit.analysis.layer_vectors.LayerReader.read` takes it."""
    addresses: np.ndarray
    """(items, vectors, 2): index in `rows` and index of the word for each vector."""
    labels: Sequence[Any]
    """Names, or numbers for regression."""
    groups: Sequence[str] = ()
    """Property that can predict the label without the text: the word itself, or the length; empty for none."""
    combination: Combination = "alone"

    @property
    def owners(self) -> np.ndarray:
        """Row of each item, (items,), ascending; items of one row are drawn together."""
        return np.asarray(self.addresses[:, 0, 0])

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.labels)

    def select(self, indices: np.ndarray) -> ProbeItems:
        """Return some of the items."""
        labels = [self.labels[index] for index in indices.tolist()]
        groups = [self.groups[index] for index in indices.tolist()] if len(self.groups) else []
        return replace(self, addresses=self.addresses[indices], labels=labels, groups=groups)


@dataclass(frozen=True)
class ProbeTask:
    """A task of probes: items to learn from, others to score, and the metric."""

    name: str
    about: str
    train: ProbeItems
    test: ProbeItems
    metric: str
    """Name of a function of `bertkit.metrics.registry`."""
    is_regression: bool = False
    group_name: str = ""
    """Name of `ProbeItems.groups`: ``word``, ``length``, or empty."""
    control: Control = "shuffled"
    notes: list[str] = field(default_factory=list)

    def check(self) -> None:
        """Check that there are labels to learn and rows to score.

        Raises:
            DataError: If there are too few.
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


def one_per_row(
    rows: list[Row], unit: str, labels: Sequence[Any], groups: Sequence[str] = (), words: Sequence[int] = ()
) -> ProbeItems:
    """Return an item per row; `words` are the indices of the target words in rows of words."""
    # (rows, 2), and with an axis for the single vector of each item (rows, 1, 2).
    places = np.stack([np.arange(len(rows)), words if len(words) else np.zeros(len(rows), dtype=int)], axis=1)
    return ProbeItems(rows, unit, places[:, None], labels, groups)


def one_per_word(
    texts: Sequence[Sequence[str]], places: Sequence[Any], labels: Sequence[Any], combination: Combination = "alone"
) -> ProbeItems:
    """Return an item per word of texts, which are lists of words, or an item per edge between two words.

    A place is the index of a text and the index of a word in it; an edge has two of them, and its first word is its
    group.
    """
    # The shape is explicit, because an empty list of places would lose its last axes.
    addresses = np.array(places, dtype=np.int64).reshape(-1, 2 if combination == "edge" else 1, 2)
    groups = [texts[text][word].lower() for text, word in addresses[:, 0].tolist()]
    return ProbeItems([{"tokens": words} for words in texts], "word", addresses, labels, groups, combination)


# --- Rows ---


def _is_needed(split: str) -> bool:
    return split == "train" or is_validation(split)


def choose_rows(splits: Mapping[str, Split], limit: int) -> tuple[list[Row], list[Row], list[str]]:
    """Return training rows, held-out rows and notes about them.

    Rows are drawn by a hash of the input of a model. So the order of a file does not matter, and two tasks on the same
    words have the same rows. A training row that is held out too is left out.

    Args:
        splits: ``train`` and a validation split.
        limit: Maximum training rows; held-out rows are half as many.

    Raises:
        DataError: If one of the two splits is missing.
    """
    validation = next((split for name, split in splits.items() if is_validation(name)), None)
    if "train" not in splits or validation is None:
        message = f"probes need training rows and held-out rows; there is {', '.join(splits) or 'no split'}"
        raise DataError(message, "name them, e.g. --set 'data.files={train: a.jsonl, validation: b.jsonl}'")

    def draw(split: Split, count: int, left_out: Collection[bytes]) -> tuple[list[Row], list[bytes], int]:
        digests = list(map(_digest_input, split.rows))
        available = [index for index, digest in enumerate(digests) if digest not in left_out]
        # Take the rows with the lowest digests, then restore the order of the file.
        indices = sorted(sorted(available, key=digests.__getitem__)[:count])
        return [split.rows[index] for index in indices], [digests[index] for index in indices], len(available)

    held_out, digests, _ = draw(validation, max(limit // 2, 1), ())
    train, _, available = draw(splits["train"], limit, set(digests))
    overlap = len(splits["train"].rows) - available
    notes = [f"training rows whose text is held out too, left out: {overlap:,}"] if overlap else []
    return train, held_out, notes


def _digest_input(row: Row) -> bytes:
    inputs = ("tokens", "target", "text", "text_pair")
    return digest_text({name: row[name] for name in inputs if name in row}, "")


# --- Built-in tasks ---


def _read_features(value: object, count: int) -> list[dict[str, str]]:
    """Read features as CoNLL-U writes them, ``Number=Sing|Person=3``; ``_`` means no features."""
    pairs = [str(text or "_").split("|") for text in read_column(value, count, "feats")]
    return [dict(pair.split("=", 1) for pair in word_pairs if "=" in pair) for word_pairs in pairs]


_READERS: Mapping[str, Callable[[Any, int], list[Any]]] = {
    "head": read_heads,
    "deprel": lambda value, count: list(map(str, read_column(value, count, "deprel"))),
    "feats": _read_features,
}
"""Column -> function that reads its value in a row with a number of words."""


@dataclass(frozen=True)
class BuiltInTask:
    """A task that is made from the rows themselves."""

    about: str
    make: Callable[[Rows, Rows, int], ProbeItems]
    """Makes items of rows, given the training rows and the index of the split."""
    columns: tuple[str, ...] = ()
    """Columns that rows must have, in addition to their words."""
    group_name: str = ""
    control: Control = "shuffled"


def read_built_in_task(name: str, recipe: Recipe, limit: int, metric: str | None = None) -> ProbeTask:
    """Read rows, and make one of `BUILT_IN` from them.

    Args:
        name: Name of the task.
        recipe: Recipe with a data section.
        limit: Maximum training rows.
        metric: Metric as `read_recipe_task` takes it.

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
    """Check and return the words of a row and its other columns, or None if it has no words."""
    words = UNITS["word"].read(row)
    checked = {name: _READERS[name](row[name], len(words)) for name in columns}
    return {"tokens": words, **checked} if words else None


def _list_words(rows: Rows) -> list[list[str]]:
    return [row["tokens"] for row in rows]


def _label_texts(texts: Sequence[Sequence[str]], labels: Sequence[str], groups: Sequence[str] = ()) -> ProbeItems:
    return one_per_row([{"text": " ".join(words)} for words in texts], "text", labels, groups)


def _bin_sizes(sizes: Sequence[int], train_sizes: Sequence[int]) -> list[str]:
    """Return the name of each size's bin; bins hold about equally many training rows."""
    bins = quantile_bins(train_sizes)

    def name_bin(size: int) -> str:
        first, last = next((ends for ends in bins if size <= ends[1]), bins[-1])
        return f"{first}" if first == last else f"{first} to {last}"

    return list(map(name_bin, sizes))


def _bin_lengths(rows: Rows, train: Rows) -> list[str]:
    return _bin_sizes(list(map(len, _list_words(rows))), list(map(len, _list_words(train))))


def _length(rows: Rows, train: Rows, _: int) -> ProbeItems:
    return _label_texts(_list_words(rows), _bin_lengths(rows, train))


def _depth(rows: Rows, train: Rows, _: int) -> ProbeItems:
    """Bin the depths of trees; the length of the text is the group, because depth depends on it."""
    depths, train_depths = ([compute_depth(row["head"]) for row in split_rows] for split_rows in (rows, train))
    return _label_texts(_list_words(rows), _bin_sizes(depths, train_depths), _bin_lengths(rows, train))


def _shift(rows: Rows, _: Rows, split: int) -> ProbeItems:
    """Swap two neighboring words in one half of the texts."""
    rng = np.random.default_rng([0, split])
    texts = [words for words in _list_words(rows) if len(set(words)) > 1]
    # Half of the texts are swapped, so that a constant answer is right half of the time.
    swapped = rng.permutation(len(texts)) < len(texts) // 2
    texts = [_swap_neighbors(words, rng) if swap else words for words, swap in zip(texts, swapped, strict=True)]
    return _label_texts(texts, ["swapped" if swap else "as it is" for swap in swapped])


def _swap_neighbors(words: Sequence[str], rng: np.random.Generator) -> list[str]:
    """Return the words with two different neighbors swapped."""
    first = int(rng.choice([index for index in range(len(words) - 1) if words[index] != words[index + 1]]))
    return [*words[:first], words[first + 1], words[first], *words[first + 2 :]]


def _relations(rows: Rows, _: Rows, __: int) -> ProbeItems:
    """Return each word with its head; the label is their relation, without its subtype."""
    edges = [(index, word, head - 1) for index, row in enumerate(rows) for word, head in enumerate(row["head"]) if head]
    labels = [rows[index]["deprel"][word].partition(":")[0] for index, word, _ in edges]
    places = [((index, word), (index, head)) for index, word, head in edges]
    return one_per_word(_list_words(rows), places, labels, "edge")


def _tense(rows: Rows, _: Rows, __: int) -> ProbeItems:
    """Return the words that have a tense."""
    features = [(index, word, values) for index, row in enumerate(rows) for word, values in enumerate(row["feats"])]
    tenses = {(index, word): values["Tense"] for index, word, values in features if "Tense" in values}
    return one_per_word(_list_words(rows), list(tenses), list(tenses.values()))


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
"""Metrics of probes of labels: those without a positive class."""
REGRESSION_METRICS = tuple(name for name in REGRESSION if not is_lower_better(name))
"""Metrics of probes of numbers."""

_UNITS: Mapping[tuple[tuple[str, ...], str], str] = {
    (("tokens",), "tags"): "word",
    (("tokens", "target"), "sense"): "target",
    (("text",), "label"): "text",
    (("text", "text_pair"), "label"): "text",
}
"""Canonical columns of a task family -> unit that has a label; other families have no labels that a vector predicts."""


def read_recipe_task(recipe: Recipe, limit: int, metric: str | None = None) -> ProbeTask:
    """Read the rows of a recipe, and make a task of their labels.

    Args:
        recipe: Recipe of the rows and labels.
        limit: Maximum training rows.
        metric: Metric of `LABEL_METRICS` or `REGRESSION_METRICS`; by default the first such metric of the recipe.

    Raises:
        RecipeError: If the recipe's task family does not label texts or words, or a row has several labels.
        DataError: If a row is wrong.
    """
    task = load_task(recipe)
    gold = task.COLUMNS.gold
    unit = _UNITS.get((task.COLUMNS.inputs, gold))
    if unit is None or recipe.options.get("multi_label"):
        reason = "has several labels per row" if unit else f"belongs to the family {recipe.task}"
        message = f"{recipe.name} {reason}, and probes read one label of a text, a pair or a word"
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


def choose_metric(metric: str | None, offered: Sequence[str], *, is_regression: bool) -> str:
    """Return the requested metric, or the first offered metric that probes have.

    Raises:
        RecipeError: If probes of such labels do not have it.
    """
    allowed = REGRESSION_METRICS if is_regression else LABEL_METRICS
    if metric is None:
        return next((name for name in offered if name in allowed), allowed[0])
    if metric not in allowed:
        raise RecipeError(f"--metric {metric} does not apply to this task", f"choose one of: {', '.join(allowed)}")
    return metric


def _label_rows(rows: list[Row], unit: str, *, is_named: bool) -> ProbeItems:
    """Return an item per labeled word, target word, text or pair of texts."""
    if unit == "word":
        tags = {
            (index, word): tag
            for index, row in enumerate(rows)
            for word, tag in enumerate(row["tags"])
            if tag is not None
        }
        return one_per_word(_list_words(rows), list(tags), list(tags.values()))
    if unit == "target":
        targets = [int(row["target"]) for row in rows]
        inputs = _pick_columns(rows, "tokens", "target")
        return one_per_row(inputs, unit, [row["sense"] for row in rows], [str(row["word"]) for row in rows], targets)
    labels = [row["label"] for row in rows]
    if not rows or "text_pair" not in rows[0]:
        return one_per_row(_pick_columns(rows, "text"), "text", labels)
    if is_named:
        return one_per_row(_pick_columns(rows, "text", "text_pair"), "pair", labels)
    # Regression, such as text similarity, compares the vectors of two texts that are read separately. All first texts
    # come before all second ones: with two rows, the addresses are [[[0, 0], [2, 0]], [[1, 0], [3, 0]]].
    texts = [{"text": row[column]} for column in ("text", "text_pair") for row in rows]
    indices = np.arange(2 * len(rows)).reshape(2, -1).T
    addresses = np.stack([indices, np.zeros_like(indices)], axis=2)
    return ProbeItems(texts, "text", addresses, labels, combination="difference")


def _pick_columns(rows: Rows, *names: str) -> list[Row]:
    return [{name: row[name] for name in names} for row in rows]

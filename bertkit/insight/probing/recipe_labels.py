"""The labels of a recipe's rows as a task for probes: of texts, pairs, words, or one word of a text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from bertkit.data.labels import find_names, name_split
from bertkit.errors import RecipeError
from bertkit.evaluation.splits import read_task_splits
from bertkit.insight.probing.items import ProbeItems, ProbeTask, one_per_word
from bertkit.insight.probing.rows import choose_rows, is_needed
from bertkit.metrics.basic import REGRESSION, is_lower_better
from bertkit.recipe import Recipe, Row
from bertkit.tasks import Task, load_task

OF_LABELS = ("accuracy", "f1_macro", "f1_weighted", "balanced_accuracy", "matthews_correlation")
"""Metrics of probes of labels: those that know no positive class."""
REGRESSION_METRICS = tuple(name for name in REGRESSION if not is_lower_better(name))
"""Metrics of probes of numbers."""

_UNITS: Mapping[tuple[tuple[str, ...], str], str] = {
    (("tokens",), "tags"): "word",
    (("tokens", "target"), "sense"): "target",
    (("text",), "label"): "text",
    (("text", "text_pair"), "label"): "text",
}
"""Canonical columns of a task family -> what has a label; other families have none that a vector could tell."""


_READ = {"target": ("tokens", "target"), "text": ("text",), "pair": ("text", "text_pair")}
"""What a vector stands for -> the columns that it is read from."""


def read_recipe_task(recipe: Recipe, limit: int, metric: str | None = None) -> ProbeTask:
    """Read the rows of a recipe, and make a task for probes of their labels.

    Args:
        recipe: whose rows and labels they are.
        limit: training rows at most.
        metric: Metric of `OF_LABELS` or `REGRESSION_METRICS`; by default the first such metric of the recipe.

    Raises:
        RecipeError: the labels of the recipe's task family are not those of texts or words, or a row has several.
        DataError: rows are wrong.
    """
    task = load_task(recipe)
    unit = _UNITS.get((task.COLUMNS.given, task.COLUMNS.gold))
    if unit is None or recipe.options.get("multi_label"):
        why = "has several labels per row" if unit else f"is of the family {recipe.task}"
        what = f"{recipe.name} {why}, and probes read one label of a text, a pair or a word"
        raise RecipeError(what, "name a recipe of text classification, regression, tags or senses")
    chosen = choose_metric(metric, [recipe.best_metric, *recipe.metrics], is_regression=not task.NAMED)
    splits = read_task_splits(recipe, task, is_needed)
    gold = task.COLUMNS.gold
    if task.NAMED:
        names = recipe.labels or find_names(row[gold] for split in splits.values() for row in split.rows)
        splits = {name: name_split(split, gold, names, recipe.data) for name, split in splits.items()}
    inputs = ("tokens", "target", "text", "text_pair")
    train, held_out, notes = choose_rows(splits, lambda row: {name: row[name] for name in inputs if name in row}, limit)
    build, group_name = _choose_builder(unit, task, train)
    return ProbeTask(
        name=recipe.name,
        about=recipe.about,
        train=build(train),
        test=build(held_out),
        metric=chosen,
        is_regression=not task.NAMED,
        group_name=group_name,
        control="types" if unit == "word" else "shuffled",
        notes=notes,
    )


def choose_metric(metric: str | None, offered: Sequence[str], *, is_regression: bool) -> str:
    """Return the metric that is asked for, or the first offered one that probes have.

    Raises:
        RecipeError: probes of such labels do not have it.
    """
    allowed = REGRESSION_METRICS if is_regression else OF_LABELS
    if metric is None:
        return next((name for name in offered if name in allowed), allowed[0])
    if metric not in allowed:
        raise RecipeError(f"--metric {metric} is none of this task", f"there are: {', '.join(allowed)}")
    return metric


def _choose_builder(unit: str, task: Task, rows: Sequence[Row]) -> tuple[Callable[[Sequence[Row]], ProbeItems], str]:
    """Return what makes items of rows, and what groups them; a pair with a class is read together."""
    if unit == "word":
        return _of_words, "word"
    if unit == "target":
        return partial(_one_per_row, unit="target", gold="sense"), "word"
    has_pairs = bool(rows) and "text_pair" in rows[0]
    if has_pairs and not task.NAMED:
        return _of_similar_texts, ""
    return partial(_one_per_row, unit="pair" if has_pairs else "text", gold="label"), ""


def _of_words(rows: Sequence[Row]) -> ProbeItems:
    """Return the labeled words of rows."""
    places = [(row, word) for row, one in enumerate(rows) for word, tag in enumerate(one["tags"]) if tag is not None]
    return one_per_word([row["tokens"] for row in rows], places, [rows[row]["tags"][word] for row, word in places])


def _of_similar_texts(rows: Sequence[Row]) -> ProbeItems:
    """Return pairs of texts that are read apart, and compared."""
    count = len(rows)
    numbers = np.stack([np.arange(count), count + np.arange(count)], axis=1)
    return ProbeItems(
        rows=[{"text": row[column]} for column in ("text", "text_pair") for row in rows],
        unit="text",
        addresses=np.stack([numbers, np.zeros_like(numbers)], axis=2),
        labels=[row["label"] for row in rows],
        groups=[],
        combination="difference",
    )


def _one_per_row(rows: Sequence[Row], *, unit: str, gold: str) -> ProbeItems:
    """Return one item per row: its text, its pair of texts, or its target word."""
    words = np.array([int(row.get("target", 0)) for row in rows])
    return ProbeItems(
        rows=[{column: row[column] for column in _READ[unit]} for row in rows],
        unit=unit,
        addresses=np.stack([np.arange(len(rows)), words], axis=1)[:, None],
        labels=[row[gold] for row in rows],
        groups=[str(row["word"]) for row in rows] if unit == "target" else [],
    )

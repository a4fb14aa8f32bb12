"""Demo data: a tiny model, rows and text, with which every recipe runs offline.

`tools/demo` writes the files. The demo rows of a recipe depend on its task family, columns, labels and options, not on
its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any

from bertkit.data.files import SPLIT_NAMES, read_records
from bertkit.data.text import Record
from bertkit.errors import DataError, RecipeError
from bertkit.recipe.records import DataConfig, Recipe
from bertkit.recipe.sections import Row
from bertkit.recipe.yaml import read_yaml

_FOLDER = Path(__file__).parent
TEXT = _FOLDER / "text" / "train.txt.gz"
"""Text to pretrain on: one paragraph per line."""

_SHARED_ROWS = {
    "few_shot": "text_classification",
    "zero_shot": "text_classification",
    "similarity": "text_regression",
    "sparse": "contrastive",
    "late_interaction": "contrastive",
}
"""Task family -> family with the same demo rows."""

_TOPICS = 430
"""Number of topics in the demo set `topics`."""


@dataclass(frozen=True)
class DemoSet:
    """Folder of demo rows, with the recipes that can use it."""

    name: str
    task: str
    columns: Sequence[str]
    """Columns of the rows; the last one is the gold column."""
    labels: Sequence[str] = ()
    """Labels of the rows; empty for task families without labels."""
    config: str | None = None
    """Configuration (``data.config``) of the dataset that the rows imitate."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options that a recipe must have."""
    new_labels: Mapping[Any, str] = field(default_factory=dict)
    """Label in the file -> label of the recipe, for recipes with custom labels."""

    def fits(self, recipe: Recipe) -> bool:
        """Return whether a recipe can be trained on these rows."""
        same_labels = not (recipe.labels and self.labels) or {*recipe.labels} == {*self.labels}
        return same_labels and all(recipe.options.get(name) == value for name, value in self.options.items())

    def distance(self, recipe: Recipe) -> tuple[int, bool, int]:
        """Return the differences between a recipe and this set, as a sort key: columns, config, options."""
        different_columns = {*self.columns} ^ {*recipe.data.columns}
        # Among otherwise equal sets, the set with more required options is more specific, and comes first.
        return len(different_columns), self.config is None or self.config != recipe.data.config, -len(self.options)

    def read(self, split: str) -> Iterator[Record]:
        """Read the rows of a split."""
        gold = self.columns[-1]
        for line, values in read_records(_FOLDER / self.name / f"{split}.jsonl.gz", DataConfig()):
            row = {column: values[column] for column in self.columns}
            if self.new_labels and isinstance(row[gold], list):
                row[gold] = [self.new_labels[label] for label in row[gold]]
            elif self.new_labels:
                row[gold] = self.new_labels[row[gold]]
            yield line, row


def find_demo_set(recipe: Recipe) -> DemoSet:
    """Return the demo set that matches a recipe best.

    Raises:
        DataError: If the task family of the recipe has no demo rows.
    """
    task = _SHARED_ROWS.get(recipe.task, recipe.task)
    set_table = read_yaml((_FOLDER / "sets.yaml").read_text("utf-8"), "sets.yaml")[0]
    shipped_sets = [DemoSet(name, **values) for name, values in set_table.items() if values["task"] == task]
    custom_sets = _relabel(shipped_sets, task, recipe.labels) if recipe.labels else []
    fitting_sets = [demo_set for demo_set in shipped_sets + custom_sets if demo_set.fits(recipe)]
    if not fitting_sets:
        raise DataError(f"no demo data for the task family {recipe.task!r}", "add --data FILE, or a directory")
    return min(fitting_sets, key=lambda demo_set: demo_set.distance(recipe))


def _relabel(shipped_sets: Sequence[DemoSet], task: str, labels: list[str]) -> list[DemoSet]:
    """Return demo sets whose rows get the labels of a recipe: topics, or the words of a shipped set."""
    if task == "text_classification":
        # Neighboring topics share a label. With 4 labels, topics 0 to 107 get the first, and 108 to 214 the second.
        topics = {topic: labels[topic * len(labels) // _TOPICS] for topic in range(_TOPICS)}
        texts = DemoSet("topics", task, ("text", "label"), labels, new_labels=topics)
        return [texts, replace(texts, columns=("text", "text_pair", "label"))]
    if task == "token_classification":
        sets_by_name = {demo_set.name: demo_set for demo_set in shipped_sets}
        words = sets_by_name["pos"]
        new_labels: Iterator[str] = cycle(labels)
        types = [label[2:] for label in labels if label.startswith("B-")]
        if types and {*labels} == {"O", *_name_tags(types)}:
            words, new_labels = sets_by_name["ner"], chain(["O"], _name_tags(cycle(types)))
        new_tags = dict(zip(words.labels, new_labels, strict=False))
        return [replace(words, labels=labels, config=None, new_labels=new_tags)]
    return []


def _name_tags(types: Iterable[str]) -> Iterator[str]:
    return (f"{prefix}-{name}" for name in types for prefix in "BI")


def open_demo(recipe: Recipe) -> tuple[DataConfig, dict[str, tuple[str, Callable[[], Iterator[Record]]]]]:
    """Return the data settings for a recipe's demo rows, and split -> (source name, function that reads it).

    Raises:
        DataError: If the task family of the recipe has no demo rows.
        RecipeError: If the recipe names files.
    """
    if recipe.data.files:
        message = f"the demo data has no files, but data.files names {next(iter(recipe.data.files.values()))}"
        raise RecipeError(message, "leave data.files out, or --data with a folder of files")
    demo_set = find_demo_set(recipe)
    files = (_FOLDER / demo_set.name).glob("*.jsonl.gz")
    splits = {file.name.partition(".")[0] for file in files} & {*SPLIT_NAMES, *recipe.data.splits}
    data = recipe.data.model_copy(update={"columns": {column: column for column in demo_set.columns}})
    return data, {split: (f"demo/{demo_set.name}/{split}", partial(demo_set.read, split)) for split in splits}


def read_demo_rows(recipe: Recipe, split: str, limit: int | None = None) -> list[Row]:
    """Return the demo rows of a split for a recipe, at most `limit`.

    Raises:
        DataError: If the task family of the recipe has no demo rows.
    """
    return [row for _, row in islice(find_demo_set(recipe).read(split), limit)]

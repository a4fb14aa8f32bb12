"""Task families: one module each, and what such a module must offer.

A family turns rows into features, a model's outputs into predictions, and predictions into scores. Its
module imports torch and transformers inside its functions only, so that a recipe and its rows can be checked
without them.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from bertkit.data.rows import Columns
from bertkit.errors import RecipeError
from bertkit.features import Collator, Feature, Setup
from bertkit.metrics import check_metrics
from bertkit.recipe import Recipe, Row, closest

Prediction = dict[str, Any]
"""One record per row: ``prediction`` (label name, list of names, or number) and what else the family knows."""

Output = Mapping[str, Any]
"""What the model said of one feature: name of an output -> numpy array."""


class Task(Protocol):
    """A task family: a few constants and seven functions."""

    COLUMNS: Columns
    """Canonical columns of a row; rows to predict need not have the gold one."""
    NAMED: bool
    """Whether gold values are label names."""
    METRICS: tuple[str, ...]
    """Names of the functions of `bertkit.metrics` that fit."""
    OPTIONS: Mapping[str, Any]
    """Keys a recipe may set under ``options``, with their defaults."""

    def read(self, row: Row, recipe: Recipe) -> Row:
        """Check one row's canonical values and give them this family's types; raises DataError."""

    def load_model(self, folder: Path, setup: Setup, *, new_head: bool) -> Any:
        """Load the checkpoint with this family's head; only with `new_head` may the head be untrained."""

    def encode(self, rows: Sequence[Row], setup: Setup) -> list[Feature]:
        """Turn rows into features, one or more a row; ``row`` tells which row a feature belongs to."""

    def collator(self, setup: Setup) -> Collator:
        """Make the function that turns a list of features into a batch of tensors."""

    def decode(
        self, outputs: Sequence[Output], features: Sequence[Feature], rows: Sequence[Row], setup: Setup
    ) -> list[Prediction]:
        """Turn the model's outputs, one a feature, into one prediction a row."""

    def score(self, predictions: Sequence[Prediction], rows: Sequence[Row], setup: Setup) -> dict[str, float]:
        """Score predictions against the rows' gold values by the recipe's metrics."""

    def baseline(self, training: Sequence[Row], rows: Sequence[Row], setup: Setup) -> list[Prediction]:
        """Predict the rows knowing the training rows' gold values, but none of the texts."""


_FUNCTIONS = ("read", "load_model", "encode", "collator", "decode", "score", "baseline")
_CONSTANTS = ("COLUMNS", "NAMED", "METRICS", "OPTIONS")


def task_names() -> list[str]:
    """List the task families that come with bertkit."""
    return sorted(file.stem for file in Path(__file__).parent.glob("[a-z]*.py"))


def load_task(recipe: Recipe) -> Task:
    """Load the task family of a recipe and check what of the recipe only the family can check.

    Raises:
        RecipeError: no such family, a module that lacks a function, or columns, options or metrics it does
            not know.
    """
    task = _load_module(recipe.task)
    columns = task.COLUMNS
    known = [*columns.given, *columns.optional, *([columns.gold] if columns.gold else []), "id"]
    _check_names("data.columns", recipe.data.columns, known)
    _check_names("options", recipe.options, task.OPTIONS)
    check_metrics(recipe, task.METRICS)
    return task


def option(task: Task, recipe: Recipe, name: str) -> Any:
    """Give a recipe's option, or the family's default for it."""
    return recipe.options.get(name, task.OPTIONS[name])


def _load_module(name: str) -> Task:
    if name in task_names():
        return cast(Task, importlib.import_module(f"bertkit.tasks.{name}"))
    try:
        found = "." in name and importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        found = False
    if not found:
        where = f"{closest(name, task_names())}; a module of your own is named package.module and must be importable"
        raise RecipeError(f"no task family is called {name!r}", where if "." in name else closest(name, task_names()))
    module = importlib.import_module(name)
    lacking = [part for part in (*_FUNCTIONS, *_CONSTANTS) if not hasattr(module, part)]
    if lacking:
        raise RecipeError(f"the task family {name} lacks {', '.join(lacking)}", "see docs/own-task.md")
    return cast(Task, module)


def _check_names(section: str, given: Mapping[str, Any], known: Sequence[str] | Mapping[str, Any]) -> None:
    for name in given:
        if name not in known:
            raise RecipeError(f"unknown key '{section}.{name}'", closest(name, known))

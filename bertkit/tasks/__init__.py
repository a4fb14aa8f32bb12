"""Task families: one module each, and what such a module must offer.

A family turns rows into features, a model's outputs into predictions, and predictions into scores. Its
module imports torch and transformers inside its functions only, so that a recipe and its rows can be checked
without them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from bertkit.data.rows import Columns
from bertkit.metrics.basic import check_metrics, measure
from bertkit.recipe import Recipe, Row
from bertkit.recipe.options import check_names, check_options
from bertkit.recipe.plugins import load_module, module_names
from bertkit.tokens.features import Collator, Feature, Setup

if TYPE_CHECKING:
    import numpy as np

Prediction = dict[str, Any]
"""One record per row: ``prediction`` (the answer) and what else the family knows.

Keys that begin with ``_`` are for the family's own `details` and are not written out.
"""

Output = Mapping[str, Any]
"""What the model said of one feature: name of an output -> numpy array."""

Compared = dict[str, "np.ndarray[Any, Any]"]
"""Predictions beside gold values: arrays whose first axis is rows, so that resampling rows is indexing."""

Run = Callable[[Any, Sequence[Feature]], list[Output]]
"""Gives the outputs of a module (the model, or a part of it) for features, without gradients."""


@dataclass(frozen=True)
class Answer:
    """One row's answer in words, for a report."""

    gold: str
    predicted: str
    right: bool
    confidence: float | None = None


@dataclass(frozen=True)
class Details:
    """What a family tells beside its scores; everything may be empty."""

    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Title -> rows of a table with the same keys, such as the scores of each entity type."""
    files: dict[str, Any] = field(default_factory=dict)
    """Name of a file that lies beside the predictions -> its content as JSON."""
    answers: list[Answer] | None = None
    """One a row; None where the gold value and ``prediction`` speak for themselves."""
    warnings: list[str] = field(default_factory=list)


class Task(Protocol):
    """A task family: a few constants and eleven functions, three of which most families take from here."""

    COLUMNS: Columns
    """Canonical columns of a row; rows to predict need not have the gold one."""
    NAMED: bool
    """Whether gold values are label names, or lists of them."""
    METRICS: tuple[str, ...]
    """Names of the functions of `bertkit.metrics.basic` that fit."""
    OPTIONS: Mapping[str, Any]
    """Keys a recipe may set under ``options``: an Option each, or just its default."""

    def read(self, row: Row, recipe: Recipe) -> Row | None:
        """Check one row's canonical values and give them this family's types; raises DataError.

        None leaves a row with a gold column out, because there is nothing in it to learn or to score.
        """

    def load_model(self, folder: Path, setup: Setup, *, new_head: bool) -> Any:
        """Load the checkpoint with this family's head; only with `new_head` may the head be untrained."""

    def encode(self, rows: Sequence[Row], setup: Setup) -> list[Feature]:
        """Turn rows into features, one or more a row in order; ``row`` tells which row a feature belongs to."""

    def collator(self, setup: Setup) -> Collator:
        """Make the function that turns a list of features into a batch of tensors."""

    def decode(
        self, outputs: Sequence[Output], features: Sequence[Feature], rows: Sequence[Row], setup: Setup
    ) -> list[Prediction]:
        """Turn the model's outputs, one a feature, into one prediction a row."""

    def compare(self, predictions: Sequence[Prediction], rows: Sequence[Row], setup: Setup) -> Compared:
        """Put predictions beside the rows' gold values, as whatever arrays `score` sums up."""

    def score(self, compared: Compared, setup: Setup) -> dict[str, float]:
        """Give the recipe's metrics; called once on all rows, and a thousand times on resampled ones."""

    def baseline(self, training: Sequence[Row], rows: Sequence[Row], setup: Setup) -> list[Prediction]:
        """Predict the rows knowing the training rows' gold values, but none of the texts."""

    def precompute(self, model: Any, features: Mapping[str, Sequence[Feature]], setup: Setup, run: Run) -> bool:
        """Compute what training needs only once, without gradients; True where nothing is left to train.

        Takes the features by split, and may add to them.
        """

    def tune(self, predictions: Sequence[Prediction], rows: Sequence[Row], setup: Setup) -> dict[str, Any]:
        """Give the options that are best set by looking at validation rows; kept in the run's record."""

    def details(self, predictions: Sequence[Prediction], rows: Sequence[Row], setup: Setup) -> Details:
        """Give what there is to tell beside the scores."""


def compare_values(predictions: Sequence[Prediction], rows: Sequence[Row], setup: Setup) -> Compared:
    """Give the ``gold`` and ``predicted`` numbers of rows whose gold column is ``label``."""
    import numpy as np

    return {
        "gold": np.array([row["label"] for row in rows]),
        "predicted": np.array([each["prediction"] for each in predictions]),
    }


def score_values(compared: Compared, setup: Setup) -> dict[str, float]:
    """Measure ``predicted`` against ``gold`` by the metrics of `bertkit.metrics.basic`."""
    return measure(setup.recipe, compared["gold"], compared["predicted"])


def no_precompute(model: Any, features: Mapping[str, Sequence[Feature]], setup: Setup, run: Run) -> bool:
    """Compute nothing: all of the model is trained."""
    return False


def no_tuning(predictions: Sequence[Prediction], rows: Sequence[Row], setup: Setup) -> dict[str, Any]:
    """Tune nothing."""
    return {}


def no_details(predictions: Sequence[Prediction], rows: Sequence[Row], setup: Setup) -> Details:
    """Tell nothing beside the scores."""
    return Details()


_FUNCTIONS = tuple(name for name in vars(Task) if not name.startswith("_"))
_CONSTANTS = ("COLUMNS", "NAMED", "METRICS", "OPTIONS")


def task_names() -> list[str]:
    """List the task families that come with bertkit."""
    return module_names(__name__)


def load_task(recipe: Recipe) -> Task:
    """Load the task family of a recipe and check what of the recipe only the family can check.

    Raises:
        RecipeError: no such family, a module that lacks a function, or columns, options or metrics it does
            not know.
    """
    parts = (*_FUNCTIONS, *_CONSTANTS)
    task = cast(Task, load_module("task family", recipe.task, __name__, parts, "docs/own-task.md"))
    columns = task.COLUMNS
    check_names("data.columns", recipe.data.columns, columns.names)
    check_options(recipe.options, task.OPTIONS)
    check_metrics(recipe, task.METRICS)
    return task


def with_options(setup: Setup, options: Mapping[str, Any]) -> Setup:
    """Give a setup whose recipe has these options too."""
    recipe = setup.recipe.model_copy(update={"options": {**setup.recipe.options, **options}})
    return replace(setup, recipe=recipe)


def example_row(task: Task, recipe: Recipe) -> str:
    """Write the options of `bertkit predict` that give one row, with dots for the values."""
    columns = task.COLUMNS
    mapped = [name for name in columns.optional if name in recipe.data.columns]
    wanted = [columns.text_instead.get(name, name) for name in (*columns.given, *mapped)]
    if wanted == ["text"]:
        return '--text "..."'
    return " ".join(f'--row {name}="..."' for name in wanted for _ in range(1 + (name in columns.lists)))


def shown(prediction: Prediction) -> Prediction:
    """Give the part of a prediction that is written out."""
    return {name: value for name, value in prediction.items() if not name.startswith("_")}

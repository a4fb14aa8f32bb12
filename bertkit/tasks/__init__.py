"""Task families: one module per family, and the protocol that such a module implements.

A family converts rows to features, a model's outputs to predictions, and predictions to scores. Its module imports
torch and transformers only inside functions, so that a recipe and its rows can be checked without them.

A custom family can import everything that it needs from this module (`__all__`); these names are stable.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, Protocol, cast

import numpy as np

from bertkit.data.columns import ColumnSpec
from bertkit.data.labels import get_label_name, label_to_str
from bertkit.data.rows import Split, check_texts, is_blank
from bertkit.errors import DataError, RecipeError, error_location
from bertkit.metrics import LabeledSpan
from bertkit.metrics.intervals import Metric, RowScores, find_intervals
from bertkit.metrics.registry import (
    CLASSIFICATION_METRICS,
    EVALUATE_PREFIX,
    REGRESSION_METRICS,
    VALUE_METRICS,
    check_metrics,
    compute_library_metric,
    compute_metrics,
    compute_scores,
    is_library_metric,
    runs_code,
)
from bertkit.metrics.tags import drop_unlabeled
from bertkit.modeling.info import Model
from bertkit.modeling.load import load_pretrained
from bertkit.recipe.load import recipe_names
from bertkit.recipe.plugins import load_module
from bertkit.recipe.records import Option, Recipe, check_names, check_options, read_option
from bertkit.recipe.sections import Row, expand_path
from bertkit.tokens.features import (
    IGNORE_INDEX,
    Collator,
    Feature,
    Features,
    Rows,
    TaskContext,
    encode_texts,
    padding_collator,
)

__all__ = [
    "CLASSIFICATION_METRICS",
    "EVALUATE_PREFIX",
    "IGNORE_INDEX",
    "REGRESSION_METRICS",
    "Answer",
    "Collator",
    "ColumnSpec",
    "DataError",
    "Feature",
    "Option",
    "Output",
    "Prediction",
    "Recipe",
    "RecipeError",
    "Row",
    "RowScores",
    "RunModule",
    "Task",
    "TaskContext",
    "TaskReport",
    "check_texts",
    "compare_values",
    "compute_metrics",
    "drop_private_keys",
    "encode_columns",
    "encode_texts",
    "example_row",
    "find_intervals",
    "is_blank",
    "label_to_str",
    "load_pretrained",
    "load_task",
    "padding_collator",
    "read_option",
    "read_row",
    "score_values",
    "task_names",
    "with_options",
]


Prediction = dict[str, Any]
"""One record per row: ``prediction`` (the answer), and any other keys that the family adds.

Keys that start with ``_`` are for the family's own `details` and are not written to disk.
"""

Output = Mapping[str, Any]
"""The model's output for one feature: name of an output -> numpy array."""

Predictions = Sequence[Prediction]
Outputs = Sequence[Output]

RunModule = Callable[[Any, Features], Sequence[Output]]
"""Runs a module (the model, or a submodule of it) over features without gradients and returns its outputs."""


@dataclass(frozen=True)
class Answer:
    """The gold and the predicted answer of one row as text, for a report."""

    gold: str
    predicted: str
    correct: bool
    confidence: float | None = None
    highlighted: tuple[str, list[LabeledSpan], list[LabeledSpan]] | None = None
    """A text with its gold and its predicted spans, where these are the answers."""


@dataclass(frozen=True)
class TaskReport:
    """Additional results that a family reports with its scores; every field may be empty."""

    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Title -> rows of a table with the same keys, such as the scores of each entity type."""
    files: dict[str, Any] = field(default_factory=dict)
    """Name of an extra file in the folder of the predictions -> its content as JSON."""
    answers: list[Answer] | None = None
    """One per row, or None if the gold value and ``prediction`` can be shown unchanged."""
    warnings: list[str] = field(default_factory=list)
    entity_verdicts: list[tuple[float, bool]] | None = None
    """Probability of each predicted entity, and whether the entity is correct; None if a row is one answer."""


class TaskDefaults(Protocol):
    """Optional members of a task family; `load_task` fills in a default for each missing member."""

    HAS_LABEL_NAMES: bool
    """Whether gold values are label names, or lists of label names; False by default."""
    TYPES: Mapping[str, Any]
    """Column of a row, or `prediction` -> its type; other columns are texts, or lists of texts."""
    EXPORTED_AS: str | None
    """Another family, whose exported models this family can run."""
    PIPELINE_TAG: str | None
    """The Hub's name of the task, for the model card; by default, it follows from the class of the model."""
    combine: Callable[[Sequence[Output], Feature, TaskContext], Output] | None
    """Combines the outputs of several models for one feature into one output of the ensemble."""
    find_labels: Callable[[Path, Recipe], Sequence[str]] | None
    """Returns the label names for a model folder, if the family runs models that were trained for other tasks."""
    find_truncated_answers: Callable[[Sequence[Feature], Sequence[Row], TaskContext], Sequence[int]] | None
    """Returns the indices of the rows whose gold value is in no feature, or cannot be predicted."""
    find_row_warnings: Callable[[Sequence[Row], Recipe], list[str]] | None
    """Returns warnings about the rows of a split, such as gold values that no model can predict."""
    check_training: Callable[[Split, Recipe], None] | None
    """Raises DataError if the training rows do not suit an option, such as the loss."""
    count_errors: Callable[[RowScores], tuple[Any, Any]] | None
    """Counts the errors and the decisions of each row, if rows have several answers."""
    gold_probabilities: Callable[[Sequence[Prediction], Sequence[Row], TaskContext], Any] | None
    """Returns the decisions of predictions with their probabilities and gold values; see docs/own-task.md."""
    targets: Callable[[Prediction, Sequence[Output], Sequence[Feature], Row, TaskContext], list[Any]] | None
    """Returns the outputs that `bertkit explain` explains; by default, these are the logits of the head."""
    fit_baselines: Callable[[Sequence[Row], TaskContext], dict[str, Any]]
    """Fits baselines to training rows; returns the state for `baselines` as JSON, with label ids instead of names."""
    precompute: Callable[[Model, Mapping[str, Sequence[Feature]], TaskContext, RunModule], bool]
    """Computes values from the features of each split before training; returns whether nothing is left to train."""
    fit_head: Callable[[Model, Sequence[Feature], TaskContext, RunModule], None] | None
    """Fits the head to the features of the training rows before each evaluation; no gradient reaches such a head."""
    tune: Callable[[Sequence[Prediction], Sequence[Row], TaskContext], dict[str, Any]]
    """Returns the options that are tuned on validation rows; they are stored in the run's record."""
    details: Callable[[Sequence[Prediction], Sequence[Row], TaskContext], TaskReport]
    """Collects the additional results to report with the scores."""


class Task(TaskDefaults, Protocol):
    """A task family: three constants and eight functions, and any members of `TaskDefaults`."""

    COLUMNS: ColumnSpec
    """Canonical columns of a row; rows to predict can lack the gold column."""
    OPTIONS: Mapping[str, Any]
    """Keys that a recipe may set under ``options``, each with an Option or only its default."""

    @property
    def METRICS(self) -> Collection[str]:  # a constant of the module
        """Metrics that a recipe can list: a table name -> `Metric`, or only names, which `score` computes.

        A recipe can also list custom metrics and metrics of the `evaluate` package. They have intervals only if this
        lists `EVALUATE_PREFIX`.
        """

    def read(self, row: Row, recipe: Recipe) -> Row | None:
        """Check a row's canonical values and convert them to this family's types.

        Return None to leave out a row whose gold column has nothing to learn or to score.

        Raises:
            DataError: If a value is wrong; the caller adds file and line.
        """

    def load_model(self, folder: Path, context: TaskContext, *, new_head: bool) -> Model:
        """Load the checkpoint with this family's head; only with `new_head` may the head be untrained."""

    def encode(self, rows: Rows, context: TaskContext) -> list[Feature]:
        """Turn rows into features, one or more per row in order; ``row`` is the index of a feature's row."""

    def collator(self, context: TaskContext) -> Collator:
        """Build the function that turns a list of features into a batch of tensors."""

    def decode(self, outputs: Outputs, features: Features, rows: Rows, context: TaskContext) -> list[Prediction]:
        """Turn the model's outputs, one per feature, into one prediction per row."""

    def compare(self, predictions: Predictions, rows: Rows, context: TaskContext) -> RowScores:
        """Return predictions and the rows' gold values as the arrays that `score` reads."""

    def score(self, row_scores: RowScores, context: TaskContext) -> dict[str, float]:
        """Compute the recipe's metrics; called once on all rows, and a thousand times on resampled ones."""

    def baselines(self, state: Mapping[str, Any], rows: Rows, context: TaskContext) -> dict[str, list[Prediction]]:
        """Predict the rows by simple methods: name of a baseline -> predictions.

        The first baseline reads no input. A baseline that reads only a part of the input is called "... alone".
        """


def read_row(row: Row, context: TaskContext) -> Row | None:
    """Check a row's canonical values, and replace indices of labels by their names.

    Returns:
        Row for `encode` and `compare`, or None if it has no label to learn.

    Raises:
        DataError: If a value is wrong.
    """
    task = load_task(context.recipe)
    checked, gold = task.read(row, context.recipe), task.COLUMNS.gold
    if checked and gold in checked and task.HAS_LABEL_NAMES:
        checked = {**checked, gold: get_label_name(checked[gold], context.labels)}
    return checked


def encode_columns(batch: Mapping[str, Any], indices: Sequence[int], context: TaskContext) -> dict[str, list[Any]]:
    """Encode rows for a custom training loop: the function for ``datasets.Dataset.map``.

    ``dataset.map(encode_columns, batched=True, with_indices=True, fn_kwargs={"context": context},
    remove_columns=dataset.column_names)`` returns the features of all rows.

    Args:
        batch: Canonical columns of the task family, and any others, each with one value per row.
        indices: Indices of the rows in the dataset.
        context: Recipe, tokenizer and labels.

    Returns:
        Features as columns. ``row`` is the index of a feature's row in the dataset: a long text has several features,
        and a row without any label has none.

    Raises:
        DataError: If a value is wrong.
    """
    rows: dict[int, Row] = {}
    for index, *values in zip(indices, *batch.values(), strict=True):
        with error_location(record=f"row {index}"):
            if row := read_row(dict(zip(batch, values, strict=True)), context):
                rows[index] = row
    features, row_indices = load_task(context.recipe).encode([*rows.values()], context), [*rows]
    for feature in features:
        # `encode` returns indices of the rows that have labels; convert them to indices of the dataset.
        feature["row"] = row_indices[feature["row"]]
    return {name: [feature[name] for feature in features] for name in (features[0] if features else ())}


def add_labels(features: list[Feature], rows: Rows, get_label: Callable[[Row], Any]) -> list[Feature]:
    """Add ``labels`` to the features of rows that have a label, one feature per row; return the features."""
    for row, feature in zip(rows, features, strict=True):
        if "label" in row:
            feature["labels"] = get_label(row)
    return features


def compare_values(predictions: Predictions, rows: Rows, context: TaskContext) -> RowScores:
    """Return the ``gold`` and ``predicted`` numbers of rows whose gold column is ``label``."""
    return {
        "gold": np.array([row["label"] for row in rows]),
        "predicted": np.array([prediction["prediction"] for prediction in predictions]),
    }


def score_table(metrics: Mapping[str, Metric], row_scores: RowScores, context: TaskContext) -> dict[str, float]:
    """Compute the recipe's metrics by the records of a table."""
    return compute_scores(metrics, row_scores, context.recipe)


score_values = partial(score_table, VALUE_METRICS)
"""Computes metrics in `CLASSIFICATION_METRICS` or `REGRESSION_METRICS` from ``predicted`` and ``gold``."""


# The members are read from the protocols above: functions of `Task` are required, members of `TaskDefaults` are not.
_FUNCTIONS = tuple(name for name, value in vars(Task).items() if not name.startswith("_") and callable(value))
_CONSTANTS = ("COLUMNS", "METRICS", "OPTIONS")
_DEFAULTS: Mapping[str, Any] = {
    **dict.fromkeys(TaskDefaults.__annotations__),
    "HAS_LABEL_NAMES": False,
    "TYPES": {},
    "fit_baselines": lambda training_rows, context: {},
    "precompute": lambda model, features, context, run: False,
    "tune": lambda predictions, rows, context: {},
    "details": lambda predictions, rows, context: TaskReport(),
}
"""Name of an optional member -> its default."""


def task_names() -> list[str]:
    """List the task families that come with bertkit."""
    return sorted(file.stem for file in Path(__file__).parent.glob("[a-z]*.py"))


def load_task(recipe: Recipe) -> Task:
    """Load the task family of a recipe as `load_family` does, and the metrics of the recipe.

    Raises:
        RecipeError: If `load_family` raises it, or the family does not have a metric.
    """
    task = load_family(recipe)
    check_metrics(recipe, task.METRICS)
    return task


def load_family(recipe: Recipe) -> Task:
    """Load the task family of a recipe, and check its columns and options.

    Raises:
        RecipeError: If there is no such family, a module lacks a function, or the recipe has columns, options or
            metrics that the family does not support.
    """
    # 1. Import the module. A name that does not come with bertkit is code of the user, which must be trusted.
    required = (*_FUNCTIONS, *_CONSTANTS)
    if recipe.task in (names := task_names()):
        module = import_module(f"{__name__}.{recipe.task}")
    else:
        page = "docs/own-task.md"
        module = load_module("task family", recipe.task, names, required, page, recipe.trusted)
    task = cast(Task, module)
    # 2. Set missing members in the module itself, so that callers need not check which members a family has.
    for name, default in _DEFAULTS.items():
        vars(task).setdefault(name, default)
    # 3. Check the recipe by the family's tables, before any row is read.
    spans = [task.COLUMNS.spans] if task.COLUMNS.spans else []
    check_names("data.columns", recipe.data.columns, [*task.COLUMNS.names, *spans])
    check_options(recipe.options, task.OPTIONS)
    library_metrics = [name for name in recipe.metrics if is_library_metric(name) and name not in task.METRICS]
    if not library_metrics or EVALUATE_PREFIX in task.METRICS:
        return task
    if not task.COLUMNS.gold:
        raise RecipeError(
            f"the metric {library_metrics[0]} needs gold values, and {recipe.task} has none", "leave it out"
        )
    return _with_library_metrics(task)


class _LibraryRowScores(dict[str, np.ndarray]):
    """Arrays of a task family, with the scores of library metrics on all rows as an attribute."""

    scores: Mapping[str, float] = MappingProxyType({})


def _with_library_metrics(task: Task) -> Task:
    """Return a task family that also computes custom metrics and metrics of the `evaluate` package.

    These metrics read the gold values and predictions of all rows, without unlabeled words. They are computed only
    once, because a thousand resamples would take hours, so they have no interval.
    """

    def compare(predictions: Predictions, rows: Rows, context: TaskContext) -> RowScores:
        # The scores are an attribute, because resampling indexes each array by rows. A resample is a plain dictionary
        # without the attribute, so it has no score of these metrics.
        row_scores = _LibraryRowScores(task.compare(predictions, rows, context))
        pairs = [
            _drop_unlabeled_words(row[task.COLUMNS.gold], record["prediction"])
            for row, record in zip(rows, predictions, strict=True)
        ]
        gold, predicted = map(list, zip(*pairs, strict=True))
        for name in (name for name in context.recipe.metrics if name not in task.METRICS):
            row_scores.scores = {**row_scores.scores, **compute_library_metric(name, gold, predicted)}
        return row_scores

    def score(row_scores: RowScores, context: TaskContext) -> dict[str, float]:
        built_in = [name for name in context.recipe.metrics if name in task.METRICS]
        recipe = context.recipe.model_copy(update={"metrics": built_in})
        return {**task.score(row_scores, replace(context, recipe=recipe)), **getattr(row_scores, "scores", {})}

    return cast(Task, SimpleNamespace(**{**vars(task), "compare": compare, "score": score}))


def _drop_unlabeled_words(gold: Any, predicted: Any) -> tuple[Any, Any]:
    """Return the gold and the predicted value of a row, without words that have no gold tag."""
    if not isinstance(gold, list) or None not in gold:
        return gold, predicted
    return drop_unlabeled(gold, predicted)


def with_options(context: TaskContext, options: Mapping[str, Any]) -> TaskContext:
    """Return a context whose recipe has these options too."""
    recipe = context.recipe.model_copy(update={"options": {**context.recipe.options, **options}})
    return replace(context, recipe=recipe)


def get_input_columns(task: Task, recipe: Recipe) -> dict[str, bool]:
    """Return column -> whether it is required, for the input columns that the run reads."""
    columns, data = task.COLUMNS, recipe.data
    names = [name for name in columns.names if name not in (columns.gold, "id")]
    return {
        name: name in columns.inputs or (name in columns.optional and name in data.columns)
        for name in names
        if name in data.columns or name not in data.ignore_columns
    }


def next_commands(task: Task, recipe: Recipe, folder: str) -> list[str]:
    """Return the commands that a user may want to run after training, for the terminal and for the report."""
    # Without "./", a folder with the name of a recipe would be read as the recipe.
    run, names = shlex.quote(f"./{folder}" if folder in recipe_names() else folder), recipe.metrics
    code = " --trust-remote-code" if "." in recipe.task else ""
    trust = " --trust-remote-code" if code or any(map(runs_code, names)) else ""
    # The rows that were held out of a single file have been scored already.
    other_rows = " --data FILE" if expand_path(recipe.data.source).is_file() else ""
    return [
        f"open {run}/report.html",
        f"bertkit predict {run} {example_row(task, recipe)}{code}",
        f"bertkit eval {run}{other_rows}{trust}",
        # Without gold values, no row is wrong.
        *([f"bertkit errors {run}{trust}"] if task.COLUMNS.gold else []),
        f"bertkit push {run} YOUR_NAME/{shlex.quote(recipe.name)}",
    ]


def example_row(task: Task, recipe: Recipe) -> str:
    """Return the options of `bertkit predict` for one row, with "..." as each value."""
    columns = task.COLUMNS
    mapped = [name for name in columns.optional if name in recipe.data.columns]
    inputs = [columns.fallback_columns.get(name, name) for name in (*columns.inputs, *mapped)]
    if inputs == ["text"]:
        return '--text "..."'
    # A column that holds a list is shown twice, because the option can be repeated.
    return " ".join(f'--row {name}="..."' for name in inputs for _ in range(1 + (name in columns.lists)))


def drop_private_keys(prediction: Prediction) -> Prediction:
    """Return the record that is written to disk: a prediction without the keys that start with ``_``."""
    return {name: value for name, value in prediction.items() if not name.startswith("_")}

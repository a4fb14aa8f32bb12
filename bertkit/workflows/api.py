"""The Python API: a fine-tuned model that stays in memory, and fine-tuning on rows in memory."""

from __future__ import annotations

import html
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from bertkit.data.files import find_splits
from bertkit.data.in_memory import (
    DataFrame,
    DataFrameT,
    Rows,
    add_columns,
    as_records,
    is_dataframe,
    map_canonical_names,
)
from bertkit.data.output import DEFAULT_LAYOUT, FileLayout
from bertkit.data.sources import ALL, ROWS
from bertkit.errors import DataError, UsageError
from bertkit.evaluation.checkpoint import Checkpoint, CheckpointInfo, find_members
from bertkit.evaluation.rows_to_predict import read_chunks, warn_of_unread
from bertkit.evaluation.scoring import EvalResult
from bertkit.evaluation.splits import OnOverlap, resolve_overlap, splits_to_score
from bertkit.progress import MetricsListener, Progress, use_progress, with_progress
from bertkit.recipe.load import load_recipe
from bertkit.recipe.records import Recipe
from bertkit.recipe.sections import expand_path
from bertkit.storage.hub.models import find_run, get_recipe_file
from bertkit.storage.runs import run_folder
from bertkit.tasks import get_input_columns
from bertkit.workflows.evaluate import score_splits
from bertkit.workflows.finetune import finetune as finetune_recipe
from bertkit.workflows.predict import answer, load_to_predict

if TYPE_CHECKING:
    from bertkit.workflows.explain import ExplainedRow

_MAX_TABLE_ROWS = 50  # in a notebook
# Models compute one at a time, in any thread: each uses all cores, and the settings of torch apply to the process.
_COMPUTE_LOCK = threading.RLock()

Changes = Mapping[str, Any]
"""Dotted keys of a recipe -> values, as for ``--set``: ``{"options.abstain_below": 0.8}``."""


class Predictions(list[dict[str, Any]]):
    """Records of predicted rows, in order; a notebook shows them as a table."""

    def _repr_html_(self) -> str:
        names = list(dict.fromkeys(name for record in self[:_MAX_TABLE_ROWS] for name in record))
        head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
        rows = "".join(
            "<tr>" + "".join(f"<td>{html.escape(_format_value(record.get(name)))}</td>" for name in names) + "</tr>"
            for record in self[:_MAX_TABLE_ROWS]
        )
        more = f"<p>{len(self) - _MAX_TABLE_ROWS:,} more</p>" if len(self) > _MAX_TABLE_ROWS else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{more}"


class LoadedModel:
    """Trained model that stays in memory; see `bertkit.load`.

    Threads can share it. A copy in another process loads the model there. Called with a batch of columns, it returns
    the batch with the columns of its predictions, so ``datasets.map`` (with ``batched=True``), Ray Data and Spark
    accept it as a function.
    """

    def __init__(self, source: Recipe) -> None:
        self.source = source
        self._infos: dict[tuple[str, ...], CheckpointInfo] = {}

    def __repr__(self) -> str:
        return f"bertkit.load({self.source.model!r})"

    @property
    def recipe(self) -> Recipe:
        """Recipe that determines how rows are read."""
        return self.checkpoint_info.recipe

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the labels in the order of the model's outputs, or an empty tuple if it predicts no labels."""
        return self.checkpoint_info.labels

    @cached_property
    def checkpoint_info(self) -> CheckpointInfo:
        """Checkpoint on disk."""
        return find_members(self.source)

    @cached_property
    def _checkpoint(self) -> Checkpoint:
        return load_to_predict(self.checkpoint_info)

    @cached_property
    def _trainable_checkpoint(self) -> Checkpoint:
        """The model loaded again as for training, because explanations need gradients."""
        return self.checkpoint_info.load()

    def load(self) -> LoadedModel:
        """Load the weights now, not with the first row, and return this model.

        Raises:
            BertkitError: If the model does not exist, its head is untrained, or its weights are damaged.
        """
        with _COMPUTE_LOCK:
            _ = self._checkpoint
        return self

    @overload
    def predict(self, rows: DataFrameT, *, progress: Progress | None = None) -> DataFrameT: ...

    @overload
    def predict(self, rows: Rows, *, progress: Progress | None = None) -> Predictions: ...

    @with_progress
    def predict(self, rows: DataFrame | Rows, *, progress: Progress | None = None) -> Any:
        """Predict rows as `bertkit predict` does.

        Args:
            rows: Texts; tuples with the inputs of a row in the order of the task's columns; lists of words for a
                tagger; dictionaries with the columns of the training data or canonical columns; a `datasets.Dataset`;
                or a DataFrame of pandas or polars. A single text or dictionary is one row.
            progress: Shows the progress of the work; by default a bar, in notebooks only.

        Returns:
            A dictionary per row, in order, as the command writes them; for a DataFrame, a copy with the columns that
            the command adds to a CSV file, unrounded.

        Raises:
            DataError: If a column is missing or a value has a wrong type; the error names the row.
        """
        if not is_dataframe(rows):
            return Predictions(self._predict(self._read_rows(rows)))
        dataframe: Any = rows
        return add_columns(dataframe, self._predict_columns(as_records(dataframe)))

    def __call__(self, batch: Any) -> Any:
        """Return a batch of columns, a dictionary or a dataframe, with the columns of its predictions."""
        if is_dataframe(batch):
            return self.predict(batch)
        columns = {name: list(values) for name, values in batch.items()}
        records = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return {**batch, **self._predict_columns(as_records(records))}

    @with_progress
    def evaluate(
        self,
        rows: DataFrame | Rows | None = None,
        *,
        on_overlap: OnOverlap = "error",
        progress: Progress | None = None,
    ) -> EvalResult:
        """Score the model on labeled rows as `bertkit eval` does.

        Args:
            rows: Dictionaries, a dataset or a dataframe with gold answers; by default the recipe's validation rows.
            on_overlap: How to handle rows that the model was trained on: ``error``, ``drop`` or ``mark``.
            progress: As for `predict`.

        Raises:
            DataError: If a row is wrong, or if the model was trained on it.
        """
        info, split = self.checkpoint_info, None
        if rows is not None:
            records, split = as_records(rows), ALL
            columns = info.task.COLUMNS
            # Score all rows that the caller passed: ignore the split column and the limit of the recipe.
            data = map_canonical_names(list(records[0]) if records else [], [*columns.names], info.recipe.data)
            data = data.with_rows({ALL: records}).model_copy(update={"split_column": None, "limit": None})
            info = replace(info, recipe=info.recipe.model_copy(update={"data": data}))
        splits = resolve_overlap(info, splits_to_score(info, split, strict=False), on_overlap)
        with _COMPUTE_LOCK:
            return score_splits(self._prepare(), info, splits, None)[0]

    @with_progress
    def explain(
        self, rows: DataFrame | Rows, *, progress: Progress | None = None, **settings: Any
    ) -> list[ExplainedRow]:
        """Explain the predictions for rows as `bertkit explain` does.

        Args:
            rows: As for `predict`.
            progress: As for `predict`.
            settings: Keyword arguments of `bertkit.analysis.explanations.explain`: ``targets`` and ``max_steps``.
        """
        from bertkit.workflows.explain import explain_chunks

        records = self._read_rows(rows)
        if not records:
            return []
        with _COMPUTE_LOCK:
            info = self._get_info(tuple(records[0]))
            # The precision of matrix products is global in torch, so another model may have changed it.
            self._trainable_checkpoint.use_machine()
            chunks = read_chunks(info, enumerate(records, 1), ROWS)
            return list(explain_chunks(self._trainable_checkpoint, chunks, **settings))

    def _read_rows(self, rows: DataFrame | Rows) -> list[dict[str, Any]]:
        task = self.checkpoint_info.task
        input_columns = [name for name, is_needed in get_input_columns(task, self.recipe).items() if is_needed]
        return as_records(rows, input_columns, task.COLUMNS)

    def _get_info(self, names: tuple[str, ...]) -> CheckpointInfo:
        """Return the checkpoint with a recipe that reads these columns. Warn once about columns that it ignores."""
        if names not in self._infos:
            info = self.checkpoint_info
            data = map_canonical_names(names, [*get_input_columns(info.task, info.recipe), "id"], info.recipe.data)
            reader = replace(info, recipe=info.recipe.model_copy(update={"data": data}))
            warn_of_unread(names, reader)
            self._infos[names] = reader
        return self._infos[names]

    def _predict(self, records: list[dict[str, Any]], layout: FileLayout | None = None) -> Iterator[dict[str, Any]]:
        if not records:
            return
        with _COMPUTE_LOCK:
            checkpoint, info = self._prepare(), self._get_info(tuple(records[0]))
            chunks = read_chunks(info, enumerate(records, 1), ROWS)
            yield from answer(info, chunks, checkpoint, layout)

    def _prepare(self) -> Checkpoint:
        """Return the loaded model after setting torch's matrix products to its precision."""
        self._checkpoint.use_machine()
        return self._checkpoint

    def _predict_columns(self, records: list[dict[str, Any]]) -> dict[str, list[Any]]:
        predictions = list(self._predict(records, DEFAULT_LAYOUT))
        columns = {"id", *(records[0] if records else ())}
        names = dict.fromkeys(name for record in predictions for name in record if name not in columns)
        return {name: [record.get(name) for record in predictions] for name in names}

    def __getstate__(self) -> dict[str, Any]:
        """Return the source of the model without its weights, so that another process loads the model itself."""
        return {"source": self.source, "_infos": {}}


def load(model: str | Path, recipe: str | Recipe | None = None, *, changes: Changes | None = None) -> LoadedModel:
    """Load a trained model once, to predict any number of rows.

    Args:
        model: Run, checkpoint of a run, folder of several seeds (an ensemble), exported folder (which needs no torch),
            or any fine-tuned model, by its folder or its name on the Hub.
        recipe: Name or file of the recipe of a model that has no recipe in its folder.
        changes: Changes of the recipe; with ``{"task": "zero_shot"}``, its labels are read as descriptions.

    Raises:
        UsageError: If the task of the model is unknown.
        ModelError: If the model does not exist, its run is unfinished, its head is untrained, or its weights are
            damaged.
        BertkitError: Any other error; see `bertkit.errors`.
    """
    folder = expand_path(model)
    # Make the path absolute, because a worker process can have another working folder.
    name = str(folder.absolute()) if folder.is_dir() else str(model)
    if isinstance(recipe, Recipe):
        return LoadedModel(recipe.model_copy(update={"model": name})).load()
    remedy = "name a run folder, or the recipe: load(MODEL, RECIPE)"
    recipe = recipe or get_recipe_file(str(find_run(str(model))), remedy)
    return LoadedModel(load_recipe(recipe, {**(changes or {}), "model": name})).load()


def _format_value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_format_value(inner)}" for name, inner in value.items())
    return "" if value is None else str(value)


class FinetuneResults(list[EvalResult]):
    """Results of the validation splits. The first split chose the best checkpoint."""

    def __init__(self, results: Iterable[EvalResult], folder: Path) -> None:
        super().__init__(results)
        self.folder = folder

    @property
    def scores(self) -> dict[str, float | None]:
        """Scores of the first split, with None for undefined scores."""
        return self[0].scores

    @property
    def report(self) -> Path:
        """Page about the run."""
        return self.folder / "report.html"

    @cached_property
    def model(self) -> LoadedModel:
        """Trained model, loaded on first access."""
        return load(self.folder)

    def _repr_html_(self) -> str:
        cells = [(result.split, name, _format_score(result, name)) for result in self for name in result.scores]
        rows = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in cells)
        return f"<p>{html.escape(str(self.folder))}</p><table>{rows}</table>"


@with_progress
def finetune(
    recipe: str | Path | Recipe,
    *,
    model: str | Path | None = None,
    data: str | Path | DataFrame | Rows | Mapping[str, DataFrame | Rows] | None = None,
    training: Mapping[str, Any] | None = None,
    output: str | Path | None = None,
    events: Callable[[dict[str, Any]], object] | None = None,
    changes: Changes | None = None,
    restart: bool = False,
    expect_run: str | Path | None = None,
    progress: Progress | None = None,
) -> FinetuneResults:
    """Fine-tune an encoder, or resume the same run, or return the scores of a finished one.

    Args:
        recipe: Name or file of a recipe, or a loaded recipe.
        model: Encoder instead of the recipe's: folder, name on the Hub, or ``demo``.
        data: Rows with the columns that the recipe names: a path or a name on the Hub; a DataFrame, a
            `datasets.Dataset` or dictionaries, from which validation rows are held out; or a mapping (a
            ``DatasetDict``) from splits to these.
        training: Keys of the recipe's section ``training``, such as ``{"epochs": 3}``.
        output: Run folder, by default ``runs/RECIPE``.
        events: Called with each line of ``metrics.jsonl``: a step with its loss, or with the scores of an evaluation.
        changes: Further changes of the recipe.
        restart: Start over; an earlier run in the folder is moved aside.
        expect_run: Folder of a run that must have the same model, rows and package versions.
        progress: Shows the progress of the work; by default bars, in notebooks only.

    Raises:
        BertkitError: If the recipe, the rows, the model or the machine do not allow the run; see `bertkit.errors`.
    """
    # 1. Turn the arguments into changes of the recipe, as the command does with its options.
    in_memory = data is not None and not isinstance(data, (str, Path))
    settings = {**{f"training.{key}": value for key, value in (training or {}).items()}, **(changes or {})}
    if model is not None:
        settings["model"] = str(model)
    if isinstance(data, (str, Path)):
        settings["data.source"] = str(data)
    if in_memory and not isinstance(recipe, Recipe):
        settings.setdefault("data.source", "")

    # 2. Load the recipe, which determines how columns and labels are read. Rows in memory replace its source.
    if isinstance(recipe, Recipe) and settings:
        message = f"changes of a loaded recipe: {', '.join(settings)}"
        raise UsageError(message, "pass the name of the recipe, or load it with load_recipe(NAME, CHANGES)")
    loaded_recipe = recipe if isinstance(recipe, Recipe) else load_recipe(str(recipe), settings)
    if in_memory:
        loaded_recipe = with_rows(loaded_recipe, data)

    # 3. Train.
    with use_progress(None if events is None else MetricsListener(events)):
        results = finetune_recipe(loaded_recipe, expect_run=expect_run, output=output, restart=restart)
        return FinetuneResults(results, run_folder(output, loaded_recipe.name))


def with_rows(recipe: Recipe, data: Any) -> Recipe:
    """Return a loaded recipe that reads rows in memory, with `data` as for `finetune`.

    Raises:
        DataError: If `data` does not contain rows.
    """
    # A mapping has splits, like a `DatasetDict`. Reject a mapping of columns, which pandas and datasets accept.
    if is_dataframe(data) or not isinstance(data, Mapping):
        rows = {ALL: as_records(data)}
    elif any(isinstance(values, list) and values and isinstance(values[0], (str, float)) for values in data.values()):
        message = f"data is a dictionary of columns: {', '.join(map(str, data))}"
        raise DataError(message, "pass datasets.Dataset.from_dict(DATA), or a list of one dictionary per row")
    else:
        # Accept the split names that files have, such as "dev"; several names can mean the same split.
        sources = {str(name): as_records(source) for name, source in data.items()}
        splits = find_splits(sources, {})
        rows = {split: list(chain(*map(sources.__getitem__, names))) for split, names in splits.items()}
    if rows == {ALL: []}:
        raise DataError("data has no rows", "pass at least one row")
    return recipe.model_copy(update={"data": recipe.data.with_rows(rows)})


def _format_score(result: EvalResult, name: str) -> str:
    score, interval = result.scores[name], result.intervals.get(name)
    suffix = f" ({interval[0]:.4f} to {interval[1]:.4f})" if interval else ""
    return "undefined" if score is None else f"{score:.4f}{suffix}"

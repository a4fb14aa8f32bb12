"""Predict rows with all tasks of a run that has trained several on one encoder."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.data.layout import PLAIN, FileLayout, check_layout, follow_source
from bertkit.data.output import as_columns, write_records, writer_for
from bertkit.data.text import Record
from bertkit.errors import ModelError
from bertkit.evaluation.checkpoint import SavedCheckpoint, open_checkpoint
from bertkit.progress import SILENT, Progress, stage
from bertkit.recipe import Row, SeveralTasks, typed_path
from bertkit.storage import hub, runs
from bertkit.storage.outputs import claimed, refuse_inputs
from bertkit.tasks import drop_private_keys, load_task
from bertkit.workflows.predict import (
    CHUNK,
    identify,
    input_files,
    open_records,
    read_chunks,
    refuse_clash,
    say_unread,
    with_columns_of,
)

if TYPE_CHECKING:
    from bertkit.workflows.predict.together import Together


def predict_several(
    several: SeveralTasks, *, source: str | Path | None = None, row: Row | None = None, progress: Progress = SILENT
) -> Iterator[dict[str, Any]]:
    """Predict rows as `bertkit.workflows.predict.predict` does; each task's prediction is under its name.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    return _predict(_find_tasks(several), source, row, progress)


def predict_several_to_file(
    several: SeveralTasks,
    output: str | Path,
    *,
    source: str | Path | None = None,
    row: Row | None = None,
    layout: FileLayout = PLAIN,
    progress: Progress = SILENT,
) -> int:
    """Predict as `predict_several` does, write the records, and return their number.

    In a file with columns, those of a task begin with its name. Raises what `predict_to_file` does.
    """
    output = typed_path(output)
    writer_for(output)
    layout = check_layout(layout, output)
    saved = _find_tasks(several)
    for of_task in saved.values():
        refuse_inputs(output, input_files(source, of_task))
    with claimed(output):
        records = _predict(saved, source, row, progress, None if output.suffix == ".jsonl" else layout)
        data = next(iter(saved.values())).recipe.data  # of all tasks
        return write_records(records, output, follow_source(layout, output, source, data))


def _find_tasks(several: SeveralTasks) -> dict[str, SavedCheckpoint]:
    """Find the checkpoint of each task in the folder of their run.

    Raises:
        ModelError: the folder holds no finished run of these tasks.
    """
    folder = typed_path(several.recipe.model)
    if not folder.is_dir():
        raise ModelError(f"no such folder: {folder}", "--model names the folder of a run of several tasks")
    record = runs.read_record(folder) or {}
    if "tasks" not in record:
        raise ModelError("not a run of several tasks", "name the folder of one with --model", file=folder)
    if record["status"] != "finished":
        what = f"the run is not finished ({record['status']})"
        raise ModelError(what, "repeat the command that started it", file=folder)
    for name in several.recipes:
        if name not in record["tasks"]:
            raise ModelError(f"the run has no task {name}", f"its tasks: {', '.join(record['tasks'])}", file=folder)
    return {
        name: open_checkpoint(recipe, load_task(recipe), hub.find_model(str(folder / name)))
        for name, recipe in several.recipes.items()
    }


def _predict(
    saved: Mapping[str, SavedCheckpoint],
    source: str | Path | None,
    row: Row | None,
    progress: Progress,
    columns: FileLayout | None = None,
) -> Iterator[dict[str, Any]]:
    if row is not None:
        saved = {
            name: replace(of_task, recipe=with_columns_of(row, of_task.recipe, of_task.task))
            for name, of_task in saved.items()
        }
    name = str(source or "--row")
    records = iter(open_records(source, row, next(iter(saved.values())).recipe))
    chunks = (_read(chunk, saved, name) for chunk in _split(records))
    # a file that cannot be read, or whose columns would be lost, ends in its error before the models are loaded
    first = next(chunks)
    say_unread(first[0][0], list(saved.values()))
    with stage(progress, f"loading {', '.join(saved)}"):
        from bertkit.workflows.predict.together import load_together

        together = load_together(saved)
    return _predict_chunks(itertools.chain([first], chunks), together, progress, columns)


def _split(records: Iterator[Record]) -> Iterator[list[Record]]:
    """Yield records in chunks, and an empty file as one."""
    yield list(itertools.islice(records, CHUNK))
    while chunk := list(itertools.islice(records, CHUNK)):
        yield chunk


def _read(
    records: list[Record], saved: Mapping[str, SavedCheckpoint], source: str
) -> tuple[list[dict[str, Any]], dict[str, list[Row]]]:
    """Return the original columns of a chunk, and the canonical rows of each task."""
    originals, rows = list[dict[str, Any]](), dict[str, list[Row]]()
    for name, of_task in saved.items():
        originals, rows[name] = next(read_chunks(records, of_task, source))
    for original in originals:
        refuse_clash(original, saved, source)
    return originals, rows


def _predict_chunks(
    chunks: Iterable[tuple[list[dict[str, Any]], dict[str, list[Row]]]],
    together: Together,
    progress: Progress,
    columns: FileLayout | None,
) -> Iterator[dict[str, Any]]:
    tasks, count = together.tasks, itertools.count()
    for originals, rows in chunks:
        features = {name: tasks[name].task.encode(rows[name], tasks[name].setup) for name in tasks}
        outputs = together.run(features, progress)
        predictions = {
            name: one.task.decode(outputs[name], features[name], rows[name], one.setup) for name, one in tasks.items()
        }
        for number, original in enumerate(originals):
            fields = {name: drop_private_keys(predictions[name][number]) for name in tasks}
            named = fields if columns is None else _as_columns(fields, columns.digits)
            given = next((of_task[number]["id"] for of_task in rows.values() if "id" in of_task[number]), None)
            yield {**identify(next(count), original, given, columns), **original, **named}


def _as_columns(predictions: Mapping[str, Any], digits: int | None) -> dict[str, Any]:
    """Return the predictions of a row by column.

    >>> _as_columns({"topic": {"prediction": "a", "probabilities": {"a": 0.96}}, "names": {"prediction": []}}, 1)
    {'topic_prediction': 'a', 'topic_confidence': 1.0, 'topic_probability_a': 1.0, 'names_prediction': []}
    """
    return {
        f"{name}_{field}": value
        for name, prediction in predictions.items()
        for field, value in as_columns(prediction, digits).items()
    }

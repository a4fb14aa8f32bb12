"""Predict any number of rows: read, encode, run, decode and write in chunks, one record per row, in order."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bertkit.data.columns import refuse_clash
from bertkit.data.files import read_records
from bertkit.data.output import PLAIN, FileLayout, as_columns, check_layout, follow_source, write_records, writer_for
from bertkit.data.rows import canonical_records, is_blank, place_row
from bertkit.data.sources import files_by_split
from bertkit.data.text import Record
from bertkit.errors import BertkitError, DataError, UsageError, closest, located
from bertkit.evaluation.checkpoint import SavedCheckpoint, find_members
from bertkit.evaluation.together import find_tasks, load_models, say_unread
from bertkit.hardware.launch import Launch, refuse_launch
from bertkit.progress import Progress, log, takes_progress
from bertkit.recipe import Recipe, Row, SeveralTasks, typed_path
from bertkit.storage.outputs import claimed, refuse_inputs
from bertkit.tasks import Prediction, Task, row_columns
from bertkit.workflows.predict.shared import ByTask, Load, Share, SharedPredictions

_Read = tuple[int, dict[str, Any], Row]
"""The line of a row, its columns, and the canonical ones."""

CHUNK = 4096  # rows in memory at a time: enough to sort by length, little enough for any file


@takes_progress
def predict(
    recipe: Recipe | SeveralTasks,
    *,
    source: str | Path | None = None,
    row: Row | None = None,
    progress: Progress | None = None,
) -> Iterator[dict[str, Any]]:
    """Predict the rows of a file (``-`` for standard input) or one row given by canonical columns.

    Returns:
        one record per row, in order: ``id`` (the row's own, or its number from 0), its original columns, and what
        the task family predicts; of a run of several tasks, each task's prediction under its name.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    refuse_launch("several processes without an --output", "name the file that all of them work on")
    return _predict_source(find_by_task(recipe), source, row)


def predict_to_file(
    recipe: Recipe | SeveralTasks,
    output: str | Path,
    *,
    source: str | Path | None = None,
    row: Row | None = None,
    layout: FileLayout = PLAIN,
) -> int | None:
    """Predict as `predict` does, write the records with `write_records`, and return their number.

    In csv and tsv, numbers are rounded, and what the layout leaves open is as in the file with the rows. Columns of one
    of several tasks begin with its name. Processes of a launch, or shards, share the rows; what a killed one has
    predicted, the same command does not predict again.

    Returns:
        the number of records; None where another process writes them.

    Raises:
        UsageError: the layout does not fit the output, or that is a file that is read: the rows, the recipe's data, or
            a file of the model folder. Or several processes have no file to share.
        ResourceError: another process is writing the output, or it cannot be written.
        BertkitError: any other of the kind that fits; see `bertkit.errors`.
    """
    # The output is checked against all that is read, before a model is loaded.
    output = typed_path(output)
    writer_for(output)
    layout = check_layout(layout, output)
    saved = find_by_task(recipe)
    for of_task in saved.values():
        refuse_inputs(output, input_files(source, of_task))
    columns = None if output.suffix == ".jsonl" else layout
    recipe = next(iter(saved.values())).recipe  # its data are those of all tasks

    def write(records: Iterable[dict[str, Any]]) -> int:
        return write_records(records, output, follow_source(layout, output, source, recipe.data))

    # One process writes records as they come; several write shares, which one of them joins.
    launch = Launch.join()
    if launch.size == 1:
        with claimed(output):
            return write(_predict_source(saved, source, row, columns))
    if source is None or str(source) == "-":
        raise UsageError("several processes without a file to predict", "name a FILE, which each of them reads")

    def predict_chunks(load: Load, share: Share) -> Iterator[dict[str, Any]]:
        records = open_records(source, None, recipe)
        return predict_records(saved, records, str(source), columns, load, share)

    return SharedPredictions(saved, output, launch).write(predict_chunks, write)


def find_by_task(recipe: Recipe | SeveralTasks) -> dict[str, SavedCheckpoint]:
    """Find the checkpoint of each task by its name, which is empty for a single one."""
    return {"": find_members(recipe)} if isinstance(recipe, Recipe) else find_tasks(recipe)


def input_files(source: str | Path | None, saved: SavedCheckpoint) -> Iterator[tuple[str, Path]]:
    """Yield the files that a prediction reads or that its recipe names, and what each of them is."""
    if source is not None:
        yield "the file to predict", Path("/dev/stdin") if str(source) == "-" else typed_path(source)
    with suppress(BertkitError):  # the data of the recipe need not be there
        for files in (files_by_split(saved.recipe.data) or {}).values():
            yield from (("a data file of the recipe", file) for file in files)
    yield "a data file of the recipe", Path(saved.recipe.data.source)
    folders = [member.folder for member in saved.members] or [saved.folder]
    yield from (
        ("a file of the model folder", file) for folder in folders for file in folder.rglob("*") if file.is_file()
    )


def _predict_source(
    saved: Mapping[str, SavedCheckpoint],
    source: str | Path | None,
    row: Row | None,
    columns: FileLayout | None = None,
) -> Iterator[dict[str, Any]]:
    """Do what `predict` does; `columns` is that of `predict_records`."""
    if row is not None:
        saved = {
            name: replace(of_task, recipe=with_columns_of(row, of_task.recipe, of_task.task))
            for name, of_task in saved.items()
        }
    records = open_records(source, row, next(iter(saved.values())).recipe)
    return predict_records(saved, records, str(source or "--row"), columns)


def predict_records(
    saved: Mapping[str, SavedCheckpoint],
    records: Iterable[Record],
    source: str,
    columns: FileLayout | None = None,
    load: Load | None = None,
    share: Share = lambda rows, compute: compute(),
) -> Iterator[dict[str, Any]]:
    """Do what `predict` does with rows that are read elsewhere; errors call them by `source`.

    With the layout of a file with `columns`, each record has one field per column. What `load` returns predicts; by
    default the models are loaded. Rows that `share` leaves to another process have no record.
    """
    copies = itertools.tee(records, len(saved))
    by_task = [read_chunks(copy, of_task, source) for copy, of_task in zip(copies, saved.values(), strict=True)]
    # a task that has met a fault raises it in its turn, even where others have no more rows
    chunks = itertools.zip_longest(*by_task)
    # a file that cannot be read, or whose columns would be lost, ends in its error before the model is loaded
    first = next(chunks)
    fields = {name: _predicted_fields(of_task) for name, of_task in saved.items()}
    names = _name_fields(fields, columns and replace(columns, digits=None))
    refuse_clash(first[0][0][0], names, "predictions have", source)
    if load is None:
        say_unread(first[0][0][0], list(saved.values()))
    together = load_models(saved) if load is None else load(first[0][0][0])
    from bertkit.tokens.lost import Truncation

    tasks, number = together.tasks, itertools.count()
    truncations = {name: Truncation(of_task.setup, of_task.task.encode) for name, of_task in tasks.items()}
    predict = together.predict

    def compute(rows: dict[str, list[Row]]) -> ByTask:
        features = {name: of_task.task.encode(rows[name], of_task.setup) for name, of_task in tasks.items()}
        for name, truncation in truncations.items():
            truncation.add(features[name], rows[name])
        return predict(features, rows)

    def answer() -> Iterator[dict[str, Any]]:
        for chunk in itertools.chain([first], chunks):
            rows = dict(zip(tasks, (rows for _, rows in chunk), strict=True))
            predicted = share(rows, partial(compute, rows))
            if predicted is None:
                continue
            predictions = [predicted[name] for name in tasks]
            # of a stream, tasks may have read up to different faults
            for original, *of_row in zip(chunk[0][0], zip(*rows.values(), strict=False), *predictions, strict=False):
                canonical, *answers = of_row
                fields = _name_fields(dict(zip(tasks, answers, strict=True)), columns)
                # also those that only some predictions have
                refuse_clash(original, fields, "predictions have", source)
                given = next((row["id"] for row in canonical if "id" in row), None)
                yield {**_id_field(next(number), original, given, columns), **original, **fields}
        for truncation in truncations.values():
            truncation.say()

    return answer()


def _predicted_fields(saved: SavedCheckpoint) -> dict[str, Any]:
    """Return the fields that every prediction of a checkpoint has."""
    fields: dict[str, Any] = dict.fromkeys(("prediction", *saved.task.COLUMNS.predicted))
    if "probabilities" in fields:
        fields["probabilities"] = dict.fromkeys(saved.labels)
        fields["prediction"] = None if saved.recipe.options.get("multi_label") else saved.labels[0]
    return fields


def _name_fields(predictions: Mapping[str, Prediction], columns: FileLayout | None) -> dict[str, Any]:
    """Return the fields of a row's record; in a file with columns, those of one of several tasks begin with its name.

    >>> answers = {"topic": {"prediction": "a", "probabilities": {"a": 0.96}}, "names": {"prediction": []}}
    >>> _name_fields(answers, FileLayout(digits=1))
    {'topic_prediction': 'a', 'topic_confidence': 1.0, 'topic_probability_a': 1.0, 'names_prediction': []}
    """
    if columns is None:
        return predictions.get("") or dict(predictions)
    return {
        f"{name}_{field}".removeprefix("_"): value
        for name, prediction in predictions.items()
        for field, value in as_columns(prediction, columns.digits).items()
    }


def with_columns_of(row: Row, recipe: Recipe, task: Task) -> Recipe:
    """Return the recipe for a row whose columns are canonical already.

    Raises:
        UsageError: a column that the recipe needs is missing, or one is unknown.
    """
    columns, needed = task.COLUMNS, row_columns(task, recipe)
    names = [*needed, "id"]
    for name in row:
        if name in columns.optional and name not in names:
            raise UsageError(f"the model was trained without {name}", "leave it out")
        if name not in names:
            raise UsageError(f"no canonical column is called {name!r}", closest(name, names))
    for name, instead in columns.text_instead.items():
        if name in row and instead in row:
            raise UsageError(f"{name} and {instead} are two forms of the same input", "give one of them")
    for name in (name for name, is_needed in needed.items() if is_needed):
        if name not in row and columns.text_instead.get(name) not in row:
            instead = columns.text_instead.get(name, name)
            raise UsageError(f"this recipe needs {instead} too", f'--row {instead}="..."')
    return recipe.changed("data", columns={name: name for name in row})


def open_records(source: str | Path | None, row: Row | None, recipe: Recipe) -> Iterable[Record]:
    """Return the records to predict: those of a file, or the one row."""
    if row is not None:
        return [(1, row)]
    if source is None:
        raise UsageError("nothing to predict", "name a FILE, or `-`, or give --text or --row column=value")
    return read_records(typed_path(source), recipe.data)


def read_chunks(
    records: Iterable[Record], saved: SavedCheckpoint, source: str
) -> Iterator[tuple[list[dict[str, Any]], list[Row]]]:
    """Yield the original columns and the canonical rows, chunk by chunk.

    Of a stream, which nobody can repair and read again, the rows before a fault come first.
    """
    recipe, task = saved.recipe, saved.task
    # Rows to predict may lack the gold column, and where they have it, it is passed through and not read.
    columns = replace(task.COLUMNS, gold="")
    blank, faults = 0, list[DataError]()
    rows = canonical_records(records, recipe.data, columns, source)
    rows = _hold_back(rows, faults) if source == "-" else rows
    while chunk := list(itertools.islice(rows, CHUNK)):
        originals, canonical = [], []
        for line, original, row in chunk:
            with located(**place_row(source, line, original)._asdict()):
                canonical.append(task.read(row, recipe) or row)
            originals.append(_keep_gold_spans(original) if columns.spans else original)
            blank += any(is_blank(value) for name, value in row.items() if name not in columns.blank)
        yield originals, canonical
    for fault in faults:
        raise fault
    if blank:
        log.info(f"rows without text, predicted all the same: {blank:,}")


def _keep_gold_spans(original: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of a row with its own lists of spans under names that predictions do not have."""
    names = {
        name: f"gold_{name}" for name in ("spans", "entities") if isinstance(original.get(name), (list, type(None)))
    }
    return {names.get(name, name): value for name, value in original.items()}


def _hold_back(rows: Iterable[_Read], faults: list[DataError]) -> Iterator[_Read]:
    """Yield rows until the end or a fault, which is kept for later."""
    try:
        yield from rows
    except DataError as error:
        faults.append(error)


def _id_field(number: int, original: Row, given: object, columns: FileLayout | None) -> dict[str, Any]:
    """Return the field ``id`` of a prediction: the row's, or its number; none where another column has it already.

    Records of JSON always have one, so that programs find it.
    """
    if columns is not None and (given is not None or any(name.lower() == "id" for name in original)):
        return {}
    return {"id": number if given is None else given}

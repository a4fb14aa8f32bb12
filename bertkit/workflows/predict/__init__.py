"""Predict any number of rows: read, encode, run, decode and write in chunks, one record per row, in order."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bertkit.data.columns import describe_unread, refuse_clash, source_columns
from bertkit.data.files import read_records
from bertkit.data.output import PLAIN, FileLayout, as_columns, check_layout, follow_source, write_records, writer_for
from bertkit.data.rows import canonical_records, is_blank, place_row
from bertkit.data.sources import files_by_split
from bertkit.data.text import Record
from bertkit.errors import BertkitError, DataError, UsageError, closest, located
from bertkit.evaluation.checkpoint import Checkpoint, SavedCheckpoint, find_members
from bertkit.evaluation.scoring import answer_rows
from bertkit.evaluation.stored.folder import describe_maker
from bertkit.hardware.launch import Launch, refuse_launch
from bertkit.progress import Progress, log, stage, takes_progress
from bertkit.recipe import Recipe, Row, typed_path
from bertkit.storage.files import to_json
from bertkit.storage.outputs import claimed, refuse_inputs
from bertkit.storage.parts import PartFolder, is_whole, read_part, write_part
from bertkit.tasks import Prediction, Task, row_columns

_Read = tuple[int, dict[str, Any], Row]
"""The line of a row, its columns, and the canonical ones."""
_Load = Callable[[Row], Checkpoint]
"""Loads the model after the first row is read."""
_Share = Callable[[list[Row], Callable[[], list[Prediction]]], list[Prediction] | None]
"""Returns the predictions of a chunk of rows, or None if another process computes them."""

CHUNK = 4096  # rows in memory at a time: enough to sort by length, little enough for any file


@takes_progress
def predict(
    recipe: Recipe,
    *,
    source: str | Path | None = None,
    row: Row | None = None,
    progress: Progress | None = None,
) -> Iterator[dict[str, Any]]:
    """Predict the rows of a file (``-`` for standard input) or one row given by canonical columns.

    Returns:
        one record per row, in order: ``id`` (the row's own, or its number from 0), its original columns, and what
        the task family predicts.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    refuse_launch("several processes without an --output", "name the file that all of them work on")
    return _predict_source(find_members(recipe), source, row)


def predict_to_file(
    recipe: Recipe,
    output: str | Path,
    *,
    source: str | Path | None = None,
    row: Row | None = None,
    layout: FileLayout = PLAIN,
) -> int | None:
    """Predict as `predict` does, write the records with `write_records`, and return their number.

    In csv and tsv, numbers are rounded, and what the layout leaves open is as in the file with the rows. Processes of a
    launch, or shards, share the rows; what a killed one has predicted, the same command does not predict again.

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
    saved = find_members(recipe)
    refuse_inputs(output, input_files(source, saved))
    columns = None if output.suffix == ".jsonl" else layout

    def write(records: Iterable[dict[str, Any]]) -> int:
        return write_records(records, output, follow_source(layout, output, source, saved.recipe.data))

    # One process writes records as they come; several write shares, which one of them joins.
    launch = Launch.join()
    if launch.size == 1:
        with claimed(output):
            return write(_predict_source(saved, source, row, columns))
    if source is None or str(source) == "-":
        raise UsageError("several processes without a file to predict", "name a FILE, which each of them reads")

    def predict_chunks(load: _Load, share: _Share) -> Iterator[dict[str, Any]]:
        records = open_records(source, None, saved.recipe)
        return predict_records(saved, records, str(source), columns, load, share)

    return _predict_in_parts(
        saved, PartFolder(output, {"checkpoint": describe_maker(saved)}, launch), predict_chunks, write
    )


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
    saved: SavedCheckpoint, source: str | Path | None, row: Row | None, columns: FileLayout | None = None
) -> Iterator[dict[str, Any]]:
    """Do what `predict` does; `columns` is that of `predict_records`."""
    if row is not None:
        saved = replace(saved, recipe=with_columns_of(row, saved.recipe, saved.task))
    return predict_records(saved, open_records(source, row, saved.recipe), str(source or "--row"), columns)


def predict_records(
    saved: SavedCheckpoint,
    records: Iterable[Record],
    source: str,
    columns: FileLayout | None = None,
    load: _Load | None = None,
    share: _Share = lambda rows, compute: compute(),
) -> Iterator[dict[str, Any]]:
    """Predict rows that the caller reads.

    Args:
        saved: Model.
        records: Rows as they were read, with their line.
        source: Name of the rows in error messages.
        columns: Layout of a file with columns, for which each record has one field per column.
        load: Returns the loaded model; by default, the model is loaded.
        share: Returns the predictions of a chunk, or None if its rows get no record.
    """
    chunks = read_chunks(records, saved, source)
    # A file that cannot be read, or whose columns would be lost, is an error before the model is loaded.
    first = next(chunks)
    example = first[0][0]
    refuse_clash(
        example,
        _as_fields(_predicted_fields(saved), columns and replace(columns, digits=None)),
        "predictions have",
        source,
    )
    if load is None:
        warn_of_unread(example, saved)
    checkpoint = load_to_predict(saved) if load is None else load(example)
    from bertkit.tokens.truncation import Truncation

    task, setup = checkpoint.task, checkpoint.setup
    truncation, number = Truncation(setup, task.encode), itertools.count()

    def compute(rows: list[Row]) -> list[Prediction]:
        features = task.encode(rows, setup)
        truncation.add(features, rows)
        return answer_rows(checkpoint, features, rows, "predicting")

    def answer() -> Iterator[dict[str, Any]]:
        for originals, rows in itertools.chain([first], chunks):
            predictions = share(rows, partial(compute, rows))
            if predictions is None:
                continue
            for original, row, prediction in zip(originals, rows, predictions, strict=True):
                fields = _as_fields(prediction, columns)
                # also those that only some predictions have
                refuse_clash(original, fields, "predictions have", source)
                yield {**_id_field(next(number), original, row.get("id"), columns), **original, **fields}
        truncation.say()

    return answer()


def _predict_in_parts(
    saved: SavedCheckpoint,
    folder: PartFolder,
    predict_chunks: Callable[[_Load, _Share], Iterator[dict[str, Any]]],
    write: Callable[[Iterable[dict[str, Any]]], int],
) -> int | None:
    """Predict this process's parts; if it joins the parts of all processes, write the records and return their number.

    One pass over the rows computes the parts, and the process that joins them reads the rows again.

    Args:
        saved: Model.
        folder: Parts of the output.
        predict_chunks: Yields the records of all chunks that have predictions.
        write: Writes the records.
    """
    files, loaded = list[Path](), list[Checkpoint]()

    def name_part(index: int, rows: list[Row]) -> Path:
        return folder.file(index, hashlib.sha256(to_json(rows).encode()).hexdigest())

    def load_in(precision: str | None) -> str:
        loaded.append(load_to_predict(saved.in_precision(precision)))
        return loaded[0].machine.precision

    def load(first: Row) -> Checkpoint:
        if not loaded:
            warn_of_unread(first, saved)
            opened.enter_context(folder.opened(load_in))
        return loaded[0]

    def write_part_once(rows: list[Row], compute: Callable[[], list[Prediction]]) -> None:
        file = name_part(len(files), rows)
        if folder.launch.owns(len(files)) and not is_whole(file):
            write_part(file, json.dumps(compute()).encode())
        files.append(file)

    def read(rows: list[Row], compute: Callable[[], list[Prediction]]) -> list[Prediction]:
        file = next(remaining)
        if file != name_part(files.index(file), rows):
            raise DataError("the rows have changed meanwhile", "repeat the command")
        predictions: list[Prediction] = json.loads(read_part(file).to_pybytes())
        return predictions

    with ExitStack() as opened:
        for _ in predict_chunks(load, write_part_once):
            pass
        remaining = iter(files)
        with folder.joined(files) as joins:
            return write(predict_chunks(load, read)) if joins else None


def load_to_predict(saved: SavedCheckpoint) -> Checkpoint:
    """Load a model that computes predictions and no loss; raises what `SavedCheckpoint.load` does."""
    with stage(f"loading {saved.recipe.model_name}"):
        checkpoint = saved.load(inference=True)
        checkpoint.pack_texts()
        return checkpoint


def warn_of_unread(row: Iterable[str], saved: SavedCheckpoint) -> None:
    """Log the columns of a row that look like input and that the model does not read."""
    recipe = saved.recipe
    used = {column for name in row_columns(saved.task, recipe) for column in source_columns(name, recipe.data)}
    unread = [name for name in row if name not in used]
    for line in describe_unread(unread, recipe.data.model_copy(update={"unread": []}), ()):
        log.warning(f"warning: {line}")


def _predicted_fields(saved: SavedCheckpoint) -> dict[str, Any]:
    """Return the fields that every prediction of a checkpoint has."""
    fields: dict[str, Any] = dict.fromkeys(("prediction", *saved.task.COLUMNS.predicted))
    if "probabilities" in fields:
        fields["probabilities"] = dict.fromkeys(saved.labels)
        fields["prediction"] = None if saved.recipe.options.get("multi_label") else saved.labels[0]
    return fields


def _as_fields(prediction: Prediction, columns: FileLayout | None) -> dict[str, Any]:
    """Return the fields of a record that has a prediction: one per column in a file with columns."""
    return prediction if columns is None else as_columns(prediction, columns.digits)


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

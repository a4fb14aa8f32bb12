"""Predict any number of rows: find the model, read rows in chunks, load the model, predict and write chunk by chunk.

One record per row is written, in order. The model is loaded after the first chunk has been read, so that a wrong file
is reported at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.data.columns import check_clash
from bertkit.data.output import (
    DEFAULT_LAYOUT,
    FileLayout,
    check_layout,
    find_writer,
    flatten_prediction,
    follow_source,
    pack_records,
    unpack_records,
    write_records,
)
from bertkit.errors import UsageError
from bertkit.evaluation.checkpoint import Checkpoint, CheckpointInfo, find_members
from bertkit.evaluation.folder import describe_maker
from bertkit.evaluation.rows_to_predict import Chunk, find_input_files, open_rows, read_chunks, warn_of_unread
from bertkit.evaluation.scoring import answer_rows
from bertkit.hardware.launch import Launch, check_not_launched
from bertkit.progress import Progress, stage, with_progress
from bertkit.recipe.records import Recipe
from bertkit.recipe.sections import Row, expand_path
from bertkit.storage.output_shards import OutputShards, read_part, write_part
from bertkit.storage.outputs import check_not_inputs, lock_output
from bertkit.tasks import Prediction

if TYPE_CHECKING:
    from bertkit.tokens.truncation import Truncation

Records = Iterator[dict[str, Any]]


@with_progress
def predict(
    recipe: Recipe,
    *,
    source: str | Path | None = None,
    row: Row | None = None,
    progress: Progress | None = None,
) -> Records:
    """Predict the rows of a file (``-`` for standard input), or a single row given by canonical columns.

    Returns:
        One record per row, in order: ``id`` (the row's, or its index from 0), its original columns, and the
        prediction of the task family.

    Raises:
        BertkitError: If the model or a row cannot be read; see `bertkit.errors`.
    """
    check_not_launched("--output is missing with several processes", "name the file that all processes write")
    info, records = open_rows(find_members(recipe), source, row)
    return answer(info, read_chunks(info, records, str(source or "--row")))


def predict_to_file(
    recipe: Recipe,
    output: str | Path,
    *,
    source: str | Path | None = None,
    row: Row | None = None,
    layout: FileLayout = DEFAULT_LAYOUT,
) -> int | None:
    """Predict as `predict` does, write the records with `write_records`, and return their number.

    Numbers are rounded in csv and tsv. Settings that the layout leaves open are copied from the file with the rows.
    The processes of a launch, or shards, divide the rows. Chunks that a killed process finished are not predicted
    again by the same command.

    Returns:
        Number of records, or None if another process writes them.

    Raises:
        UsageError: If the layout does not fit the output; if the output is the file with the rows, a file of the
            recipe's data or a file of the model; or if several processes have no file to divide.
        ResourceError: If another process is writing the output, or it cannot be written.
        BertkitError: If the model or a row cannot be read; see `bertkit.errors`.
    """
    # 1. Check the output against all files that are read, before the model is loaded.
    output = expand_path(output)
    find_writer(output)
    layout = check_layout(layout, output)
    info = find_members(recipe)
    check_not_inputs(output, find_input_files(source, info))
    launch = Launch.join()
    if launch.size > 1 and (source is None or str(source) == "-"):
        raise UsageError("several processes without a file to predict", "name a FILE, which each of them reads")

    # 2. Read the rows. A CSV, TSV or Parquet file has one column per label, in which numbers can be rounded.
    info, rows = open_rows(info, source, row)
    chunks = read_chunks(info, rows, str(source or "--row"))
    columns = None if output.suffix == ".jsonl" else layout

    def write(records: Iterable[dict[str, Any]]) -> int:
        return write_records(records, output, follow_source(layout, output, source, info.recipe.data))

    # 3. A single process writes records as they are computed. Several processes write parts, and one joins them.
    if launch.size == 1:
        with lock_output(output):
            return write(answer(info, chunks, columns=columns))
    # Only `digits` of the layout changes the parts. So if a command fails because of --encoding, it can be repeated
    # with another encoding and reuses its parts.
    identity = {"checkpoint": describe_maker(info), "--digits": layout.digits}
    return _predict_in_parts(info, chunks, columns, OutputShards(output, identity, launch), write)


def answer(
    info: CheckpointInfo,
    chunks: Iterator[Chunk],
    checkpoint: Checkpoint | None = None,
    columns: FileLayout | None = None,
) -> Records:
    """Return a record for each row; the first chunk is read and checked before the model is loaded.

    Args:
        info: Model.
        chunks: Rows.
        checkpoint: The same model if it is loaded already.
        columns: Layout of a CSV, TSV or Parquet file, whose records have one field per column, or None for JSON lines.
    """
    chunks = _check_first_chunk(info, chunks, columns, warns=checkpoint is None)
    return _answer_chunks(checkpoint or load_to_predict(info), chunks, columns)


def _check_first_chunk(
    info: CheckpointInfo, chunks: Iterator[Chunk], columns: FileLayout | None, *, warns: bool
) -> Iterator[Chunk]:
    """Read the first chunk, check its columns, and return all chunks.

    Raises:
        DataError: If a row is wrong, or a column has a name that predictions have too.
    """
    first_chunk = next(chunks)
    first_row = first_chunk.originals[0]
    predicted_fields = _as_fields(_predicted_fields(info), columns and replace(columns, digits=None))
    check_clash(first_row, predicted_fields, "predictions have", first_chunk.source)
    if warns:
        warn_of_unread(first_row, info)
    return itertools.chain([first_chunk], chunks)


def _predicted_fields(info: CheckpointInfo) -> dict[str, Any]:
    """Return the fields that every prediction of a checkpoint has, with example values.

    The example values determine the columns of a CSV, TSV or Parquet file, which has one column per label.
    """
    fields: dict[str, Any] = dict.fromkeys(("prediction", *info.task.COLUMNS.predicted))
    if "probabilities" in fields:
        fields["probabilities"] = dict.fromkeys(info.labels)
        fields["prediction"] = None if info.recipe.options.get("multi_label") else info.labels[0]
    return fields


def load_to_predict(info: CheckpointInfo) -> Checkpoint:
    """Load a model for predictions without a loss; see `CheckpointInfo.load` for the errors."""
    with stage(f"loading {info.recipe.model_name}"):
        checkpoint = info.load(inference=True)
        checkpoint.pack_texts()
        return checkpoint


def _answer_chunks(checkpoint: Checkpoint, chunks: Iterable[Chunk], columns: FileLayout | None) -> Records:
    truncation = _count_truncation(checkpoint)
    for chunk in chunks:
        yield from _answer_chunk(checkpoint, chunk, columns, truncation)
    truncation.log()


def _count_truncation(checkpoint: Checkpoint) -> Truncation:
    from bertkit.tokens.truncation import Truncation

    return Truncation(checkpoint.context, checkpoint.task.encode)


def _answer_chunk(checkpoint: Checkpoint, chunk: Chunk, columns: FileLayout | None, truncation: Truncation) -> Records:
    """Encode the rows of a chunk, run the model, decode its outputs, and yield a record per row."""
    features = checkpoint.task.encode(chunk.rows, checkpoint.context)
    truncation.add(features, chunk.rows)
    predictions = answer_rows(checkpoint, features, chunk.rows, "predicting")
    results = zip(chunk.originals, chunk.rows, predictions, strict=True)
    for index, (original, row, prediction) in enumerate(results, chunk.start):
        fields = _as_fields(prediction, columns)
        # Some predictions have fields that the first prediction lacks, so check every row.
        check_clash(original, fields, "predictions have", chunk.source)
        yield {**_id_field(index, original, row.get("id"), columns), **original, **fields}


def _as_fields(prediction: Prediction, columns: FileLayout | None) -> dict[str, Any]:
    """Return the predicted fields of a record; with `columns`, one field per column of the file."""
    return prediction if columns is None else flatten_prediction(prediction, columns.digits)


def _id_field(index: int, original: Row, row_id: object, columns: FileLayout | None) -> dict[str, Any]:
    """Return the field ``id`` of a record: the row's id, or its index.

    Every JSON record has this field. In a file with columns, it is left out if the rows have an id column.
    """
    if columns is not None and (row_id is not None or any(name.lower() == "id" for name in original)):
        return {}
    return {"id": index if row_id is None else row_id}


def _predict_in_parts(
    info: CheckpointInfo,
    chunks: Iterator[Chunk],
    columns: FileLayout | None,
    parts: OutputShards,
    write: Callable[[Iterable[dict[str, Any]]], int],
) -> int | None:
    """Predict this process's chunks and write them as parts; one process joins the parts of all processes.

    Returns:
        Number of records, or None if another process joins the parts.
    """
    chunks = _check_first_chunk(info, chunks, columns, warns=True)
    checkpoints: list[Checkpoint] = []

    def load(precision: str | None) -> str:
        checkpoints.append(load_to_predict(info.in_precision(precision)))
        return checkpoints[0].machine.precision

    with parts.opened(load):
        # `opened` has called `load` once.
        (checkpoint,) = checkpoints
        truncation = _count_truncation(checkpoint)

        def write_chunk(file: Path, chunk: Chunk) -> None:
            write_part(file, pack_records(_answer_chunk(checkpoint, chunk, columns, truncation)))

        files = parts.compute(chunks, write_chunk)
        truncation.log()
        with parts.joined(files) as joins:
            records = itertools.chain.from_iterable(unpack_records(read_part(file)) for file in files)
            return write(records) if joins else None

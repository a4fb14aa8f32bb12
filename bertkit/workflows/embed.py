"""Turn the texts of any number of rows into vectors: part by part, so that a killed process goes on where it was."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import bertkit
from bertkit.errors import DataError, UsageError, closest, located
from bertkit.hardware.launch import Launch, refuse_launch
from bertkit.progress import log, stage
from bertkit.recipe import typed_path
from bertkit.storage.outputs import refuse_inputs
from bertkit.storage.parts import PartFolder, is_whole
from bertkit.vectors.embedder import Embedder
from bertkit.vectors.text_files import Part, TextSource, read_row_parts
from bertkit.vectors.units import UNITS, Unit, UnitVectors, check_unit
from bertkit.vectors.vector_files import output_files, write_vector_part, write_vectors


def embed(embedder: Embedder, source: TextSource, *, unit: str = "text") -> Iterator[dict[str, Any]]:
    """Compute the vectors of rows: one record per vector with the row's ``id`` and the ``embedding``, in order.

    Args:
        embedder: the model.
        source: the rows.
        unit: Text, word or token that a vector stands for, of `bertkit.vectors.units.UNITS`.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    refuse_launch("several processes without an --output", "name the file that all of them work on")
    found, parts = _open_rows(embedder, source, unit)
    _load_embedder(embedder)
    for part in parts:
        result = _encode_part(found, embedder, part, source)
        for number, row in enumerate(result.rows):
            named = {name: values[number] for name, values in result.columns.items()}
            vector = [float(f"{value:.9g}") for value in result.vectors[number].tolist()]
            yield {"id": part.ids[row], **named, "embedding": vector}


def embed_to_file(
    embedder: Embedder,
    source: TextSource,
    output: str | Path,
    *,
    unit: str = "text",
    dtype: str = "float32",
    fresh: bool = False,
) -> dict[str, Any]:
    """Embed as `embed` does, into a .npy or .parquet file that appears when it is complete.

    An interrupted process leaves its parts beside the output, and the same command goes on from there. Several
    processes of a launch, or shards, share the parts.

    Returns:
        what the file says of its vectors; empty where another process writes it.

    Raises:
        UsageError: the output is one of the inputs, or parts of another model or of other options are there.
        ResourceError: another process is writing the output, or it cannot be written.
        BertkitError: any other of the kind that fits; see `bertkit.errors`.
    """
    # The output and the rows are checked before the model is loaded; parts that another model has written are refused.
    output = typed_path(output)
    files = output_files(output, dtype)
    launch = Launch.join()
    unit_kind, row_parts = _open_rows(embedder, source, unit)
    for file in files:
        refuse_inputs(file, _input_files(source, embedder))
    parts = PartFolder(output, _identity(embedder, unit), launch)

    def load(precision: str | None) -> str:
        # All parts have one precision: that of the first process, or of the parts that are there.
        nonlocal embedder
        if precision is not None:
            embedder = replace(embedder, precision=precision)
        return _load_embedder(embedder)

    with parts.opened(load, fresh=fresh):
        # Each process computes its parts; one joins them, once all are there.
        written = _compute_parts(unit_kind, embedder, row_parts, parts, source)
        with parts.joined(written) as joins:
            if not joins:
                return {}
            with stage(f"writing {output.name}"):
                about = _describe(embedder, source, unit)
                return write_vectors(written, output, parts.folder / "staging", dtype=dtype, about=about)


def _open_rows(embedder: Embedder, source: TextSource, unit: str) -> tuple[Unit, Iterator[Part]]:
    """Check model and options, and read the first part, so that a wrong file is answered before the model is loaded."""
    if unit not in UNITS:
        raise UsageError(f"--unit {unit}", closest(unit, UNITS))
    if source.file is None and source.text is None:
        raise UsageError("nothing to embed", "name a FILE, or `-`, or give --text")
    if source.text is not None and unit == "target":
        raise UsageError("--text with --unit target", "name a FILE with the columns text (or tokens) and target")
    check_unit(unit, embedder)
    if not embedder.unknown:
        _ = embedder.config  # checks the folder
    unit_kind = UNITS[unit]
    parts = read_row_parts(source, unit_kind)
    first = next(parts, None)
    if first is None:
        raise DataError("no rows", "add rows", file=source.name)
    return unit_kind, itertools.chain([first], parts)


def _encode_part(unit: Unit, embedder: Embedder, part: Part, source: TextSource) -> UnitVectors:
    with located(file=source.name):
        return unit.encode(embedder, part.items)


def _compute_parts(
    unit: Unit, embedder: Embedder, parts: Iterator[Part], folder: PartFolder, source: TextSource
) -> list[Path]:
    """Compute the parts of this process that are not there, and return the files of all parts."""
    files, kept_parts = [], 0
    for part in parts:
        file = folder.file(part.number, part.digest())
        files.append(file)
        is_ours = folder.launch.owns(part.number)  # checksums are compared of these alone
        if is_whole(file) if is_ours else file.exists():
            kept_parts += 1
        elif is_ours:
            if kept_parts:
                log.info(f"going on after {kept_parts:,} parts that an interrupted command has left")
                kept_parts = 0
            result = _encode_part(unit, embedder, part, source)
            write_vector_part(file, [part.ids[row] for row in result.rows], result.vectors, result.columns)
    return files


def _load_embedder(embedder: Embedder) -> str:
    """Load the model, say how it computes, and return in which precision."""
    with stage(f"loading {embedder.model}"):
        precision, reason = embedder.load()
    if embedder.unknown:  # any other has said it
        log.info(reason)
    return precision


def _identity(embedder: Embedder, unit: str) -> dict[str, Any]:
    """Return all that vectors depend on but the rows, by the names of options."""
    return {
        "--model": embedder.fingerprint,
        "--unit": unit,
        "--pooling": embedder.pooling,
        "--normalize": embedder.normalize,
        "--dimension": embedder.dimension,
        "--max-length": embedder.max_length,
        "--prompt": embedder.prompt,
        "--prompt-text": embedder.prefix,
        "--layers": embedder.layers,
        "--precision": embedder.precision,
    }


def _describe(embedder: Embedder, source: TextSource, unit: str) -> dict[str, Any]:
    return {
        "bertkit": bertkit.__version__,
        "source": source.name,
        "model_name": embedder.model,
        **embedder.describe(),
        "prompt": embedder.prompt_text if unit == "text" else "",
        "unit": unit,
        "precision": embedder.load()[0],
    }


def _input_files(source: TextSource, embedder: Embedder) -> Iterator[tuple[str, Path]]:
    if source.file is not None:
        yield "the file to embed", Path("/dev/stdin") if str(source.file) == "-" else typed_path(source.file)
    yield from (("a file of the model folder", file) for file in embedder.folder.rglob("*") if file.is_file())

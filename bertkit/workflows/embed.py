"""Compute the vectors of texts, or the similarity of pairs of texts.

The vectors of a file are computed part by part, so that a killed command can be resumed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import bertkit
from bertkit.data.columns import check_clash
from bertkit.data.files import read_records
from bertkit.data.remote import find_source
from bertkit.errors import DataError, UsageError, did_you_mean, error_location
from bertkit.hardware.launch import Launch, check_not_launched
from bertkit.progress import log, stage
from bertkit.recipe.records import DataConfig
from bertkit.recipe.sections import expand_path
from bertkit.storage.output_shards import OutputShards
from bertkit.storage.outputs import check_not_inputs
from bertkit.vectors.embedder import Embedder
from bertkit.vectors.text_files import Part, TextSource, get_text, read_row_parts
from bertkit.vectors.units import UNITS, Unit, UnitVectors, check_unit
from bertkit.vectors.vector_files import output_files, write_vector_part, write_vectors

_CHUNK_PAIRS = 4096  # pairs; enough texts to sort them by length, so that batches have little padding
_RESULT_COLUMN = "cosine"

Pair = tuple[dict[str, Any], str, str]
"""A row, and its two texts."""


def embed(embedder: Embedder, source: TextSource, *, unit: str = "text") -> Iterator[dict[str, Any]]:
    """Yield a record per vector, with the ``id`` of its row and the ``embedding``, in the order of the rows.

    Args:
        embedder: Model.
        source: Rows.
        unit: Unit that gets a vector, such as ``text`` or ``word``; a key of `bertkit.vectors.units.UNITS`.

    Raises:
        BertkitError: If the model or a row cannot be read; see `bertkit.errors`.
    """
    # 1. Check the options and the first rows, before the model is loaded.
    check_not_launched("--output is missing with several processes", "name the file that all processes write")
    unit_kind, parts = _open_rows(embedder, source, unit)
    _load_embedder(embedder)

    # 2. Compute part by part. Nine digits restore each float32 exactly.
    for part in parts:
        vectors = _encode_part(unit_kind, embedder, part, source)
        for index, row in enumerate(vectors.rows):
            columns = {name: values[index] for name, values in vectors.columns.items()}
            vector = [float(f"{value:.9g}") for value in vectors.vectors[index].tolist()]
            yield {"id": part.ids[row], **columns, "embedding": vector}


def embed_to_file(
    embedder: Embedder,
    source: TextSource,
    output: str | Path,
    *,
    unit: str = "text",
    dtype: str = "float32",
    restart: bool = False,
) -> dict[str, Any]:
    """Write the vectors that `embed` yields to a .npy or .parquet file, which appears when it is complete.

    An interrupted process leaves its parts next to the output, and the same command resumes from them. The processes of
    a launch, or shards, divide the parts.

    Returns:
        Description of the vectors; empty if another process writes the file.

    Raises:
        UsageError: If the output is also an input, or parts of another model or of other options exist.
        ResourceError: If another process is writing the output, or it cannot be written.
        BertkitError: If the model or a row cannot be read; see `bertkit.errors`.
    """
    # 1. Check the output and the first rows, before the model is loaded.
    output = expand_path(output)
    files = output_files(output, dtype)
    launch = Launch.join()
    unit_kind, row_parts = _open_rows(embedder, source, unit)
    for file in files:
        check_not_inputs(file, _input_files(source, embedder))

    def load(precision: str | None) -> str:
        # Compute all parts in the precision of the first process, or of the existing parts.
        nonlocal embedder
        if precision is not None:
            embedder = replace(embedder, precision=precision)
        return _load_embedder(embedder)

    def write_part(file: Path, part: Part) -> None:
        vectors = _encode_part(unit_kind, embedder, part, source)
        write_vector_part(file, [part.ids[row] for row in vectors.rows], vectors.vectors, vectors.columns)

    # 2. Compute the parts of this process, except parts that exist already.
    parts = OutputShards(output, _identity(embedder, unit), launch)
    with parts.opened(load, restart=restart):
        part_files = parts.compute(row_parts, write_part)

        # 3. Join the parts of all processes in one process.
        with parts.joined(part_files) as is_joining:
            if not is_joining:
                return {}
            with stage(f"writing {output.name}"):
                about = _describe(embedder, source, unit)
                return write_vectors(part_files, output, parts.folder / "staging", dtype=dtype, about=about)


def _open_rows(embedder: Embedder, source: TextSource, unit: str) -> tuple[Unit, Iterator[Part]]:
    """Check the model and the options, and read the first part, before the model is loaded."""
    if unit not in UNITS:
        raise UsageError(f"--unit {unit}", did_you_mean(unit, UNITS))
    if source.file is None and source.text is None:
        raise UsageError("nothing to embed", "name a FILE, or `-`, or give --text")
    if source.text is not None and unit == "target":
        raise UsageError("--text with --unit target", "name a FILE with the columns text (or tokens) and target")
    check_unit(unit, embedder)
    if not embedder.unknown:
        _ = embedder.config  # Check the folder.
    unit_kind = UNITS[unit]
    parts = read_row_parts(source, unit_kind)
    first_part = next(parts, None)
    if first_part is None:
        raise DataError("no rows", "add rows", file=source.name)
    return unit_kind, itertools.chain([first_part], parts)


def _encode_part(unit: Unit, embedder: Embedder, part: Part, source: TextSource) -> UnitVectors:
    with error_location(file=source.name):
        return unit.encode(embedder, part.items)


def _load_embedder(embedder: Embedder) -> str:
    """Load the model, log how it computes, and return its precision."""
    with stage(f"loading {embedder.model}"):
        precision, reason = embedder.load()
    if embedder.unknown:  # Other models have logged it.
        log.info(reason)
    return precision


def _identity(embedder: Embedder, unit: str) -> dict[str, Any]:
    """Return the settings that vectors depend on, by option, so that an error can name the option that changed."""
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
        yield "the file to embed", Path("/dev/stdin") if str(source.file) == "-" else expand_path(source.file)
    yield from (("a file of the model folder", file) for file in embedder.folder.rglob("*") if file.is_file())


def compute_similarity(embedder: Embedder, pairs: Iterable[Pair]) -> Iterator[dict[str, Any]]:
    """Yield each row with the ``cosine`` of the vectors of its two texts, in order.

    Raises:
        BertkitError: If the model or a row cannot be read; see `bertkit.errors`.
    """
    remaining = iter(pairs)
    # A wrong row or option is an error before the model is loaded.
    first_pairs = list(itertools.islice(remaining, _CHUNK_PAIRS))
    _ = embedder.modules
    _load_embedder(embedder)
    return _compare_pairs(embedder, itertools.chain(first_pairs, remaining))


def read_pairs(file: str | Path, columns: tuple[str, str] = ("text", "text_pair")) -> Iterator[Pair]:
    """Read the pairs of a file, or of standard input (``-``).

    Raises:
        DataError: If a text is empty, or a column is missing.
    """
    for line, row in read_records(find_source(file), DataConfig()):
        texts = []
        for column, option in zip(columns, ("--column", "--pair-column"), strict=True):
            text = get_text((line, row), column, file, option)
            if not text.strip():
                raise DataError("no text", "fill it in, or remove the row", file=file, row=line, column=column)
            texts.append(text)
        check_clash(row, [_RESULT_COLUMN], "results have", file)
        yield row, texts[0], texts[1]


def _compare_pairs(embedder: Embedder, pairs: Iterable[Pair]) -> Iterator[dict[str, Any]]:
    remaining = iter(pairs)
    while chunk := list(itertools.islice(remaining, _CHUNK_PAIRS)):
        texts = list(dict.fromkeys(text for _, *pair in chunk for text in pair))
        vectors = embedder.encode(texts).astype(np.float64)
        # The minimum norm keeps a vector of zeros at zero; a division by 0 would make it NaN.
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-30)
        text_vectors = dict(zip(texts, vectors, strict=True))
        for row, text, pair_text in chunk:
            yield {**row, _RESULT_COLUMN: float(np.float32(text_vectors[text] @ text_vectors[pair_text]))}

"""Build an index, add rows to it, delete rows of it: it changes in one step, when its manifest is written."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertkit.errors import DataError, ModelError, UnavailableError, UsageError
from bertkit.metrics import Numbers
from bertkit.progress import log
from bertkit.storage.files import disk_errors, make_ignored_folder, refuse_links, sync_folder
from bertkit.storage.fingerprints import list_files
from bertkit.vectors.search.index import Index
from bertkit.vectors.search.lexical import LexicalIndex
from bertkit.vectors.search.manifest import SIMILARITIES, Manifest, ShardInfo, write_manifest
from bertkit.vectors.search.passages import Coverage
from bertkit.vectors.search.shard import JOURNAL, ShardWriter

_WORDS = "words-"  # begins the name of the folder with the BM25

Chunk = tuple[list[dict[str, Any]], Numbers, Coverage]
"""Rows with ``id`` and ``text``, their vectors (rows, dimension), and how much of the texts the model read."""

Chunks = Callable[[int], Iterable[Chunk]]
"""Yields the chunks of all rows but the first ones, of which there are as many as its argument says."""


def build_index(folder: Path, manifest: Manifest, chunks: Chunks, *, origin: Mapping[str, Any] | None = None) -> Index:
    """Build an index beside its folder and move it there; the caller holds the lock of the folder.

    A killed build is gone on with by the next one of the same origin.

    Args:
        folder: must not exist.
        manifest: how the vectors are computed, without shards.
        chunks: of which there is at least one.
        origin: what identifies rows and vectors; None for a build that always begins anew.

    Raises:
        UsageError: If the folder exists, or the similarity is not known.
        ModelError: a vector is not finite.
        ResourceError: the disk refuses a write.
    """
    if folder.exists():
        raise UsageError("the index exists", "add to it with `bertkit search add`, or delete it", file=folder)
    if manifest.similarity not in SIMILARITIES:
        raise UsageError(f"similarity {manifest.similarity!r} is not known", f"one of {', '.join(SIMILARITIES)}")
    building = staging_folder(folder)
    with disk_errors(building):
        make_ignored_folder(building)
        try:
            info, coverage = _write_shard(building / _shard_name(0), manifest, chunks, origin)
        except (DataError, ModelError):  # neither can be repaired by going on
            shutil.rmtree(building)
            raise
        manifest = write_words(building, manifest.with_shard(info, coverage))
        write_manifest(building, manifest)
        (building / info.folder / JOURNAL).unlink(missing_ok=True)
        building.rename(folder)
        sync_folder(folder.parent)
    return Index.open(folder)


def add_to_index(index: Index, chunks: Chunks, *, origin: Mapping[str, Any] | None = None) -> Index:
    """Add a shard to an index, and return the index opened anew; the caller holds the lock of its folder.

    The shard counts when the manifest names it, which is written last.

    Raises:
        ModelError: a vector is not finite.
        ResourceError: the disk refuses a write.
        UsageError: a file or folder of the index is a link.
    """
    refuse_links(index.folder)
    with disk_errors(index.folder):
        shard = index.folder / _shard_name(len(index.shards))
        info, coverage = _write_shard(shard, index.manifest, chunks, origin)
        manifest = write_words(index.folder, index.manifest.with_shard(info, coverage))
        write_manifest(index.folder, manifest)
    return finish_addition(index.folder, manifest)


def finish_addition(folder: Path, manifest: Manifest) -> Index:
    """Delete what an index needs no more once it has its last shard, and return it opened anew.

    Raises:
        ResourceError: the disk refuses it.
    """
    with disk_errors(folder):
        sweep_words(folder, manifest)
        (folder / manifest.shards[-1].folder / JOURNAL).unlink(missing_ok=True)
    return Index.open(folder)


def delete_from_index(index: Index, numbers: Iterable[int]) -> Index:
    """Mark rows as deleted, and return the index opened anew; the caller holds the lock of its folder.

    Raises:
        ResourceError: the disk refuses a write.
    """
    deleted = tuple(sorted({*index.manifest.deleted, *map(int, numbers)}))
    with disk_errors(index.folder):
        write_manifest(index.folder, replace(index.manifest, deleted=deleted))
    return Index.open(index.folder)


def staging_folder(folder: Path) -> Path:
    """Return the folder in which an index is built: beside its own, on the same disk."""
    path = folder.resolve()
    return path.with_name(f".{path.name}.building")


def _shard_name(number: int) -> str:
    return f"shard-{number:05d}"


def _write_shard(
    folder: Path, manifest: Manifest, chunks: Chunks, origin: Mapping[str, Any] | None
) -> tuple[ShardInfo, Coverage]:
    """Write a shard; return what the manifest says of it, and how much of its texts the model read."""
    with ShardWriter(folder, manifest.dimension, manifest.similarity, origin) as writer:
        for records, vectors, coverage in chunks(writer.rows):
            writer.append(records, vectors, coverage)
        return writer.finish(), writer.coverage


def write_words(folder: Path, manifest: Manifest) -> Manifest:
    """Count the words of all rows of an index, write their BM25 into its folder, and return the manifest with it.

    It counts when that manifest is written. Without bm25s, the index has none, which is said.
    """
    try:
        lexical = LexicalIndex.build(Index(folder, manifest).texts())
    except UnavailableError as error:
        log.info(f"no BM25 beside the vectors: {error.what} - {error.remedy}")
        return replace(manifest, lexical=None)
    current = manifest.lexical["folder"] if manifest.lexical else ""
    name = next(name for number in itertools.count() if (name := f"{_WORDS}{number}") != current)
    shutil.rmtree(folder / name, ignore_errors=True)  # of a killed process
    lexical.save(folder / name)
    files = tuple(sorted(file.name for file in (folder / name).iterdir()))
    return replace(manifest, lexical={"folder": name, "files": list_files(folder / name, files)})


def sweep_words(folder: Path, manifest: Manifest) -> None:
    """Delete the BM25 that a manifest has replaced."""
    for words in folder.glob(f"{_WORDS}*"):
        if not manifest.lexical or words.name != manifest.lexical["folder"]:
            shutil.rmtree(words, ignore_errors=True)

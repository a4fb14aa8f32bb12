"""An index that is open: searched, and read row by row."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.errors import BertkitError, UsageError, pip_install
from bertkit.metrics import Numbers
from bertkit.vectors.search.exact import by_shard, exact_search, gather
from bertkit.vectors.search.lexical import LexicalIndex
from bertkit.vectors.search.manifest import ROWS, Manifest, read_manifest
from bertkit.vectors.search.shard import Shard, hash_id, prepare


@contextmanager
def naming_damage(folder: Path) -> Iterator[None]:
    """Read an index; where that fails, compare the checksums of its files.

    They are not compared before, since a query reads a small part of them.

    Raises:
        DataError: a file is damaged.
    """
    try:
        yield
    except BertkitError:
        raise
    except Exception:
        read_manifest(folder, verify=True)
        raise


class Index:
    """Vectors with their rows, in a folder whose files are mapped into memory as they are read."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        self.shards = [Shard(folder / info.folder, info) for info in manifest.shards]

    @classmethod
    def open(cls, folder: Path, *, verify: bool = False) -> Index:
        """Open the index of a folder.

        Args:
            folder: written by `bertkit.vectors.search.build`.
            verify: whether to read all files and compare their checksums; their sizes are compared always.

        Raises:
            UsageError: the folder is no index.
            DataError: it is damaged.
        """
        return cls(folder, read_manifest(folder, verify=verify))

    def __len__(self) -> int:
        return self.manifest.rows

    @cached_property
    def deleted(self) -> Numbers:
        """The numbers of the rows that are deleted, ascending."""
        return np.array(self.manifest.deleted, dtype=np.int64)

    @cached_property
    def words(self) -> LexicalIndex:
        """BM25 of the rows.

        Raises:
            UsageError: the index has none, since it was built without bm25s.
            UnavailableError: bm25s is not installed.
        """
        if self.manifest.lexical is None:
            remedy = f"`{pip_install('search')}`, then build it again or add to it"
            raise UsageError("the index has no words: it was built without bm25s", remedy, file=self.folder)
        return LexicalIndex.load(self.folder / self.manifest.lexical["folder"])

    def search(self, queries: Numbers, k: int) -> tuple[Numbers, Numbers]:
        """Find the k nearest rows of each query, or all rows where there are fewer.

        Args:
            queries: vectors of the index's model, of shape (queries, dimension).
            k: at least 1.

        Returns:
            scores (queries, k), float32 and descending, and row numbers (queries, k), for `rows`.

        Raises:
            UsageError: the queries have another dimension, or a number that is not finite.
        """
        queries = np.atleast_2d(queries)
        if queries.shape[1] != self.manifest.dimension:
            what = f"vectors of dimension {queries.shape[1]}, where those of the index have {self.manifest.dimension}"
            raise UsageError(what, "use the model that the index was built with", file=self.folder)
        if not np.isfinite(queries).all():
            what = "the vector of a query is not finite"
            raise UsageError(what, "compute it again, with another model or in fp32", file=self.folder)
        queries = prepare(queries, self.manifest.similarity)
        return exact_search(self.shards, queries, min(k, len(self)), self.deleted)

    def similarities(self, query: Numbers, numbers: Sequence[int]) -> Numbers:
        """Compute the similarity of a vector (dimension,) to the vectors of some rows, float32."""
        vector = prepare(query[None], self.manifest.similarity)[0].astype(np.float64)
        products: Numbers = gather(self.shards, np.asarray(numbers, dtype=np.int64)).astype(np.float64) @ vector
        return products.astype(np.float32)

    def rows(self, numbers: Iterable[int]) -> list[dict[str, Any]]:
        """Read the rows of some numbers, in their order: ``id``, ``text`` and the other columns."""
        wanted = np.fromiter(numbers, dtype=np.int64)
        records: list[dict[str, Any]] = [{}] * len(wanted)
        for shard, positions, rows in by_shard(self.shards, wanted):
            for position, record in zip(positions, shard.read_rows(rows), strict=True):
                records[position] = record
        return records

    def records(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the number and the record of each row that is not deleted, in order."""
        deleted, number = set(self.manifest.deleted), 0
        for shard in self.shards:
            with (shard.folder / ROWS).open("rb") as stream:
                for line in stream:
                    if number not in deleted:
                        yield number, json.loads(line)
                    number += 1

    def texts(self) -> Iterator[tuple[int, str]]:
        """Yield the number and the text of each row that is not deleted, in order."""
        return ((number, record["text"]) for number, record in self.records())

    def has_hashes(self, hashes: Numbers) -> Numbers:
        """Tell of each hash of an id whether a row that is not deleted has it: an array of bool."""
        alive = np.delete(self._hashes, self.deleted)
        return np.isin(hashes, alive)

    def find_ids(self, ids: Iterable[object]) -> dict[str, int]:
        """Find the numbers of the rows that have some ids and are not deleted: id -> number."""
        hashes = {hash_id(identifier): str(identifier) for identifier in ids}
        found = np.flatnonzero(np.isin(self._hashes, np.array(list(hashes), dtype=np.uint64)))
        numbers = found[~np.isin(found, self.deleted)]
        records = zip(numbers, self.rows(numbers), strict=True)
        by_id = {str(record["id"]): int(number) for number, record in records}
        # hashes may collide
        return {name: number for name, number in by_id.items() if name in hashes.values()}

    def find_documents(self, ids: Iterable[object]) -> dict[str, list[int]]:
        """Find the rows that are passages of some documents and are not deleted: id of the document -> numbers."""
        numbers: dict[str, list[int]] = {}
        wanted = set(map(str, ids)) if self.manifest.passages is not None else set()
        for number, record in self.records() if wanted else ():
            if str(record["document"]) in wanted:
                numbers.setdefault(str(record["document"]), []).append(number)
        return numbers

    @cached_property
    def _hashes(self) -> Numbers:
        return np.concatenate([shard.ids for shard in self.shards])

"""The texts of a file, read as often as needed and never kept, and vectors for them: computed, or read from a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.files import read_records
from bertkit.errors import DataError, UsageError
from bertkit.recipe import Data, typed_path
from bertkit.vectors.embedder import Embedder
from bertkit.vectors.groups.stored import Matrix, read_description, read_vectors, refuse_not_finite
from bertkit.vectors.text_rows import TextRow, read_text_rows

Rows = np.ndarray[Any, np.dtype[np.int64]]

# texts that are embedded at a time: many to sort by length, few beside their vectors
_CHUNK = 16_384


@dataclass(frozen=True)
class TextFile:
    """A file in any format that `predict` reads, and the column with its texts."""

    path: Path
    column: str = "text"
    data: Data = field(default_factory=Data)

    @classmethod
    def open(cls, file: str | Path, column: str = "text", data: Data | None = None) -> TextFile:
        """Return a file that can be read more than once.

        Raises:
            UsageError: it is standard input.
        """
        if str(file) == "-":
            raise UsageError("the rows are read more than once, and standard input only once", "name a file")
        return cls(typed_path(file), column, data or Data())

    @cached_property
    def _stamp(self) -> tuple[int, int]:
        status = self.path.stat()
        return status.st_size, status.st_mtime_ns

    def __iter__(self) -> Iterator[TextRow]:
        """Yield the rows in the order of the file.

        Raises:
            DataError: a row without the column, or with something other than a text; the file has changed meanwhile.
        """
        records = islice(read_records(self.path, self.data), self.data.limit)
        for row in read_text_rows(records, self.column, self.path):
            yield row._replace(text=row.text.strip())
        before, now = self._stamp, self.path.stat()
        if before != (now.st_size, now.st_mtime_ns):
            raise DataError("the file changed while it was read", "repeat the command", file=self.path)


@dataclass(frozen=True)
class VectorSource:
    """Where the vectors of texts come from: a model that computes them, or files that have them already."""

    model: str | None = None
    files: tuple[Path, ...] = ()
    """One file of vectors per file of texts, in the same order."""
    prompt: str | None = None
    """Name of one of the model's prompts."""
    prefix: str | None = None
    """A prompt in full, instead of a named one."""

    @cached_property
    def embedder(self) -> Embedder | None:
        """The model, not yet loaded; None where vectors are read from files.

        Raises:
            UsageError: both are given, or none.
            BertkitError: the model cannot be used.
        """
        if (self.model is None) != bool(self.files):
            what = "no vectors" if self.model is None else "--model and --vectors"
            raise UsageError(what, "name a --model, or a file with --vectors")
        if self.model is None:
            if self.prompt is not None or self.prefix is not None:
                raise UsageError("a prompt without --model", "a prompt belongs to a model that reads texts")
            return None
        embedder = Embedder(self.model, prompt=self.prompt, prefix=self.prefix)
        # what is wrong with the folder or the prompt is said before torch is imported
        _ = embedder.modules
        return embedder

    @property
    def prompt_text(self) -> str:
        """What a model reads before each text."""
        return self.embedder.prompt_text if self.embedder else ""

    def describe(self) -> dict[str, Any] | None:
        """Return what vectors must have in common to be compared; None where files do not say it."""
        if self.embedder is not None:
            return self.embedder.describe()
        descriptions = [read_description(file) for file in self.files]
        return next((description for description in descriptions if description is not None), None)

    def read(self, texts: Iterable[str], rows: Rows, totals: Sequence[int]) -> Matrix:
        """Return the vectors of texts, (texts, dimension).

        Args:
            texts: what a model reads, in chunks.
            rows: the numbers of their rows among those of all files, from 0, by which vectors of files are chosen.
            totals: the number of rows of each file.

        Raises:
            DataError: a number is not finite, or a file has not one vector per row.
        """
        if self.embedder is None:
            pairs = zip(self.files, totals, strict=True)
            return np.concatenate([read_vectors(file, total) for file, total in pairs])[rows]
        chunks, remaining = [], iter(texts)
        while chunk := list(islice(remaining, _CHUNK)):
            chunks.append(self.embedder.encode(chunk))
            refuse_not_finite(chunks[-1], self.model)
        return np.concatenate(chunks) if chunks else np.zeros((0, 0), dtype=np.float32)

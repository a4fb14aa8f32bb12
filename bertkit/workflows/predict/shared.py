"""Predictions that several processes share: each chunk of rows is a part, which one of them predicts and all keep."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from bertkit.errors import DataError
from bertkit.evaluation.checkpoint import SavedCheckpoint
from bertkit.evaluation.stored.folder import describe_maker
from bertkit.evaluation.together import Together, load_models, say_unread
from bertkit.hardware.launch import Launch
from bertkit.recipe import Row
from bertkit.storage.files import to_json
from bertkit.storage.parts import PartFolder, is_whole, read_part, write_part
from bertkit.tasks import Prediction

ByTask = dict[str, list[Prediction]]
RowsByTask = dict[str, list[Row]]
Load = Callable[[Row], Together]
"""Loads the models once the first row is read."""
Share = Callable[[RowsByTask, Callable[[], ByTask]], ByTask | None]
"""Returns the predictions of a chunk of rows; None where another process computes them."""
Written = TypeVar("Written")


class SharedPredictions:
    """The parts of an output, which are computed by one pass over the rows and read by the next.

    Args:
        saved: the checkpoint of each task.
        output: the file that the predictions are for.
        launch: the processes.
    """

    def __init__(self, saved: Mapping[str, SavedCheckpoint], output: Path, launch: Launch) -> None:
        identity = {name or "checkpoint": describe_maker(of_task) for name, of_task in saved.items()}
        self._folder = PartFolder(output, identity, launch)
        self._saved = dict(saved)
        self._held = ExitStack()
        self._together: Together | None = None

    def write(
        self,
        predict: Callable[[Load, Share], Iterator[dict[str, Any]]],
        write: Callable[[Iterable[dict[str, Any]]], Written],
    ) -> Written | None:
        """Predict this process's parts, and write the records of all where it is to join them; else return None.

        Args:
            predict: yields the records of all rows whose predictions are there.
            write: writes them.
        """
        files = list[Path]()

        def compute_own(rows: RowsByTask, compute: Callable[[], ByTask]) -> None:
            file = self._file(len(files), rows)
            if self._folder.launch.owns(len(files)) and not is_whole(file):
                write_part(file, json.dumps(compute()).encode())
            files.append(file)

        def read(rows: RowsByTask, compute: Callable[[], ByTask]) -> ByTask:
            file = next(remaining)
            if file != self._file(files.index(file), rows):
                raise DataError("the rows have changed meanwhile", "repeat the command")
            predicted: ByTask = json.loads(read_part(file).to_pybytes())
            return predicted

        with self._held:
            # Records of this pass are none: they are made of all parts, in order, by one process.
            for _ in predict(self._load_models, compute_own):
                pass
            remaining = iter(files)
            with self._folder.joined(files) as joins:
                return write(predict(self._load_models, read)) if joins else None

    def _file(self, number: int, rows: RowsByTask) -> Path:
        return self._folder.file(number, hashlib.sha256(to_json(rows).encode()).hexdigest())

    def _load_models(self, first: Row) -> Together:
        if self._together is None:
            say_unread(first, list(self._saved.values()))
            self._held.enter_context(self._folder.opened(self._load_in))
        assert self._together is not None
        return self._together

    def _load_in(self, precision: str | None) -> str:
        saved = {name: of_task.in_precision(precision) for name, of_task in self._saved.items()}
        self._together = load_models(saved)
        return next(iter(self._together.tasks.values())).machine.precision

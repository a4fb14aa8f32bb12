"""An output that is computed part by part: each part is a file that is whole or not there, and is computed once.

The folder of the parts is beside the output, and is deleted once the output is complete. It says of which model and
options the parts are. The name of a part has a digest of its rows, so that a part of other rows is never taken.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import bertkit
from bertkit.errors import ResourceError, UsageError
from bertkit.hardware.launch import Launch
from bertkit.progress import log
from bertkit.storage.files import disk_errors, locked, make_ignored_folder, write_bytes
from bertkit.storage.fingerprints import read_signed, with_digest, without_digest, write_signed
from bertkit.storage.outputs import claimed, unwritable
from bertkit.storage.runs import differences

_PLAN = "plan.json"


class PartFolder:
    """The parts of one output, which the processes of one launch compute, or shards.

    Args:
        output: the file that the parts are for.
        identity: all that the parts depend on but the rows, as JSON values.
        launch: the processes that compute them.
    """

    def __init__(self, output: Path, identity: Mapping[str, Any], launch: Launch) -> None:
        self.output, self.launch = output, launch
        self.identity = {**identity, "bertkit": bertkit.__version__}
        self.folder = output.with_name(f".{output.name}.parts")

    @contextmanager
    def opened(self, load: Callable[[str | None], str], *, fresh: bool = False) -> Iterator[None]:
        """Load the model in all processes, and hold the lock of the output where one process writes it for all.

        All parts have one precision, also those of an interrupted command: results of two would differ in rounding.

        Args:
            load: loads the model in a precision, or in its own for None, and returns which.
            fresh: delete the parts that are there.

        Raises:
            UsageError: the parts that are there are of another model or of other options.
            ResourceError: another process is writing the output, or it cannot be written.
        """
        if fresh and self.launch.size > 1:
            raise UsageError("--fresh with several processes", f"delete {self.folder.name} yourself, if it is there")
        with disk_errors(self.output.parent):
            if self.launch.is_shard:
                self._load_as_shard(load)
                yield
            elif self.launch.rank > 0:
                load(self.launch.wait_for("precision"))
                yield
            else:
                with claimed(self.output):
                    try:
                        precision = load(self.open(fresh=fresh))
                        self.begin(precision)
                        self.launch.publish("precision", precision)
                        yield
                    finally:
                        if not self.has_parts():
                            self.delete()

    def _load_as_shard(self, load: Callable[[str | None], str]) -> None:
        """Load the model in the precision of the shard that came first."""
        try:
            make_ignored_folder(self.folder, parents=False)
        except OSError as error:
            raise unwritable(error, self.output) from None
        with locked(self.folder / ".lock"):
            before = self._read_plan()
            precision = load(before)
            if before is None:
                self.begin(precision)

    @contextmanager
    def joined(self, files: Sequence[Path]) -> Iterator[bool]:
        """Yield whether this process is to join the parts, which are deleted when it has.

        The first process of a launch is. Of shards, it is the one that ends last: it finds all parts there.
        """
        self.launch.finish()
        joins = self.launch.rank == 0
        if self.launch.is_shard:
            missing = sum(not file.exists() for file in files)
            joins = not missing
            if missing and self.folder.exists():
                log.info(
                    f"{missing:,} of {len(files):,} parts are those of other shards; the last one writes the output"
                )
        if not joins:
            yield False
        elif self.launch.is_shard:
            with claimed(self.output, wait=True):
                joins = self.folder.exists()  # else another shard has joined them meanwhile
                yield joins
                self.delete()
        else:
            yield True
            self.delete()

    def open(self, *, fresh: bool) -> str | None:
        """Return the precision that parts of an interrupted process were computed in; None where there are none.

        Raises:
            UsageError: they are of another model or of other options.
        """
        if fresh or not self.has_parts():
            self.delete()
        precision = self._read_plan()
        if precision is None:
            self.delete()
        return precision

    def _read_plan(self) -> str | None:
        """Return the precision of the parts, once their model and options are compared; None without a plan."""
        try:
            plan = read_signed(self.folder / _PLAN, ResourceError("damaged"))
        except ResourceError:
            log.info(f"{self.folder / _PLAN} is damaged, so all parts are computed anew")
            plan = None
        if plan is None:
            return None
        if changes := differences(plan["identity"], self.identity):
            what = f"an interrupted command has left parts of this output ({'; '.join(changes[:4])})"
            remedy = f"repeat that command, or delete {self.folder.name} to start over"
            raise UsageError(what, remedy, file=self.output)
        return str(plan["precision"])

    def begin(self, precision: str) -> None:
        """Note what the parts are of, before the first is written."""
        make_ignored_folder(self.folder, parents=False)
        write_signed(self.folder / _PLAN, {"identity": self.identity, "precision": precision})

    def file(self, number: int, digest: str) -> Path:
        """Return the file of a part, which is there once it is computed."""
        return self.folder / f"{number:06}-{digest[:16]}.part"

    def has_parts(self) -> bool:
        """Tell whether a part is there."""
        return next(self.folder.glob("*.part"), None) is not None

    def delete(self) -> None:
        """Delete all parts."""
        shutil.rmtree(self.folder, ignore_errors=True)


def write_part(file: Path, content: bytes) -> None:
    """Write a part, whole or not at all; the same part of other rows is deleted."""
    for other in file.parent.glob(f"{file.name.partition('-')[0]}-*.part"):
        other.unlink(missing_ok=True)
    write_bytes(file, with_digest(content))


def is_whole(file: Path) -> bool:
    """Tell whether a part is there; one that is damaged is deleted, which is logged."""
    if not file.exists() or map_part(file) is not None:
        return file.exists()
    log.info(f"{file} is damaged, so it is computed anew")
    file.unlink()
    return False


def read_part(file: Path) -> Any:
    """Map a part into memory, without its digest.

    Raises:
        ResourceError: it is damaged. It is deleted, so that the next process computes it again.
    """
    if (content := map_part(file)) is None:
        file.unlink()
        raise ResourceError("the part was damaged, and is deleted", "repeat the command", file=file)
    return content


def map_part(file: Path) -> Any | None:
    """Map a part into memory; None where it is damaged."""
    import pyarrow

    if not file.stat().st_size:
        return None
    with pyarrow.memory_map(str(file)) as source:
        return without_digest(source.read_buffer())

"""An output that is computed part by part: a part is a complete file or does not exist, and is computed once.

The folder of the parts is next to the output, and is deleted when the output is complete. It records the model and the
options. The name of a part has a checksum of its rows, so that a part of other rows is never used.
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
from bertkit.storage.runs import compare_identities

_PLAN = "plan.json"


class PartFolder:
    """Parts of an output, which the processes of a launch compute, or shards.

    Args:
        output: Output file.
        identity: Everything except the rows that the parts depend on, as JSON values.
        launch: Processes that compute the parts.
    """

    def __init__(self, output: Path, identity: Mapping[str, Any], launch: Launch) -> None:
        self.output, self.launch = output, launch
        self.identity = {**identity, "bertkit": bertkit.__version__}
        self.folder = output.with_name(f".{output.name}.parts")

    @contextmanager
    def opened(self, load: Callable[[str | None], str], *, fresh: bool = False) -> Iterator[None]:
        """Load the model in all processes, and hold the lock of the output in the process that writes it.

        All parts have the same precision, even if an interrupted command computed some of them. Otherwise, results
        would differ in rounding.

        Args:
            load: Function that loads the model in a precision, by default its own, and returns the precision.
            fresh: Delete the existing parts.

        Raises:
            UsageError: If parts of another model or of other options exist.
            ResourceError: If another process is writing the output, or it cannot be written.
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
        """Load the model in the precision of the first shard."""
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
        """Yield whether this process joins the parts; they are deleted afterwards.

        The first process of a launch joins them. With shards, the last one does, which finds all parts complete.
        """
        self.launch.finish()
        joins = self.launch.rank == 0
        if self.launch.is_shard:
            missing = sum(not file.exists() for file in files)
            joins = not missing
            if missing and self.folder.exists():
                log.info(f"other shards compute {missing:,} of {len(files):,} parts; the last one writes the output")
        if not joins:
            yield False
        elif self.launch.is_shard:
            with claimed(self.output, wait=True):
                joins = self.folder.exists()  # Otherwise, another shard has joined them in the meantime.
                yield joins
                self.delete()
        else:
            yield True
            self.delete()

    def open(self, *, fresh: bool) -> str | None:
        """Return the precision of the parts that an interrupted command has left, or None without such parts.

        Raises:
            UsageError: If they belong to another model or to other options.
        """
        if fresh or not self.has_parts():
            self.delete()
        precision = self._read_plan()
        if precision is None:
            self.delete()
        else:
            count = len(list(self.folder.glob("*.part")))
            log.info(f"resuming: {count:,} parts of an interrupted command exist")
        return precision

    def _read_plan(self) -> str | None:
        """Compare model and options of the parts, and return their precision, or None without a plan."""
        try:
            plan = read_signed(self.folder / _PLAN, ResourceError("damaged"))
        except ResourceError:
            log.info(f"{self.folder / _PLAN} is damaged, so all parts are computed anew")
            plan = None
        if plan is None:
            return None
        if changes := compare_identities(plan["identity"], self.identity):
            what = f"an interrupted command has left parts of this output ({'; '.join(map(str, changes[:4]))})"
            remedy = f"repeat that command, or delete {self.folder.name} to start over"
            raise UsageError(what, remedy, file=self.output)
        return str(plan["precision"])

    def begin(self, precision: str) -> None:
        """Record model and options, before the first part is written."""
        make_ignored_folder(self.folder, parents=False)
        write_signed(self.folder / _PLAN, {"identity": self.identity, "precision": precision})

    def file(self, number: int, digest: str) -> Path:
        """Return the file of a part, which exists when the part is complete."""
        return self.folder / f"{number:06}-{digest[:16]}.part"

    def is_missing(self, number: int, file: Path) -> bool:
        """Return whether this process must compute a part."""
        return self.launch.owns(number) and not is_whole(file)

    def has_parts(self) -> bool:
        """Return whether at least one part exists."""
        return next(self.folder.glob("*.part"), None) is not None

    def delete(self) -> None:
        """Delete all parts."""
        shutil.rmtree(self.folder, ignore_errors=True)


def write_part(file: Path, content: bytes) -> None:
    """Write a part atomically, and delete the same part of other rows."""
    for other in file.parent.glob(f"{file.name.partition('-')[0]}-*.part"):
        other.unlink(missing_ok=True)
    write_bytes(file, with_digest(content))


def is_whole(file: Path) -> bool:
    """Return whether a part exists; a damaged one is deleted, which is logged."""
    if not file.exists() or map_part(file) is not None:
        return file.exists()
    log.info(f"{file} is damaged, so it is computed anew")
    file.unlink()
    return False


def read_part(file: Path) -> Any:
    """Map a part into memory, without its digest.

    Raises:
        ResourceError: If it is damaged. It is deleted, so that the next process computes it again.
    """
    if (content := map_part(file)) is None:
        file.unlink()
        raise ResourceError("the part was damaged, and is deleted", "repeat the command", file=file)
    return content


def map_part(file: Path) -> Any | None:
    """Map a part into memory, or return None if it is damaged."""
    import pyarrow

    if not file.stat().st_size:
        return None
    with pyarrow.memory_map(str(file)) as source:
        return without_digest(source.read_buffer())

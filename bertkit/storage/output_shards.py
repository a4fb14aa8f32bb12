"""An output that several processes, or several attempts, compute part by part.

A part is a file with a checksum, so it is complete or does not count. The folder of the parts is next to the output,
and is deleted when the output is complete. A plan in it records the model, the options and the precision. The name of a
part has a checksum of its rows, so that a part of other rows is never used.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import bertkit
from bertkit.errors import ResourceError, UsageError
from bertkit.hardware.launch import Launch
from bertkit.progress import log
from bertkit.storage.files import disk_errors, hold_lock, make_ignored_folder, write_bytes
from bertkit.storage.fingerprints import read_with_checksum, with_digest, without_digest, write_with_checksum
from bertkit.storage.outputs import check_output, lock_output, write_error
from bertkit.storage.runs import compare_identities

_PLAN = "plan.json"


class OutputShards:
    """Parts of an output, which the processes of a launch compute, or shards, or a single process.

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
    def opened(self, load: Callable[[str | None], str], *, restart: bool = False) -> Iterator[None]:
        """Load the model. A single process also holds the lock of the output.

        Args:
            load: Function that loads the model in a precision, by default its own, and returns the precision.
            restart: Delete the existing parts.

        Raises:
            UsageError: If parts of another model or of other options exist.
            ResourceError: If another process is writing the output, or it cannot be written.
        """
        is_single = self.launch.size == 1
        if restart and not is_single:
            raise UsageError("--restart with several processes", f"delete {self.folder.name} yourself if it exists")
        check_output(self.output)
        with disk_errors(self.output.parent), lock_output(self.output) if is_single else nullcontext():
            # Parts of several processes are not deleted, because another process may have computed them just now.
            if is_single and (restart or not self._list_parts()):
                self._delete()
            try:
                self._load_in_one_precision(load)
                yield
            finally:
                if self.launch.is_first and not self._list_parts():
                    self._delete()

    def _load_in_one_precision(self, load: Callable[[str | None], str]) -> None:
        """Load the model in the precision of the existing parts, or of the process that starts first.

        Results in another precision would differ in rounding.
        """
        try:
            make_ignored_folder(self.folder, parents=False)
        except OSError as error:
            raise write_error(error, self.output) from None
        with hold_lock(self.folder / ".lock"):
            precision = self._read_plan()
            if precision is None:
                # Without a valid plan, the origin of existing parts is unknown.
                for part in self._list_parts():
                    part.unlink()
                write_with_checksum(self.folder / _PLAN, {"identity": self.identity, "precision": load(None)})
                return
        if self.launch.size == 1:
            log.info(f"resuming: {len(self._list_parts()):,} parts of an interrupted command exist")
        load(precision)

    def _read_plan(self) -> str | None:
        """Compare model and options of the parts, and return their precision, or None without a plan."""
        try:
            plan = read_with_checksum(self.folder / _PLAN, ResourceError("damaged"))
        except ResourceError:
            log.info(f"{self.folder / _PLAN} is damaged; recomputing all parts")
            plan = None
        if plan is None:
            return None
        if changes := compare_identities(plan["identity"], self.identity):
            problem = f"an interrupted command has left parts of this output ({'; '.join(map(str, changes[:4]))})"
            remedy = f"repeat that command, or delete {self.folder.name} to start over"
            raise UsageError(problem, remedy, file=self.output)
        return str(plan["precision"])

    def compute(self, parts: Iterable[Any], write: Callable[[Path, Any], object]) -> list[Path]:
        """Write the parts of this process that do not exist yet, and return the files of all parts.

        Every process reads all rows, because the name of a part has a checksum of its rows.

        Args:
            parts: Rows of each part, with a method `digest`.
            write: Function that computes a part and writes it with `write_part`.
        """
        files = []
        for index, rows in enumerate(parts):
            # The third part has a name such as 000002-9f86d081884c7d65.part.
            file = self.folder / f"{index:06}-{rows.digest()[:16]}.part"
            if index % self.launch.size == self.launch.rank and not is_part_complete(file):
                write(file, rows)
            files.append(file)
        return files

    @contextmanager
    def joined(self, files: Sequence[Path]) -> Iterator[bool]:
        """Yield whether this process joins the parts; they are deleted afterwards.

        The first process of a launch waits for the others. Shards may run at any time, so the last one joins the parts.

        Raises:
            ResourceError: If a process of the launch has read other rows.
        """
        # 1. Find out whether all parts exist. Processes of a launch wait for each other; shards do not.
        self.launch.wait_for_all()
        missing = sum(not file.exists() for file in files)
        if missing and self.launch.is_first:
            raise ResourceError("the rows changed while they were read", "repeat the command", file=self.output)
        if missing and self.launch.is_shard and self.folder.exists():
            log.info(f"other shards compute {missing:,} of {len(files):,} parts; the last one writes the output")
        if missing or not (self.launch.is_first or self.launch.is_shard):
            yield False
            return
        # 2. Join the parts under the lock of the output, because two shards may finish at the same time.
        with lock_output(self.output, wait=True) if self.launch.size > 1 else nullcontext():
            joins = self.folder.exists()  # Otherwise, another shard has joined them in the meantime.
            yield joins
            self._delete()

    def _list_parts(self) -> list[Path]:
        return list(self.folder.glob("*.part"))

    def _delete(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def write_part(file: Path, content: bytes) -> None:
    """Write a part atomically, and delete the same part of other rows."""
    for old_part in file.parent.glob(f"{file.name.partition('-')[0]}-*.part"):
        old_part.unlink(missing_ok=True)
    write_bytes(file, with_digest(content))


def is_part_complete(file: Path) -> bool:
    """Return whether a part exists; a damaged one is deleted, which is logged."""
    if not file.exists() or _map_part(file) is not None:
        return file.exists()
    log.info(f"{file} is damaged; recomputing it")
    file.unlink()
    return False


def read_part(file: Path) -> Any:
    """Map a part into memory, without its digest.

    Raises:
        ResourceError: If it is damaged. It is deleted, so that the next process computes it again.
    """
    if (content := _map_part(file)) is None:
        file.unlink()
        raise ResourceError("the part was damaged, and is deleted", "repeat the command", file=file)
    return content


def _map_part(file: Path) -> Any | None:
    """Map a part into memory, or return None if it is damaged."""
    import pyarrow

    if not file.stat().st_size:
        return None
    with pyarrow.memory_map(str(file)) as source:
        return without_digest(source.read_buffer())

"""Open a run's folder: claim and lock it, look at the machine, and keep its record true however the run ends."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bertkit.errors import BertkitError, DivergedError, ResourceError, StoppedError
from bertkit.storage import runs

log = logging.getLogger("bertkit")


@dataclass(frozen=True)
class Run:
    """An open run: its record, and when its clock began, the time of earlier parts included."""

    record: dict[str, Any]
    start: float

    @property
    def is_finished(self) -> bool:
        """Whether there is nothing left to do."""
        return bool(self.record["status"] == "finished")


@contextmanager
def opened(
    folder: Path, identity: Mapping[str, Any], facts: Mapping[str, Any], *, precision: str, kind: str, fresh: bool
) -> Iterator[Run]:
    """Open a run in a folder, new or one that goes on; its record tells how it ended.

    Args:
        folder: where the run is or will be.
        identity: what makes the run the one it is.
        facts: what a new record holds beside.
        precision: what the recipe asks for.
        kind: type of the model, which may not bear every precision.
        fresh: move what is there aside.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.storage.runs.claim`.
    """
    with ExitStack() as held:
        with _main_process_first():
            record = (
                _open(folder, identity, facts, precision, kind, fresh, held)
                if runs.is_main_process()
                else runs.read_record(folder)
            )
        if record is None:
            raise ResourceError("the main process did not open the run", "see what it says", file=folder)
        if record["status"] == "finished":
            log.info(f"already finished on {record['finished']}; --fresh starts anew")
        start = time.perf_counter() - record["seconds"]
        try:
            yield Run(record, start)
        except BertkitError as error:
            status = {StoppedError: "stopped", DivergedError: "diverged"}.get(type(error), "failed")
            ended = {"status": status, "error": str(error), "seconds": round(time.perf_counter() - start, 3)}
            runs.write_record(folder, {**record, **ended})
            raise


def _open(
    folder: Path,
    identity: Mapping[str, Any],
    facts: Mapping[str, Any],
    precision: str,
    kind: str,
    fresh: bool,
    held: ExitStack,
) -> dict[str, Any]:
    """Claim and lock the folder, and write the record of a new run or of one that goes on."""
    record = runs.claim(folder, identity, fresh=fresh)
    if record is not None and record["status"] == "finished":
        return record
    held.enter_context(runs.locked(folder))
    from bertkit.hardware.precision import detect_hardware, restore_hardware
    from bertkit.modeling.architectures import find_architecture

    if record is None:
        machine = detect_hardware(precision, avoid_bf16=find_architecture(kind).overflows_in_bf16)
        log.info(machine.reason)
        record = runs.new_record(identity, machine=asdict(machine), seconds=0.0, **facts)
    else:
        machine = restore_hardware(record["machine"], "as before")
        log.info(f"going on with {folder}; {machine.reason}")
        _say_what_changed(record, asdict(machine))
        known = {**record["machine"], "matmul_backend": machine.matmul_backend}  # those of before may not be exact here
        resumed = [*record.get("resumed", []), runs.now()]
        record = {**record, "status": "running", "resumed": resumed, "machine": known}
    runs.write_record(folder, record)
    return record


def _say_what_changed(record: dict[str, Any], machine: dict[str, Any]) -> None:
    changed = runs.differences(record["versions"], runs.versions())
    changed += runs.differences(record["machine"], {**machine, "reason": record["machine"]["reason"]})
    if changed:
        log.info(f"not bit-identical to an unbroken run: {'; '.join(changed)}")


def wait_for_all() -> None:
    """Wait until all processes of a launch are here, so that they see the files that the main one has written."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        from accelerate import PartialState

        PartialState().wait_for_everyone()


@contextmanager
def _main_process_first() -> Iterator[None]:
    """Let the main process of a launch prepare the folder before the others look at it."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    import torch
    from accelerate import PartialState

    with PartialState(cpu=not torch.cuda.is_available()).main_process_first():
        yield

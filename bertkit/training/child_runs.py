"""Runs that one command starts one after another: how they compute alike, and what ends one and not the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bertkit.errors import BertkitError, StoppedError, UsageError
from bertkit.hardware.launch import is_one_of_several
from bertkit.progress import log
from bertkit.storage import runs


def refuse_launch(what: str, remedy: str) -> None:
    """Check that this process is none of several that share a command's work.

    Raises:
        UsageError: it is, and the command is for one; `what` says so.
    """
    if is_one_of_several():
        raise UsageError(what, remedy)


@contextmanager
def keep_going(
    name: str, failures: dict[str, BertkitError], *, refused: tuple[type[BertkitError], ...] = ()
) -> Iterator[None]:
    """Note by its name that a run has failed, and say so; a signal and what is `refused` end the command."""
    try:
        yield
    except BertkitError as error:
        if isinstance(error, (StoppedError, *refused)):
            raise
        log.warning(f"{name} failed: {error}")
        failures.setdefault(name, error)


def first_failure(failures: Mapping[str, BertkitError]) -> BertkitError | None:
    """Return the error of the first run that failed, with its name; None where none did."""
    return next((error.named(name) for name, error in failures.items()), None)


def refuse_failed(failures: Mapping[str, BertkitError]) -> None:
    """Raise the error of the first run that failed, if one did."""
    if error := first_failure(failures):
        raise error


def find_machine(
    folders: Iterable[Path], is_alike: Callable[[Mapping[str, Any]], bool] = bool
) -> dict[str, Any] | None:
    """Return the machine of the first run whose record is alike: all others compute as it did; None without a run."""
    records = (record for record in map(runs.read_record, folders) if record and "machine" in record)
    return next((dict(record["machine"]) for record in records if is_alike(record)), None)

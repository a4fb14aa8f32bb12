"""What a result may depend on, and what of it differs between two runs by their records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.errors import DataError, ModelError
from bertkit.storage import runs

_MACHINE = ("device", "precision", "threads", "matmul_backend")


@dataclass(frozen=True)
class RecordDifference:
    """What a result may depend on, and what differs between two runs."""

    what: str
    before: Any
    now: Any


def check_pinned(identity: Mapping[str, Any], pinned: Path) -> None:
    """Check that a run to come has the model, the tokenizer, the data and the versions of another run.

    Args:
        identity: of the run to come, with its checksums.
        pinned: folder of the other run.

    Raises:
        DataError: the rows differ.
        ModelError: something else does, or there is no run in the folder.
    """
    record = runs.read_record(pinned)
    if record is None:
        raise ModelError("not a run folder, so it pins nothing", "name a folder with run.json", file=pinned)
    now = {"versions": runs.versions(), "identity": identity}
    differences = find_differences({name: record.get(name, {}) for name in now}, now)
    pins = [found for found in differences if not found.what.startswith("settings.")]
    if pins:
        names = ", ".join(f"{found.what} (then {_shorten(found.before)}, now {_shorten(found.now)})" for found in pins)
        only_rows = all(found.what.startswith("data") for found in pins)
        what = f"differs from {pinned}: {names}"
        raise (DataError if only_rows else ModelError)(what, "restore what differs, or pin to another run")


def _shorten(value: object) -> str:
    """Return a version as it is, and the beginning of a checksum."""
    return str(value)[:16]


def find_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[RecordDifference]:
    """List what two records say differently of what a result may depend on: versions, machine, settings, data, model.

    >>> find_differences({"machine": {"threads": 1}}, {"machine": {"threads": 2}})
    [RecordDifference(what='machine.threads', before=1, now=2)]
    """
    before, after = (dict(_flatten(_circumstances(record))) for record in (old, new))
    return [RecordDifference(what, one, two) for what, one, two in pairs_of(before, after, None) if one != two]


def _circumstances(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a result may depend on; the part of a record that says how the machine was chosen is left out."""
    machine = record.get("machine", {})
    processor = machine.get("reason", "").partition(":")[0] if machine.get("device") == "cuda" else None
    identity = record.get("identity", {})
    return {
        "versions": record.get("versions", {}),
        "machine": {name: machine.get(name) for name in _MACHINE} | {"processor": processor},
        "platform": record.get("platform"),
        **{"settings" if name == "recipe" else name: value for name, value in identity.items()},
    }


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted name -> value of nested mappings."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def pairs_of(old: Mapping[str, Any], new: Mapping[str, Any], missing: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield each name of two mappings with its value in both, `missing` where it has none."""
    for name in dict.fromkeys([*old, *new]):
        yield name, old.get(name, missing), new.get(name, missing)

"""Run folders in short: what a table of runs shows, and how the settings of several differ."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from bertkit.errors import BertkitError, shorten
from bertkit.storage import runs
from bertkit.storage.files import is_locked

_SEEDS = "seed-*"
_OF_SEEDS = "seeds.json"


@dataclass(frozen=True)
class RunSummary:
    """A run folder, or a folder of seeds, as a row of a table."""

    folder: str
    state: str
    """``finished``, ``running``, ``stopped``, ``failed``, ``diverged`` or ``damaged``; of seeds, how many are what."""
    recipe: str = ""
    model: str = ""
    metric: str = ""
    score: float | None = None
    """Of the best metric on the first split; of seeds, the mean."""
    interval: list[float] | None = None
    epochs: float | None = None
    steps: int | None = None
    seconds: float | None = None
    bytes: int = 0
    date: str = ""
    seeds: int | None = None
    """How many runs it holds, of a folder of seeds."""
    reason: str = ""
    """Why it failed, or what is wrong with the folder."""


def find_runs(folder: Path) -> Iterator[RunSummary]:
    """Yield a summary of each run folder under a folder, by name; a folder of seeds is one.

    Folders that hold no run are looked into, one level deep. Nothing is raised for a damaged run: it is a row too.
    """
    for entry in _subfolders(folder):
        if (found := summarize(entry)) is not None:
            yield found
        else:
            yield from filter(None, map(summarize, _subfolders(entry)))


def summarize(folder: Path) -> RunSummary | None:
    """Summarize a run folder or a folder of seeds; None for any other folder."""
    if os.path.lexists(folder / runs.RECORD):
        return _summarize_run(folder)
    seeds = [summary for summary in map(summarize, sorted(folder.glob(_SEEDS))) if summary is not None]
    return _summarize_seeds(folder, seeds) if seeds or (folder / _OF_SEEDS).is_file() else None


def read_state(folder: Path, record: Mapping[str, Any]) -> str:
    """Return the state of a run; one whose record says that it runs and whose lock is free was killed: stopped."""
    if record["status"] == "running" and not is_locked(folder / runs.LOCK):
        return "stopped"
    return str(record["status"])


def list_settings(records: Mapping[str, Mapping[str, Any]]) -> list[dict[str, str]]:
    """List what differs between runs: rows of `setting`, and the value of each run under its name.

    Of a recipe, data, model, versions and machine; the seed counts as a setting, the output folder does not.
    """
    flat = {name: _flatten(_settings(record)) for name, record in records.items()}
    keys = dict.fromkeys(key for values in flat.values() for key in values)
    return [
        {"setting": key, **{name: shorten(values.get(key, "-"), 60) for name, values in flat.items()}}
        for key in keys
        if len({values.get(key) for values in flat.values()}) > 1
    ]


def _settings(record: Mapping[str, Any]) -> dict[str, Any]:
    identity = record.get("identity", {})
    data = {split: digest[:12] for split, digest in identity.get("data", {}).items()}
    machine = {key: value for key, value in record.get("machine", {}).items() if key != "reason"}
    return {
        "model": record.get("model"),
        **{key: value for key, value in identity.get("recipe", {}).items() if key != "model_labels"},
        "rows": data,
        "tuned": record.get("tuned", {}),
        "versions": record.get("versions", {}),
        "machine": machine,
    }


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested mappings as one, with dotted keys and values as text.

    >>> _flatten({"training": {"seed": 1, "extra": {}}, "name": "cola"})
    {'training.seed': '1', 'name': 'cola'}
    """
    flat: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = str(value)
    return flat


def _summarize_run(folder: Path) -> RunSummary:
    size = _count_bytes(folder)
    try:
        record = runs.read_record(folder)
        if record is None:
            raise OSError(f"{runs.RECORD} is not a file")
        return _from_record(folder, record, size)
    except (BertkitError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = error.what if isinstance(error, BertkitError) else f"the record cannot be read: {error}"
        return RunSummary(str(folder), "damaged", bytes=size, reason=reason)


def _from_record(folder: Path, record: Mapping[str, Any], size: int) -> RunSummary:
    recipe = record.get("identity", {}).get("recipe", {})
    results = record.get("results") or [record["result"]] if "results" in record or "result" in record else []
    result: Mapping[str, Any] = results[0] if results else {}
    scores = result.get("scores", {})
    metric = recipe.get("best_metric") or next(iter(scores), "")
    training = recipe.get("training", {})
    return RunSummary(
        folder=str(folder),
        state=read_state(folder, record),
        recipe=str(recipe.get("name", "")),
        model=str(record.get("model") or result.get("model", "")),
        metric=metric,
        score=scores.get(metric),
        interval=(result.get("intervals") or {}).get(metric),
        epochs=None if training.get("steps") else training.get("epochs"),
        steps=record.get("steps") or training.get("steps"),
        seconds=record.get("seconds"),
        bytes=size,
        date=str(record.get("finished") or record.get("started", "")),
        reason=str(record.get("error", "")),
    )


def _summarize_seeds(folder: Path, seeds: list[RunSummary]) -> RunSummary:
    """Summarize a folder of seeds: what its runs have in common, the mean of their scores, and their sums."""
    scores = [seed.score for seed in seeds if seed.state == "finished" and seed.score is not None]
    states = sorted({seed.state for seed in seeds}, key=lambda state: (state == "finished", state))
    counts = {state: sum(seed.state == state for seed in seeds) for state in states}
    first = seeds[0] if seeds else RunSummary(str(folder), "empty")
    return RunSummary(
        folder=str(folder),
        state=", ".join(f"{count} {state}" for state, count in counts.items()) if len(counts) != 1 else states[0],
        recipe=first.recipe,
        model=first.model,
        metric=first.metric,
        score=mean(scores) if scores else None,
        epochs=first.epochs,
        steps=sum(seed.steps or 0 for seed in seeds) or None,
        seconds=sum(seed.seconds or 0.0 for seed in seeds),
        bytes=sum(seed.bytes for seed in seeds),
        date=max((seed.date for seed in seeds), default=""),
        seeds=len(seeds),
        reason="; ".join(f"{Path(seed.folder).name}: {seed.reason}" for seed in seeds if seed.reason),
    )


def _subfolders(folder: Path) -> list[Path]:
    """Return the folders in a folder, by name; none where it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except OSError:
        return []
    return [folder / name for name in names]


def _count_bytes(folder: Path) -> int:
    """Add up the sizes of all files below a folder; what cannot be read, or goes meanwhile, counts nothing."""
    total = 0
    for path, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.lstat(os.path.join(path, name)).st_size  # noqa: PTH118 - thousands of files
            except OSError:
                continue
    return total

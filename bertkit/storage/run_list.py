"""Run folders as rows of a table: their states and scores, how their settings differ, and their removal."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from bertkit.errors import BertkitError, ResourceError, UsageError, shorten
from bertkit.storage import runs
from bertkit.storage.files import hold_lock, is_locked, rename_folder, split_lines, sync_folder
from bertkit.storage.run_sets import is_seeds_folder, seed_folders
from bertkit.storage.runs import RunRecord

_LOG = "metrics.jsonl"


@dataclass(frozen=True)
class RunSummary:
    """A run folder, or a folder of seeds, as a row of a table."""

    folder: str
    state: str
    """``finished``, ``running``, ``stopped``, ``failed``, ``diverged`` or ``damaged``; for seeds, a count per state."""
    recipe: str = ""
    model: str = ""
    metric: str = ""
    score: float | None = None
    """Score by the best metric on the first split; for a folder of seeds, the mean."""
    interval: list[float] | None = None
    lower_is_better: bool = False
    epochs: float | None = None
    steps: int | None = None
    seconds: float | None = None
    bytes: int = 0
    date: str = ""
    seeds: int | None = None
    """Number of runs in a folder of seeds."""
    reason: str = ""
    """Reason why it failed, or the damage of the folder."""


def find_runs(folder: Path) -> Iterator[RunSummary]:
    """Yield a summary of each run folder under a folder, by name; a folder of seeds is one.

    Folders without a run are searched one level deep. A damaged run raises no error, because it is a row too.
    """
    for entry in _subfolders(folder):
        if (summary := summarize(entry)) is not None:
            yield summary
        else:
            yield from filter(None, map(summarize, _subfolders(entry)))


def summarize(folder: Path) -> RunSummary | None:
    """Summarize a run folder or a folder of seeds, or return None for any other folder."""
    if os.path.lexists(folder / runs.RECORD):
        return _summarize_run(folder)
    return _summarize_seeds(folder) if is_seeds_folder(folder) else None


def read_state(folder: Path, record: RunRecord) -> str:
    """Return the state of a run. A run that is recorded as running but holds no lock was killed: ``stopped``."""
    # The system releases the lock when the process ends, but the record of a killed process stays unchanged.
    if record["status"] == "running" and not is_locked(folder / runs.LOCK):
        return "stopped"
    return str(record["status"])


def list_settings(records: Mapping[str, RunRecord]) -> list[dict[str, str]]:
    """List what differs between runs: rows of `setting`, and the value of each run under its name.

    Settings of the recipe, data, model, versions and machine are compared, including the seed but not the output
    folder. Settings that only some runs have recorded share the last row.
    """
    flat = {name: _flatten_texts(_settings(record)) for name, record in records.items()}
    keys = dict.fromkeys(key for values in flat.values() for key in values)
    shared = [key for key in keys if all(key in values for values in flat.values())]
    rows = [
        {"setting": key, **{name: shorten(values[key], 60) for name, values in flat.items()}}
        for key in shared
        if len({values[key] for values in flat.values()}) > 1
    ]
    if extra_keys := [key for key in keys if key not in shared]:
        row = {"setting": f"{len(extra_keys)} that only some record"}
        for name, values in flat.items():
            settings = ", ".join(f"{key} {values[key]}" for key in extra_keys if key in values)
            row[name] = shorten(settings, 60) or "-"
        rows.append(row)
    return rows


def list_changes(record: RunRecord) -> list[dict[str, str]]:
    """List the settings of a run that differ from the shipped recipe of its name; empty without such a recipe."""
    from bertkit.recipe.load import load_any_recipe, recipe_names

    settings = record.get("identity", {}).get("recipe", {})
    if settings.get("name") not in (*recipe_names("finetune"), *recipe_names("pretrain")):
        return []
    shipped = _flatten_texts(load_any_recipe(settings["name"]).model_dump(mode="json"))
    return [
        {"setting": key, "recipe": shorten(shipped[key], 60), "run": shorten(value, 60)}
        for key, value in _flatten_texts({"model": record.get("model"), **settings}).items()
        if key in shipped and shipped[key] != value
    ]


def sort_runs(listed: Sequence[RunSummary], key: str) -> list[RunSummary]:
    """Sort runs by name, recipe, model or state; by score, the best first; or by time, size or date, the highest first.

    Runs that have no such value come last.
    """
    if key in ("score", "time", "size", "date"):
        name = {"time": "seconds", "size": "bytes"}.get(key, key)
        with_value = [run for run in listed if getattr(run, name) not in (None, "")]
        without_value = [run for run in listed if getattr(run, name) in (None, "")]
        with_value.sort(key=lambda run: getattr(run, name), reverse=True)
        # Runs with different metrics can be in one table, so each score is compared by its own direction.
        if key == "score":
            with_value.sort(key=lambda run: (-1 if run.lower_is_better else 1) * (run.score or 0.0), reverse=True)
        return with_value + without_value
    return sorted(listed, key=lambda run: (getattr(run, {"name": "folder"}.get(key, key)), run.folder))


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Read the numbers of a run's training log, without damaged lines; a missing log is empty."""
    try:
        lines = split_lines((folder / _LOG).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return []
    entries = []
    for line in lines:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict):
            entries.append({name: value for name, value in entry.items() if _is_number(value)})
    return entries


def _is_number(value: object) -> bool:
    # Infinity and NaN fail this comparison.
    return isinstance(value, (int, float)) and abs(value) < 2**63


def _settings(record: RunRecord) -> dict[str, Any]:
    identity = record.get("identity", {})
    # Twelve digits of a SHA-256 show whether two runs had the same rows.
    data = {split: digest[:12] for split, digest in identity.get("data", {}).items()}
    machine = {key: value for key, value in record.get("machine", {}).items() if key != "reason"}
    return {
        **({"model": record["model"]} if "model" in record else {}),
        **{key: value for key, value in identity.get("recipe", {}).items() if key != "model_labels"},
        "rows": data,
        "tuned": record.get("tuned", {}),
        "versions": record.get("versions", {}),
        "machine": machine,
    }


def flatten_keys(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one with dotted keys.

    >>> flatten_keys({"training": {"seed": 1, "extra": {}}, "name": "cola"})
    {'training.seed': 1, 'name': 'cola'}
    """
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten_keys(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _flatten_texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {key: str(value) for key, value in flatten_keys(values).items()}


def _summarize_run(folder: Path) -> RunSummary:
    size = count_bytes(folder)
    try:
        record = runs.read_record(folder)
        if record is None:
            raise OSError(f"{runs.RECORD} is not a file")
        return _from_record(folder, record, size)
    # A damaged or edited record can have any form, and the table must still list the other runs.
    except (BertkitError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = error.message if isinstance(error, BertkitError) else f"the record cannot be read: {error}"
        return RunSummary(str(folder), "damaged", bytes=size, reason=reason)


def _from_record(folder: Path, record: RunRecord, size: int) -> RunSummary:
    recipe = record.get("identity", {}).get("recipe", {})
    results = record.get("results") or [record["result"]] if "results" in record or "result" in record else []
    first: Mapping[str, Any] = results[0] if results else {}
    scores = first.get("scores", {})
    metric = recipe.get("best_metric") or next(iter(scores), "")
    training = recipe.get("training", {})
    return RunSummary(
        folder=str(folder),
        state=read_state(folder, record),
        recipe=str(recipe.get("name", "")),
        model=str(record.get("model") or first.get("model", "")),
        metric=metric,
        score=scores.get(metric),
        interval=(first.get("intervals") or {}).get(metric),
        lower_is_better=metric in first.get("lower_is_better", ()),
        epochs=None if training.get("steps") else training.get("epochs"),
        steps=record.get("steps") or training.get("steps"),
        seconds=record.get("seconds"),
        bytes=size,
        date=str(record.get("finished") or record.get("started", "")),
        reason=str(record.get("error", "")),
    )


def _summarize_seeds(folder: Path) -> RunSummary:
    """Summarize a folder of seeds: what its runs have in common, the mean of their scores, and their sums."""
    seeds = list(filter(None, map(summarize, seed_folders(folder))))
    scores = [seed.score for seed in seeds if seed.state == "finished" and seed.score is not None]
    counts = Counter(seed.state for seed in seeds)
    first = next((seed for seed in seeds if seed.state != "damaged"), RunSummary(str(folder), "damaged"))
    states = ", ".join(f"{count} {state}" for state, count in counts.items())
    return replace(
        first,
        folder=str(folder),
        state=states if len(counts) > 1 else next(iter(counts), "damaged"),
        score=mean(scores) if scores else None,
        interval=None,
        steps=sum(seed.steps or 0 for seed in seeds) or None,
        seconds=sum(seed.seconds or 0.0 for seed in seeds),
        bytes=count_bytes(folder),
        date=max((seed.date for seed in seeds), default=""),
        seeds=len(seeds),
        reason="; ".join(f"{Path(seed.folder).name}: {seed.reason}" for seed in seeds if seed.reason),
    )


def _subfolders(folder: Path) -> list[Path]:
    """Return the folders in a folder, sorted by name; empty if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except OSError:
        return []
    return [folder / name for name in names]


def count_bytes(folder: Path) -> int:
    """Add up the sizes of all files below a folder, except files that cannot be read or disappear."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(path, name)).st_size  # noqa: PTH118 - thousands of files
            except OSError:
                continue
    return total


# --- Removal: renamed in one step, then emptied, so that a kill leaves no half run ---


_PREFIX = ".removed-"


def check_removable(folder: Path) -> None:
    """Check, without writing, that a folder holds a run or seeds, and that no process is writing it.

    Leftovers of a killed removal can be removed too.

    Raises:
        UsageError: If it is something else, a link, or holds the working directory.
        ResourceError: If a process is writing it.
    """
    if not folder.exists() and _aside(folder).is_dir():
        return
    if folder.is_symlink():
        raise UsageError("a link to a folder elsewhere", f"name that folder: {folder.resolve()}", file=folder)
    if not folder.is_dir():
        raise UsageError("no such folder", "`bertkit runs list` shows the runs", file=folder)
    if not (folder / runs.RECORD).is_file() and not is_seeds_folder(folder):
        raise UsageError("not a run folder, so it is not deleted", "`bertkit runs list` shows the runs", file=folder)
    if Path.cwd().is_relative_to(folder.resolve()):
        raise UsageError("the working directory is in it", "change to another directory", file=folder)
    for part in _parts(folder):
        if is_locked(part / runs.LOCK):
            raise _locked_error(part, "a process")


def remove_run(folder: Path) -> None:
    """Delete a run folder, or one of seeds, for which `check_removable` raises nothing.

    Raises:
        ResourceError: If a process is writing it, or a file cannot be deleted; the same command continues.
    """
    aside = _aside(folder)
    try:
        if aside.is_dir():
            shutil.rmtree(aside)
        if folder.is_dir():
            with ExitStack() as held:
                for part in _parts(folder):
                    held.enter_context(hold_lock(part / runs.LOCK, make_error=partial(_locked_error, part)))
                # A rename is atomic: from here on the folder is not a run, even if this process is killed.
                rename_folder(folder, aside, held)
            sync_folder(folder.parent)
            shutil.rmtree(aside)
    except OSError as error:
        message = f"cannot be deleted: {error.strerror}"
        raise ResourceError(
            message, "delete it by hand, or repeat the command", file=error.filename or folder
        ) from None


def _aside(folder: Path) -> Path:
    return folder.with_name(f"{_PREFIX}{folder.name}")


def _parts(folder: Path) -> list[Path]:
    """Return a folder and the runs in it, each with a separate lock."""
    return [folder, *seed_folders(folder)]


def _locked_error(folder: Path, holder: str) -> ResourceError:
    return ResourceError(f"{holder} is writing this run", "stop it first, or wait for it", file=folder)

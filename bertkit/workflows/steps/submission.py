"""A submission to the leaderboard of GLUE: test rows predicted by the run of each task, checked, and put in a zip."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from bertkit.data.files import read_records
from bertkit.data.hub_sets import read_hub_split
from bertkit.data.rows import feed_row
from bertkit.data.sources import files_by_split
from bertkit.data.text import Record
from bertkit.errors import BertkitError, DataError, StoppedError
from bertkit.evaluation.checkpoint import find_checkpoint
from bertkit.evaluation.glue.leaderboard import FILES, TASKS, GlueTask, LeaderboardFile, submission_lines, write_zip
from bertkit.evaluation.glue.summary import Submission, SubmissionFile
from bertkit.progress import Progress
from bertkit.recipe import Recipe
from bertkit.storage import runs
from bertkit.storage.files import write_json, write_text
from bertkit.storage.fingerprints import file_fingerprint, json_fingerprint
from bertkit.workflows.predict import predict_records

log = logging.getLogger("bertkit")

ARCHIVE = "submission.zip"
_FOLDER = "submission"
_MADE = "made.json"  # by which model and of which rows each file was made
_HEADER = "index\tprediction"


def make_submission(folder: Path, recipes: Mapping[str, Recipe], progress: Progress) -> Submission:
    """Predict the test rows of each task with its run, and write the files that pass the leaderboard's checks.

    Files of the same model and the same rows are kept from an earlier command.

    Args:
        folder: that of the runs.
        recipes: task -> the recipe of its finished run, which is in the folder of the task.
        progress: says how far it is.
    """
    (folder / _FOLDER).mkdir(exist_ok=True)
    made = _read_made(folder)
    files = []
    for task in TASKS.values():
        for file in task.files:
            try:
                if task.name not in recipes:
                    raise DataError(f"no finished run of {task.name}")
                _make(folder, task, file, recipes[task.name], made, progress)
            except StoppedError:
                raise
            except BertkitError as error:
                files.append(SubmissionFile(file.name, missing=str(error)))
            else:
                files.append(SubmissionFile(file.name, file.rows))
    files.sort(key=lambda file: FILES.index(file.name))
    ready = [folder / _FOLDER / file.name for file in files if not file.missing]
    archive = folder / ARCHIVE
    if ready:
        write_zip(archive, ready)
    else:
        archive.unlink(missing_ok=True)
    return Submission(ARCHIVE if ready else None, files)


def _make(
    folder: Path, task: GlueTask, file: LeaderboardFile, recipe: Recipe, made: dict[str, Any], progress: Progress
) -> None:
    """Write one file, unless it is there already."""
    records = list(_read_rows(recipe, file))
    if len(records) != file.rows:
        submission_lines(task, file, (), [values for _, values in records])  # raises: known before it is predicted
    run, target = folder / task.name, folder / _FOLDER / file.name
    identity = {
        "model": json_fingerprint((runs.read_record(run) or {})["files"]),
        "rows": _digest(values for _, values in records),
    }
    before = made.get(file.name, {})
    if target.is_file() and before == {**identity, "sha256": file_fingerprint(target)}:
        return
    log.info(f"{file.name}: predicting {file.rows:,} rows")
    saved = find_checkpoint(recipe.model_copy(update={"model": str(run)}))
    predicted = list(predict_records(saved, records, file.name, progress))
    lines = submission_lines(task, file, recipe.labels or (), predicted)
    write_text(target, "\n".join([_HEADER, *lines, ""]))
    made[file.name] = {**identity, "sha256": file_fingerprint(target)}
    write_json(folder / _FOLDER / _MADE, made)


def _read_rows(recipe: Recipe, file: LeaderboardFile) -> Iterable[Record]:
    """Read the test rows of a file: from a folder of the task, or of its configuration beside it, or from the hub."""
    data = recipe.data
    if data.source == "demo":
        raise DataError("made-up rows are not those of the leaderboard", "--data DIR with the test rows of GLUE")
    source, splits = Path(data.source), {name: found for name, found in data.splits.items() if name != "test"}
    if not source.is_dir():
        config = file.config or data.config
        return read_hub_split(data.model_copy(update={"config": config}), file.split)
    if file.config:
        source, splits = source.parent / file.config, {}
    if file.split != "test":
        splits["test"] = file.split
    found = data.model_copy(update={"source": str(source), "splits": splits})
    paths = (files_by_split(found) or {}).get("test") if source.is_dir() else None
    if not paths:
        raise DataError(f"no {file.split} rows in {source}")
    return chain.from_iterable(read_records(path, found) for path in paths)


def _digest(rows: Iterable[Mapping[str, Any]]) -> str:
    digest = hashlib.sha256()
    for row in rows:
        feed_row(digest, dict(row))
    return digest.hexdigest()


def _read_made(folder: Path) -> dict[str, Any]:
    """Read which files were made before; what cannot be read was not."""
    try:
        made = json.loads((folder / _FOLDER / _MADE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return {name: entry for name, entry in made.items() if isinstance(entry, dict)} if isinstance(made, dict) else {}

"""All tasks of GLUE with one model: ordinary runs in one folder, one table, and a submission to the leaderboard."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from bertkit.data.files import read_records
from bertkit.data.remote import read_hub_split
from bertkit.data.rows import feed_row
from bertkit.data.sources import files_by_split
from bertkit.data.text import Record
from bertkit.errors import BertkitError, DataError, StoppedError, UsageError, closest
from bertkit.evaluation.checkpoint import find_checkpoint
from bertkit.evaluation.glue.leaderboard import FILES, TASKS, GlueTask, LeaderboardFile, submission_lines, write_zip
from bertkit.evaluation.glue.summary import GlueRun, GlueSummary, Submission, SubmissionFile, summarize
from bertkit.evaluation.rows_to_predict import read_chunks
from bertkit.evaluation.scoring import Result, read_results
from bertkit.modeling.checkpoint import fingerprint
from bertkit.progress import get_progress, log, stage
from bertkit.recipe.load import load_recipe
from bertkit.recipe.records import Recipe
from bertkit.recipe.sections import typed_path
from bertkit.reports.templates import write_page
from bertkit.storage import hub, runs
from bertkit.storage.files import disk_errors, write_json, write_text
from bertkit.storage.fingerprints import file_fingerprint, json_fingerprint
from bertkit.storage.runs import without_folder
from bertkit.workflows.finetune import finetune_rows
from bertkit.workflows.finetune_data import FinetuneData, read_finetune_data
from bertkit.workflows.predict import answer
from bertkit.workflows.runset import Failures, RunSet, first_failure, keep_going, train_all

SUMMARY = "glue.json"
_SCHEMA = 1


@dataclass
class GlueRuns(RunSet):
    """Set of the runs of GLUE, with the errors so far.

    Args:
        folder: Folder of all runs.
        names: Tasks whose rows can be read.
        recipes: Task -> its recipe.
        missing: Task -> why its rows are missing.
        failed: Task -> the error that ended it.
    """

    recipes: dict[str, Recipe]
    missing: dict[str, DataError] = field(default_factory=dict)
    failed: Failures = field(default_factory=dict)
    contents = "of GLUE"
    keeps_going = True

    def is_begun(self) -> bool:
        """Return whether the folder holds runs of GLUE."""
        return any((self.folder / name).exists() for name in (SUMMARY, *TASKS))

    def read(self, name: str) -> FinetuneData:
        """Read the inputs of a task."""
        return read_finetune_data(self.recipes[name], self.folder / name)

    def train(self, name: str) -> None:
        """Fine-tune on a task, or resume."""
        log.info(f"{name}: task {list(TASKS).index(name) + 1} of {len(TASKS)}")
        with stage("reading the data", total=1):
            data = self.read(name)
        finetune_rows(data, fresh=False)


def glue(
    model: str,
    *,
    tasks: Sequence[str] = (),
    changes: Mapping[str, Any] | None = None,
    output: str | Path | None = None,
    fresh: bool = False,
) -> tuple[GlueSummary, BertkitError | None]:
    """Fine-tune a model on each task, and resume or keep what is there; a task that fails does not end the others.

    Finished runs of other tasks in the folder, if they started from the same model, count with the settings they have.

    Args:
        model: hub name, directory or ``demo``.
        tasks: names of tasks; by default, all of them.
        changes: dotted recipe key -> value, for all tasks; ``data.source`` is ``demo``, or a directory with a folder
            for each task; by default, the hub.
        output: the folder of all runs.
        fresh: move earlier runs aside.

    Returns:
        the summary, which is in ``glue.json`` too, and the error of the first task that failed.

    Raises:
        UsageError: an unknown task, or a folder that holds something else or other runs.
        ModelError: no such model.
        BertkitError: any other of the kind that fits; see `bertkit.errors`.
    """
    job = _load_tasks(model, tasks, changes or {}, runs.run_folder(output, "glue"))
    job.check()
    model_folder = hub.find_model(model)
    with job.claimed():
        # All rows are checked before the first of nine trainings.
        _check_tasks(job, fresh)
        job.failed |= train_all(job)
        finished = _read_finished(job, fingerprint(model_folder))
        unfinished = {name: GlueRun(name, "missing", str(error)) for name, error in job.missing.items()}
        unfinished |= {name: GlueRun(name, "failed", str(error)) for name, error in job.failed.items()}
        # The leaderboard takes the whole test sets, answered by one model of each task.
        summary = summarize(model, str(job.folder), job.recipes, finished, unfinished)
        submitted = {name: job.recipes[name] for name in finished}
        if submitted and not any(recipe.data.limit for recipe in submitted.values()):
            with disk_errors(job.folder):
                summary = dataclasses.replace(summary, submission=make_submission(job.folder, submitted))
        _write_summary(summary)
    return summary, first_failure(job.failed)


def _load_tasks(model: str, tasks: Sequence[str], changes: Mapping[str, Any], output: Path) -> GlueRuns:
    """Load the recipes of the tasks, and find those that have no folder in a directory of data.

    Raises:
        DataError: one of them is asked for by its name, or all are missing.
    """
    changes = dict(changes)
    data = changes.pop("data.source", None)
    for name in tasks:
        if name not in TASKS:
            raise UsageError(f"no task of GLUE is called {name!r}", closest(name, TASKS))
    folder = typed_path(data) if data not in (None, "demo") else None
    if folder is not None and not folder.is_dir():
        raise DataError("no such directory", "name one with a folder for each task: cola, sst2, ...", file=data)
    job = GlueRuns(output, [], {})
    for name in [name for name in TASKS if name in tasks or not tasks]:
        source = {} if data is None else {"data.source": "demo" if folder is None else str(folder / name)}
        job.recipes[name] = recipe = load_recipe(name, {"model": model, **source, **changes})
        if folder is not None and not Path(recipe.data.source).is_dir():
            job.missing[name] = DataError(f"no folder for {name}", "each task has one", file=recipe.data.source)
    if job.missing and (tasks or len(job.missing) == len(job.recipes)):
        raise next(iter(job.missing.values()))
    job.names = [name for name in job.recipes if name not in job.missing]
    return job


def _check_tasks(job: GlueRuns, fresh: bool) -> None:
    """Read the rows of all tasks before anything is trained; with `fresh`, move earlier runs aside afterwards.

    Raises:
        UsageError: If a folder holds a run with other settings.
    """
    with stage("reading the data of all tasks", total=len(job.names)):
        for number, name in enumerate(job.names, start=1):
            with keep_going(name, job.failed, refused=UsageError):
                plan = job.read(name).plan
                record = None if fresh else runs.check_claim(plan.folder, plan.identity)
                if record is not None and record["status"] == "finished":
                    log.info(f"{name}: finished on {record['finished']}")
            get_progress().update(number, {})
    job.names = [name for name in job.names if name not in job.failed]
    for name in job.names if fresh else ():
        if (job.folder / name / runs.RECORD).is_file():
            with runs.locked(job.folder / name):
                runs.move_aside(job.folder / name)


def _read_finished(job: GlueRuns, model: str) -> dict[str, list[Result]]:
    """Read the results of finished runs; other tasks count if they started from the same model."""
    finished = {}
    for name in TASKS:
        record = None if name in job.missing or name in job.failed else job.record(name)
        if record is None or record["status"] != "finished":
            continue
        if name not in job.recipes:
            if record["identity"]["model"] != model:
                log.info(f"{name}: left out, because its run started from another model")
                continue
            job.recipes[name] = load_recipe(str(job.folder / name / "recipe.yaml"))
        finished[name] = read_results(record["results"], job.folder / name)
    return finished


def _write_summary(summary: GlueSummary) -> None:
    """Write the page and glue.json; with these, the command counts as finished."""
    folder, content = Path(summary.folder), without_folder(summary)
    with disk_errors(folder):
        write_page(folder / "report.html", "glue.html.j2", summary=content, command=runs.command())
        write_json(folder / SUMMARY, {"schema_version": _SCHEMA, "command": runs.command(), **content})


ARCHIVE = "submission.zip"
_FOLDER = "submission"
_MADE = "made.json"  # by which model and of which rows each file was made
_HEADER = "index\tprediction"


def make_submission(folder: Path, recipes: Mapping[str, Recipe]) -> Submission:
    """Predict the test rows of each task with its run, and write the files that pass the leaderboard's checks.

    Files of the same model and the same rows are kept from an earlier command.

    Args:
        folder: that of the runs.
        recipes: task -> the recipe of its finished run, which is in the folder of the task.
    """
    (folder / _FOLDER).mkdir(exist_ok=True)
    # A task whose file cannot be made is named with its reason; the others go on. Nothing is filled in for it.
    made = _read_made(folder)
    files = []
    for task in TASKS.values():
        for file in task.files:
            try:
                if task.name not in recipes:
                    raise DataError(f"no finished run of {task.name}")
                _make_file(folder, task, file, recipes[task.name], made)
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


def _make_file(folder: Path, task: GlueTask, file: LeaderboardFile, recipe: Recipe, made: dict[str, Any]) -> None:
    """Write one file, unless it is there already."""
    records = list(_read_rows(recipe, file))
    if len(records) != file.rows:
        # this raises what would be wrong before anything is predicted
        submission_lines(task, file, (), [values for _, values in records])
    run, target = folder / task.name, folder / _FOLDER / file.name
    digest = hashlib.sha256()
    for row in (values for _, values in records):
        feed_row(digest, dict(row))
    identity = {
        "model": json_fingerprint((runs.read_record(run) or {})["files"]),
        "rows": digest.hexdigest(),
    }
    before = made.get(file.name, {})
    if target.is_file() and before == {**identity, "sha256": file_fingerprint(target)}:
        return
    log.info(f"{file.name}: predicting {file.rows:,} rows")
    saved = find_checkpoint(recipe.model_copy(update={"model": str(run)}))
    predicted = list(answer(saved, read_chunks(saved, records, file.name)))
    lines = submission_lines(task, file, recipe.labels or (), predicted)
    write_text(target, "\n".join([_HEADER, *lines, ""]))
    made[file.name] = {**identity, "sha256": file_fingerprint(target)}
    write_json(folder / _FOLDER / _MADE, made)


def _read_rows(recipe: Recipe, file: LeaderboardFile) -> Iterable[Record]:
    """Read the test rows of a file: from a folder of the task, or of its configuration beside it, or from the hub."""
    data = recipe.data
    if data.source == "demo":
        raise DataError("made-up rows are not those of the leaderboard", "--data DIR with the test rows of GLUE")
    source, splits = Path(data.source), {name: settings for name, settings in data.splits.items() if name != "test"}
    if not source.is_dir():
        config = file.config or data.config
        return read_hub_split(data.model_copy(update={"config": config}), file.split)
    if file.config:
        source, splits = source.parent / file.config, {}
    if file.split != "test":
        splits["test"] = file.split
    settings = data.model_copy(update={"source": str(source), "splits": splits})
    paths = (files_by_split(settings) or {}).get("test") if source.is_dir() else None
    if not paths:
        raise DataError(f"no {file.split} rows in {source}")
    return chain.from_iterable(read_records(path, settings) for path in paths)


def _read_made(folder: Path) -> dict[str, Any]:
    """Read which files were made before; what cannot be read was not."""
    try:
        made = json.loads((folder / _FOLDER / _MADE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return {name: entry for name, entry in made.items() if isinstance(entry, dict)} if isinstance(made, dict) else {}

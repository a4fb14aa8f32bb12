"""Fine-tune a model on all tasks of GLUE: runs in one folder, one table, and a submission to the leaderboard."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from bertkit.data.files import read_records
from bertkit.data.remote import read_hub_split
from bertkit.data.rows import update_hash
from bertkit.data.sources import find_split_files
from bertkit.data.text import Record
from bertkit.errors import BertkitError, DataError, StoppedError, UsageError, did_you_mean
from bertkit.evaluation.checkpoint import find_checkpoint
from bertkit.evaluation.glue import (
    TASKS,
    GlueTask,
    LeaderboardFile,
    submission_lines,
    summarize,
    write_zip,
)
from bertkit.evaluation.rows_to_predict import read_chunks
from bertkit.evaluation.run_sets import SetRun, describe_run
from bertkit.modeling.checkpoint import fingerprint
from bertkit.progress import get_progress, log, stage
from bertkit.recipe.load import load_recipe
from bertkit.recipe.records import Recipe
from bertkit.recipe.sections import expand_path
from bertkit.reports.templates import write_page
from bertkit.storage import hub, runs
from bertkit.storage.files import disk_errors, write_json, write_text
from bertkit.storage.fingerprints import file_fingerprint, json_fingerprint
from bertkit.workflows.finetune import finetune_rows
from bertkit.workflows.finetune_data import FinetuneData, read_finetune_data
from bertkit.workflows.predict import answer
from bertkit.workflows.runset import Failures, RunSet, continue_on_error, first_failure, train_all

SUMMARY = "glue.json"
ARCHIVE = "submission.zip"
_FOLDER = "submission"
_ORIGINS_FILE = "made.json"  # model and rows that each file of the submission was made from
_HEADER = "index\tprediction"
_SCHEMA = 1


@dataclass
class GlueRuns(RunSet):
    """Set of the runs of GLUE, with the errors so far.

    Args:
        folder: Folder of all runs.
        names: Tasks whose rows can be read.
        recipes: Task -> its recipe.
        data_errors: Task -> the error about its missing rows.
        failures: Task -> the error that ended its run.
    """

    recipes: dict[str, Recipe]
    data_errors: dict[str, DataError] = field(default_factory=dict)
    failures: Failures = field(default_factory=dict)
    folder_kind = "a folder of GLUE runs"
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
        finetune_rows(data, restart=False)


def glue(
    model: str,
    *,
    tasks: Sequence[str] = (),
    changes: Mapping[str, Any] | None = None,
    output: str | Path | None = None,
    restart: bool = False,
) -> tuple[dict[str, Any], BertkitError | None]:
    """Fine-tune a model on each task. Finished runs are kept, and a task that fails does not end the others.

    The table also has the finished runs of other tasks in the folder if they started from the same model.

    Args:
        model: Name on the Hub, folder or ``demo``.
        tasks: Names of tasks; by default, all of them.
        changes: Dotted recipe key -> value, for all tasks. The key ``data.source`` is ``demo``, or a directory with a
            folder per task; by default, rows come from the Hub.
        output: Folder of all runs.
        restart: Move earlier runs aside.

    Returns:
        The content of ``glue.json`` with the ``folder``, and the error of the first task that failed.

    Raises:
        UsageError: If a task is unknown, or the folder holds something else or other runs.
        ModelError: If there is no such model.
        BertkitError: If anything else prevents the runs; see `bertkit.errors`.
    """
    # 1. Load the recipes, and check the folder and the model.
    job = _load_tasks(model, tasks, changes or {}, runs.run_folder(output, "glue"))
    job.check()
    model_folder = hub.find_model(model)
    with job.lock():
        # 2. Check the rows of all tasks before the first training, and train.
        _check_tasks(job, restart)
        job.failures |= train_all(job)

        # 3. Summarize the tasks, including those that are missing or failed.
        finished_runs = _read_finished(job, fingerprint(model_folder))
        failed_runs = {name: SetRun(name, "missing", failure=str(error)) for name, error in job.data_errors.items()}
        failed_runs |= {name: SetRun(name, "failed", failure=str(error)) for name, error in job.failures.items()}
        summary = summarize(model, job.recipes, failed_runs | finished_runs)

        # 4. Write the submission, unless a recipe limits the rows: the leaderboard requires the complete test sets.
        recipes = {name: job.recipes[name] for name in finished_runs}
        is_complete = bool(recipes) and not any(recipe.data.limit for recipe in recipes.values())
        with disk_errors(job.folder):
            summary["submission"] = make_submission(job.folder, recipes) if is_complete else None

            # 5. Write the page and the summary.
            write_page(job.folder / "report.html", "glue.html.j2", summary=summary, command=runs.command())
            write_json(job.folder / SUMMARY, {"schema_version": _SCHEMA, "command": runs.command(), **summary})
    return {"model": model, "folder": str(job.folder), **summary}, first_failure(job.failures)


def _load_tasks(model: str, tasks: Sequence[str], changes: Mapping[str, Any], output: Path) -> GlueRuns:
    """Load the recipes of the tasks, and find the tasks without a folder in the data directory.

    Raises:
        DataError: If the folder of a requested task is missing, or the folders of all tasks.
    """
    changes = dict(changes)
    source = changes.pop("data.source", None)
    for name in tasks:
        if name not in TASKS:
            raise UsageError(f"no task of GLUE is called {name!r}", did_you_mean(name, TASKS))
    folder = expand_path(source) if source not in (None, "demo") else None
    if folder is not None and not folder.is_dir():
        raise DataError("no such directory", "give a folder with one subfolder per task: cola, sst2, ...", file=source)
    job = GlueRuns(output, [], {})
    for name in [name for name in TASKS if name in tasks or not tasks]:
        source_change = {} if source is None else {"data.source": "demo" if folder is None else str(folder / name)}
        job.recipes[name] = recipe = load_recipe(name, {"model": model, **source_change, **changes})
        if folder is not None and not Path(recipe.data.source).is_dir():
            job.data_errors[name] = DataError(f"no folder for {name}", "create one per task", file=recipe.data.source)
    if job.data_errors and (tasks or len(job.data_errors) == len(job.recipes)):
        raise next(iter(job.data_errors.values()))
    job.names = [name for name in job.recipes if name not in job.data_errors]
    return job


def _check_tasks(job: GlueRuns, restart: bool) -> None:
    """Read the rows of all tasks. With `restart`, then move earlier runs aside.

    Raises:
        UsageError: If a folder holds a run with other settings.
    """
    with stage("reading the data of all tasks", total=len(job.names)):
        for count, name in enumerate(job.names, start=1):
            # A folder with another run is an error of the command, not of the task.
            with continue_on_error(name, job.failures, fatal=UsageError):
                plan = job.read(name).plan
                record = None if restart else runs.check_run_folder(plan.folder, plan.identity)
                if record is not None and record["status"] == "finished":
                    log.info(f"{name}: finished on {record['finished']}")
            get_progress().update(count, {})
    job.names = [name for name in job.names if name not in job.failures]
    for name in job.names if restart else ():
        if (job.folder / name / runs.RECORD).is_file():
            with ExitStack() as locks:
                locks.enter_context(runs.lock_run(job.folder / name))
                runs.move_aside(job.folder / name, locks)


def _read_finished(job: GlueRuns, model: str) -> dict[str, SetRun]:
    """Describe the finished runs. Runs of tasks that were not requested must have started from this model."""
    finished_runs = {}
    for name in TASKS:
        record = None if name in job.data_errors or name in job.failures else job.record(name)
        if record is None or record["status"] != "finished":
            continue
        if name not in job.recipes:
            if record["identity"]["model"] != model:
                log.info(f"{name}: left out, because its run started from another model")
                continue
            job.recipes[name] = load_recipe(str(job.folder / name / "recipe.yaml"))
        finished_runs[name] = describe_run(job.folder / name, record)
    return finished_runs


def make_submission(folder: Path, recipes: Mapping[str, Recipe]) -> dict[str, Any]:
    """Predict the test rows of each task with its run, and write the files in the format of the leaderboard.

    A file of an earlier command is kept if the model and the rows are the same.

    Args:
        folder: Folder of the runs.
        recipes: Task -> recipe of its finished run.

    Returns:
        ``archive``, a file name or None; and ``files``, which have ``name``, ``rows``, and in ``missing`` the reason
        why a file is missing.
    """
    (folder / _FOLDER).mkdir(exist_ok=True)
    origins, files, written_files = _read_origins(folder), list[dict[str, Any]](), list[Path]()
    task_files = [(task, file) for task in TASKS.values() for file in task.files]
    for task, file in task_files:
        try:
            if task.name not in recipes:
                raise DataError(f"no finished run of {task.name}")
            _write_file(folder, task, file, recipes[task.name], origins)
        except StoppedError:
            raise
        except BertkitError as error:
            files.append({"name": file.name, "rows": None, "missing": str(error)})
        else:
            files.append({"name": file.name, "rows": file.rows, "missing": ""})
            written_files.append(folder / _FOLDER / file.name)
    archive = folder / ARCHIVE
    if written_files:
        write_zip(archive, written_files)
    else:
        archive.unlink(missing_ok=True)
    return {"archive": ARCHIVE if written_files else None, "files": files}


def _write_file(folder: Path, task: GlueTask, file: LeaderboardFile, recipe: Recipe, origins: dict[str, Any]) -> None:
    """Write one file, unless it exists already for the same model and rows."""
    # 1. Read the rows.
    records = list(_read_rows(recipe, file))
    if len(records) != file.rows:
        # called for its check: a wrong number of rows is an error before anything is predicted
        submission_lines(task, file, (), [values for _, values in records])

    # 2. Keep the file if an earlier command made it from the same model and rows.
    run, target = folder / task.name, folder / _FOLDER / file.name
    digest = hashlib.sha256()
    for _, values in records:
        update_hash(digest, dict(values))
    identity = {"model": json_fingerprint((runs.read_record(run) or {})["files"]), "rows": digest.hexdigest()}
    if target.is_file() and origins.get(file.name) == {**identity, "sha256": file_fingerprint(target)}:
        return

    # 3. Predict, write the file, and then its origin.
    log.info(f"{file.name}: predicting {file.rows:,} rows")
    info = find_checkpoint(recipe.model_copy(update={"model": str(run)}))
    predictions = list(answer(info, read_chunks(info, records, file.name)))
    lines = submission_lines(task, file, recipe.labels or (), predictions)
    write_text(target, "\n".join([_HEADER, *lines, ""]))
    origins[file.name] = {**identity, "sha256": file_fingerprint(target)}
    write_json(folder / _FOLDER / _ORIGINS_FILE, origins)


def _read_rows(recipe: Recipe, file: LeaderboardFile) -> Iterable[Record]:
    """Read the test rows for a file, from the folder of the task or of another config of GLUE, or from the Hub."""
    data = recipe.data
    if data.source == "demo":
        raise DataError("demo data cannot be submitted to the leaderboard", "add --data DIR with the test rows of GLUE")
    source = Path(data.source)
    splits = {name: settings for name, settings in data.splits.items() if name != "test"}
    if not source.is_dir():
        return read_hub_split(data.model_copy(update={"config": file.config or data.config}), file.split)
    if file.config:
        source, splits = source.parent / file.config, {}
    if file.split != "test":
        splits["test"] = file.split
    settings = data.model_copy(update={"source": str(source), "splits": splits})
    paths = (find_split_files(settings) or {}).get("test") if source.is_dir() else None
    if not paths:
        raise DataError(f"no {file.split} rows in {source}")
    return chain.from_iterable(read_records(path, settings) for path in paths)


def _read_origins(folder: Path) -> dict[str, Any]:
    """Read the origins of the files of an earlier command; without valid origins, all files are written again."""
    try:
        origins = json.loads((folder / _FOLDER / _ORIGINS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return origins if isinstance(origins, dict) else {}

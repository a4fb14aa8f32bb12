"""A run's folder: its record, its lock, and who may write into it.

runs/cola/
├── config.json, model.safetensors, tokenizer.json ...   the best model, a plain Hugging Face checkpoint
├── recipe.yaml          the resolved recipe
├── run.json             the record: identity, versions, status, scores, checksums
├── metrics.jsonl        losses and scores, a line per log entry
├── predictions.jsonl    one line per row of the validation split
├── baselines.json       the baselines, fitted to the training rows
├── training_rows.npy    digests of the rows that it was trained on
├── report.html, README.md
├── .gitignore           what `hf upload` and git leave out
└── checkpoint-N/        the best and the last, or all, to resume from
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PureWindowsPath
from typing import Any, TypedDict, cast

from bertkit.errors import ResourceError, UsageError, shorten
from bertkit.storage import files
from bertkit.storage.fingerprints import read_with_checksum, write_with_checksum

RECORD = "run.json"
TRAINING_ROWS = "training_rows.npy"
LOCK = ".lock"
IDENTITY_VERSION = 2
"""Version of the identity in ``run.json``; a higher one if unchanged settings give another identity."""
_NAME = "the run folder"
SEVERAL = "the folder of the runs"
"""Name of a folder of several runs in messages."""
_PACKAGES = (
    "bertkit",
    "torch",
    "transformers",
    "accelerate",
    "tokenizers",
    "datasets",
    "numpy",
    "scikit-learn",
)


class RunRecord(TypedDict, total=False):
    """Record of a run or an evaluation (``run.json``, ``evaluation.json``), as JSON values."""

    identity_version: int
    status: str
    """running, stopped, failed, diverged or finished."""
    error: str
    command: str
    started: str
    finished: str
    resumed: list[str]
    """Time at which each later process resumed the run."""
    seconds: float
    peak_memory_bytes: int | None
    """Peak memory of its last process, or None if it is unknown."""
    identity: dict[str, Any]
    """Identity of the run: ``recipe``, checksums of ``data`` and ``model``, ``labels``."""
    versions: dict[str, str]
    platform: str
    machine: dict[str, Any]
    """The fields of `bertkit.hardware.precision.ComputeConfig`."""
    model: str
    commit: str | None
    rows: dict[str, int]
    split_file: str | None
    automatic: str
    """Reason for the values that `auto` chose."""
    steps: int
    best_step: int
    best_checkpoint: str | None
    step_times: dict[str, float]
    """Times of its last process: ``seconds`` of training, ``loading_seconds`` of them spent waiting for batches, and
    ``waiting_share``, the fraction of the time in which its threads were ready but had no core."""
    truncated: dict[str, int]
    """Number of ``training_rows`` that reach the limit of ``max_tokens`` and can be truncated, and of validation
    rows whose gold value is behind that token, ``lost_gold``."""
    tuned: dict[str, Any]
    """Options that were tuned on validation rows."""
    tokenizer: dict[str, Any]
    """Settings that ``tokenizer.json`` lacks; see `bertkit.runtime.tokenizer`."""
    baselines: str
    """Checksum of the file with the fitted baselines."""
    result: dict[str, Any]
    """Result of a pretraining: the fields of `bertkit.workflows.pretrain_results.PretrainResult`."""
    results: list[dict[str, Any]]
    """Result of each split: the fields of `bertkit.evaluation.scoring.Result`."""
    budget_settings: dict[str, Any]
    """Settings that the first process of a pretraining with a time budget measured."""
    trackers: dict[str, str]
    """Experiment tracker -> what it calls the run; ``run`` is the part of its name that no other run has."""
    format: int
    """Version of the format of an evaluation's record."""
    soft_labels: dict[str, float]
    """Agreement of soft and gold labels; see `bertkit.data.soft_labels.measure_agreement`."""
    compared_models: list[dict[str, Any]]
    """Teachers and student of a distillation, the student last."""
    predictions: dict[str, Any]
    """File of predictions -> its size and checksum."""
    split: str
    """Name of the split whose stored predictions are read."""
    made_by: dict[str, Any]
    """Model and recipe that an evaluation was made by."""
    files: dict[str, dict[str, Any]]
    """File -> its ``size`` and ``sha256``."""
    sha256: str


def select_entries(record: RunRecord, *names: str) -> RunRecord:
    """Return the named entries of a record, without those that it lacks."""
    return cast(RunRecord, {name: value for name, value in record.items() if name in names})


def as_portable_record(result: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as a record keeps them: a folder could not be moved if it contained its name."""
    return {name: value for name, value in asdict(result).items() if name != "folder"}


def is_main_process() -> bool:
    """Return whether this process is the main process of its launch, which writes files and prints."""
    return int(os.environ.get("RANK", "0")) == 0


def run_folder(output: str | Path | None, name: str) -> Path:
    """Return the folder of a run: the one of `--output`, or one named after its recipe.

    Raises:
        UsageError: If it is the home of an unknown user, or a Windows path on another system.
    """
    from bertkit.recipe.sections import expand_path

    if output and os.sep == "/" and "\\" in str(output):
        raise UsageError(f"--output {output} has a backslash", f"write {PureWindowsPath(output).as_posix()}")
    folder = expand_path(output) if output else Path("runs") / name
    # `.` has no name, so no number can be added to it.
    return folder if folder.name.strip(".") else folder.resolve()


def read_record(folder: Path) -> RunRecord | None:
    """Read a run's record, or return None if the folder is not a run.

    It contains its own checksum, because scores, tuned options and other checksums come from it, and so does the
    precision of a resumed run.

    Raises:
        ResourceError: If the record is damaged.
    """
    damaged = ResourceError(
        "the record of the run is damaged", "--restart moves the folder aside", file=folder / RECORD
    )
    return cast("RunRecord | None", read_with_checksum(folder / RECORD, damaged))


def prepare_run_folder(folder: Path, identity: Mapping[str, Any], *, restart: bool) -> RunRecord | None:
    """Prepare a folder for the run with this identity, and return its record if it holds that run already.

    With `restart`, an earlier run is moved aside, never deleted.

    Raises:
        UsageError: If the folder holds another run, or something that is not a run.
        ResourceError: If the folder cannot be created or written, or another process is writing it.
    """
    if restart and (folder / RECORD).is_file():
        with ExitStack() as held:
            held.enter_context(lock_run(folder))
            move_aside(folder, held)
    # Nothing is created before the checks, so that an error leaves no empty folder behind.
    record = check_run_folder(folder, identity)
    with folder_errors(folder, _NAME):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LOCK).open("a", encoding="utf-8").close()
    return record


def check_run_can_start(folder: Path, identity: Mapping[str, Any], *, restart: bool) -> None:
    """Check, without writing, that `prepare_run_folder` and `lock_run` would succeed now."""
    # --restart moves an existing run aside, so it cannot conflict.
    if not (restart and (folder / RECORD).is_file()):
        record = check_run_folder(folder, identity)
        if record is not None and record["status"] == "finished":
            return
    if holder := files.get_lock_holder(folder / LOCK):
        raise _held(folder, holder)


def check_run_folder(folder: Path, identity: Mapping[str, Any]) -> RunRecord | None:
    """Check, without writing, that a folder may be used for the run with this identity; see `prepare_run_folder`."""
    check_writable(folder, _NAME)
    record = read_record(folder)
    # A run that is killed before it writes its record leaves this file.
    unfinished = files.get_temporary_path(folder / RECORD).name
    entries = [entry.name for entry in folder.iterdir()] if record is None and folder.is_dir() else []
    if not all(name.startswith(LOCK) or name == unfinished for name in entries):
        # The folder may hold other work, so bertkit writes only into folders that it knows to be runs.
        names = list_runs(folder)
        listed = shorten(", ".join(names), 40)
        inside = f"several runs ({listed})" if names else "something that is not a run of bertkit"
        raise UsageError(f"the folder holds {inside}", "choose another --output", file=folder)
    if record is not None and record["status"] != "finished" and not any(folder.glob("checkpoint-*")):
        # Without a checkpoint there is nothing to resume and nothing to lose.
        return None
    if record is not None:
        files.check_links(folder)
        if record.get("identity_version") != IDENTITY_VERSION:
            message = "the folder holds a run of another version of bertkit"
            remedy = f"use that version to resume it, or --output {free_name(folder)} for a new run"
            raise UsageError(message, remedy, file=folder)
    # Any other difference would mix two runs in one folder without an error.
    changes = compare_identities(record["identity"], identity) if record is not None else []
    if changes:
        more = f" and {len(changes) - 4} more" if len(changes) > 4 else ""
        message = f"the folder holds another run ({'; '.join(map(str, changes[:4]))}{more})"
        remedy = f"use --output {free_name(folder)} for a new run, or --restart to move the old one aside"
        raise UsageError(message, remedy, file=folder)
    return record


def list_runs(folder: Path) -> list[str]:
    """List the names of the runs that a folder holds, in order."""
    return sorted(file.parent.name for file in folder.glob(f"*/{RECORD}"))


def free_name(folder: Path) -> Path:
    """Return the path, with a number if it is taken.

    >>> free_name(Path("nowhere/cola"))
    PosixPath('nowhere/cola')
    """
    index = 2
    free = folder
    while free.exists():
        free, index = folder.with_name(f"{folder.name}-{index}"), index + 1
    return free


@dataclass(frozen=True)
class Change:
    """A value that differs between two nested mappings, such as the identities of two runs."""

    key: str
    """The dotted key, such as ``recipe.training.seed``."""
    before: object
    after: object

    def __str__(self) -> str:
        return f"{self.key}: {shorten(str(self.before), 40)} there, {shorten(str(self.after), 40)} requested"


def compare_identities(stored: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[Change]:
    """List the values that differ between two nested mappings, sorted by key. A missing value counts as None.

    >>> compare_identities({"training": {"seed": 1}}, {"training": {"seed": 2}})
    [Change(key='training.seed', before=1, after=2)]
    """
    changes = []
    for key in sorted({*stored, *new}):
        before, after = stored.get(key), new.get(key)
        # A section that only one of them has is a single change, not a change per key.
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            changes += compare_identities(before, after, f"{prefix}{key}.")
        elif before != after:
            changes.append(Change(f"{prefix}{key}", before, after))
    return changes


def lock_run(folder: Path) -> AbstractContextManager[None]:
    """Hold the folder's lock, which the system releases when the process ends for any reason.

    Raises:
        ResourceError: If another process holds it; the message names its id and host.
    """
    return files.hold_lock(folder / LOCK, make_error=partial(_held, folder))


def _held(folder: Path, holder: str) -> ResourceError:
    return ResourceError(f"{holder} is writing this run", "wait for it, or choose another --output", file=folder)


def move_aside(folder: Path, locks: ExitStack) -> None:
    """Rename a folder whose locks are held; the new name gets a number if it is taken."""
    files.rename_folder(folder, free_name(folder.with_name(f"{folder.name}.before")), locks)


def new_record(identity: Mapping[str, Any], **fields: object) -> RunRecord:
    """Return the record of a run that starts now."""
    import platform

    record = RunRecord(
        identity_version=IDENTITY_VERSION,
        status="running",
        started=now(),
        command=command(),
        identity=dict(identity),
        versions=versions(),
        platform=platform.platform(),
    )
    return cast(RunRecord, {**record, **fields})


def write_record(folder: Path, record: RunRecord) -> None:
    """Write a run's record atomically, in the main process only."""
    if is_main_process():
        write_with_checksum(folder / RECORD, record)


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that a result may depend on."""
    import platform
    from importlib import metadata

    installed = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            installed[package] = metadata.version(package)
        except metadata.PackageNotFoundError:  # run from a checkout that is not installed
            continue
    return installed


def command() -> str:
    """Return the command line that started this process, quoted for a shell."""
    import shlex

    return shlex.join(["bertkit", *sys.argv[1:]])


def now() -> str:
    """Return the time in UTC, to the second, in ISO format."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def check_writable(folder: Path, name: str) -> None:
    """Check, without writing, that a folder can be written, or be created in an existing folder."""
    if folder.exists() and not folder.is_dir():
        raise ResourceError(f"there is a file where {name} should be", "choose another --output", file=folder)
    # The nearest existing folder decides whether the missing ones can be created.
    place = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    with folder_errors(folder, name):
        if place != folder and not place.is_dir():
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(place, os.W_OK):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))


@contextmanager
def folder_errors(folder: Path, name: str) -> Iterator[None]:
    """Raise ResourceError, with a name for the folder, if the system does not allow writing it."""
    try:
        yield
    except OSError as error:
        message = f"{name} cannot be written: {error.strerror}"
        raise ResourceError(message, "choose another --output", file=folder) from None


def find_machine(folders: Iterable[Path], matches: Callable[[Mapping[str, Any]], bool] = bool) -> dict[str, Any] | None:
    """Return the machine of the first run whose record matches, which other runs must share, or None without a run."""
    records = (record for record in map(read_record, folders) if record and "machine" in record)
    return next((dict(record["machine"]) for record in records if matches(record)), None)

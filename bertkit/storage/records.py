"""Records of runs, and other JSON objects that contain their own checksum."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypedDict, cast

from bertkit.errors import BertkitError
from bertkit.storage import files
from bertkit.storage.fingerprints import json_fingerprint


class RunRecord(TypedDict, total=False):
    """What a run or an evaluation has noted of itself (``run.json``, ``evaluation.json``), as JSON values."""

    schema_version: int
    status: str
    """running, stopped, failed, diverged or finished."""
    error: str
    command: str
    started: str
    finished: str
    resumed: list[str]
    """When each later process went on."""
    seconds: float
    peak_memory_bytes: int | None
    """The most memory that its last process used; None where that is unknown."""
    identity: dict[str, Any]
    """What makes the run the run it is: ``recipe``, checksums of ``data`` and ``model``, ``labels``."""
    versions: dict[str, str]
    platform: str
    machine: dict[str, Any]
    """The fields of `bertkit.hardware.precision.Machine`."""
    model: str
    commit: str | None
    rows: dict[str, int]
    split_file: str | None
    automatic: str
    """Why `auto` has chosen its numbers."""
    steps: int
    best_step: int
    best_checkpoint: str | None
    step_times: dict[str, float]
    """How its last process trained: for ``seconds``, for ``loading_seconds`` of them without a batch yet, and for a
    ``waiting_share`` of the time of its threads without a core."""
    truncated: dict[str, int]
    """``training_rows`` that reach ``max_tokens``, where longer ones are truncated, and validation rows whose gold
    value is beyond that, ``lost_gold``."""
    tuned: dict[str, Any]
    """Options that were tuned on validation rows."""
    tokenizer: dict[str, Any]
    """What ``tokenizer.json`` does not say; see `bertkit.runtime.tokenizer`."""
    baselines: str
    """The checksum of the file of what baselines have learned."""
    result: dict[str, Any]
    """What a pretraining scored: the fields of `bertkit.workflows.pretrain_results.Pretrained`."""
    results: list[dict[str, Any]]
    """What each split scored: the fields of `bertkit.evaluation.scoring.Result`."""
    budget_settings: dict[str, Any]
    """Settings that the first process of a pretraining by the clock has timed."""
    trackers: dict[str, str]
    """Experiment tracker -> what it calls the run; ``run`` is the part of its name that no other run has."""
    format: int
    """Number of the form that an evaluation is recorded in."""
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


CHECKSUM = "sha256"
"""The key of an object's checksum of itself."""


def take(record: RunRecord, *names: str) -> RunRecord:
    """Return some entries of a record, those that it has."""
    return cast(RunRecord, {name: value for name, value in record.items() if name in names})


def without_folder(result: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as a record keeps them: a folder that names itself could not be moved."""
    return {name: value for name, value in asdict(result).items() if name != "folder"}


def read_object(file: Path, damaged: BertkitError) -> dict[str, Any] | None:
    """Read a JSON object; None where there is no such file.

    Raises:
        BertkitError: `damaged`, where the file is anything else.
    """
    try:
        # a checksum cannot tell NaN from null, which is what bertkit writes
        content = json.loads(file.read_text(encoding="utf-8"), parse_constant=lambda _: None)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, RecursionError):
        raise damaged from None
    if not isinstance(content, dict):
        raise damaged
    return content


def read_signed(file: Path, damaged: BertkitError, form: tuple[str, int] | None = None) -> dict[str, Any] | None:
    """Read what `write_signed` has written; None where there is no such file.

    Args:
        file: the JSON.
        damaged: raised where it is anything else; its class is that of all errors.
        form: what such a file describes, and the number of its ``format``, where it has one.

    Raises:
        BertkitError: `damaged`, or that the file has another format.
    """
    content = read_object(file, damaged)
    if content and form and content.get("format", form[1]) != form[1]:
        what = f"{form[0]} of format {content['format']}, where this bertkit reads {form[1]}"
        raise type(damaged)(what, f"use the bertkit that wrote it, or {damaged.remedy}", file=file.parent)
    if content is not None and content.pop(CHECKSUM, None) != json_fingerprint(content):
        raise damaged
    return content


def write_signed(file: Path, content: Mapping[str, Any]) -> None:
    """Write an object with a checksum of itself, in place of an earlier one; whole or not at all."""
    # The checksum is of what will be read: JSON turns tuples into lists and keys into text.
    as_read = json.loads(files.to_json(content))
    as_read.pop(CHECKSUM, None)
    files.write_json(file, {**as_read, CHECKSUM: json_fingerprint(as_read)})

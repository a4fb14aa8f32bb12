"""The folder that `eval --output` writes: predictions, scores with their intervals, and the model that made them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from bertkit.data.rows import Split
from bertkit.errors import DataError, ResourceError, UsageError
from bertkit.evaluation.calibration import fingerprint_all
from bertkit.evaluation.checkpoint import CheckpointInfo
from bertkit.evaluation.scoring import EvalResult, predictions_file
from bertkit.recipe.yaml import write_yaml
from bertkit.storage import runs
from bertkit.storage.exports import MANIFEST, is_exported
from bertkit.storage.files import make_ignored_folder, write_text
from bertkit.storage.fingerprints import file_fingerprint, list_files, read_with_checksum, write_with_checksum
from bertkit.storage.outputs import check_not_inputs
from bertkit.storage.runs import RunRecord, as_portable_record

RECORD = "evaluation.json"
_VERSION = 1
_NOT_SETTINGS = {"about", "published", "gates", "model", "data"}
_SCORING_SETTINGS = ("max_length", "precision")  # training settings that change scores
_REMEDY = "choose another --output"


def read_evaluation(folder: Path) -> RunRecord | None:
    """Read the record of the evaluation in a folder, or return None for a folder without a record.

    Raises:
        DataError: If the record is damaged.
    """
    error = DataError("the record of the evaluation is damaged", "evaluate into another folder", file=folder / RECORD)
    return cast("RunRecord | None", read_with_checksum(folder / RECORD, error, form=("an evaluation", _VERSION)))


def check_output(folder: Path, splits: Mapping[str, Split]) -> None:
    """Create the folder of an evaluation, and check that no file of a run and no input file would be replaced.

    Raises:
        UsageError: If the folder contains a run, or an input file would be replaced.
        ResourceError: If the folder cannot be created.
    """
    if (folder / runs.RECORD).is_file():
        raise UsageError("the folder contains a run, whose predictions would be lost", _REMEDY, file=folder)
    for name, split in splits.items():
        check_not_inputs(folder / predictions_file(name), [("the file with the rows to score", Path(split.source))])
    try:
        make_ignored_folder(folder)
    except OSError as error:
        raise ResourceError(f"not a folder to write to: {error.strerror}", _REMEDY, file=folder) from None


def begin_evaluation(folder: Path, info: CheckpointInfo) -> RunRecord:
    """Write the record of an unfinished evaluation into its folder, and return it.

    If the folder has an evaluation of the same model with the same settings, the scores of its other splits stay.

    Raises:
        UsageError: If the folder has predictions of another model, or of the same model with other settings.
    """
    made_by = describe_maker(info)
    record = read_evaluation(folder)
    if record is None and any(folder.glob("predictions*.jsonl")):
        raise UsageError("the folder has predictions of an unknown model", _REMEDY, file=folder)
    if record is not None and record["made_by"] != made_by:
        message = f"the folder has an evaluation of another model ({record['model']})"
        if record["made_by"]["model"] == made_by["model"]:
            changes = runs.compare_identities(record["made_by"], made_by)
            message = f"the folder has an evaluation with other settings ({'; '.join(map(str, changes[:4]))})"
        raise UsageError(message, _REMEDY, file=folder)
    # The status is written before any predictions, so that an interrupted evaluation does not look finished.
    record = record or {"results": [], "predictions": {}, "identity": {"data": {}}}
    record |= {"format": _VERSION, "status": "running", "model": info.recipe.model, "made_by": made_by}
    record["versions"] = runs.versions()
    write_with_checksum(folder / RECORD, record)
    write_text(folder / "recipe.yaml", write_yaml(info.recipe.model_dump(mode="json", exclude_defaults=True)))
    return record


def describe_maker(info: CheckpointInfo) -> dict[str, Any]:
    """Return what predictions depend on besides the rows: the model's checksum, and settings of its recipe."""
    settings = info.recipe.model_dump(mode="json", exclude=_NOT_SETTINGS)
    settings["training"] = {name: settings["training"][name] for name in _SCORING_SETTINGS}
    return {"model": _fingerprint(info), "recipe": settings}


def finish_evaluation(
    folder: Path,
    record: RunRecord,
    results: Sequence[EvalResult],
    splits: Mapping[str, Split],
    labels: Sequence[str],
    files: Sequence[str],
) -> None:
    """Write scores and the checksums of rows and predictions into the record of an evaluation."""
    # A repeated evaluation writes the same bytes, because times and folders are left out.
    new_results = [{**as_portable_record(result), "seconds": None} for result in results]
    other_results = [result for result in record["results"] if result["split"] not in splits]
    data = record["identity"]["data"] | {name: split.fingerprint() for name, split in splits.items()}
    # Keep the labels of earlier evaluations in the folder, because other splits can have other labels.
    label_names = list(dict.fromkeys([*record["identity"].get("labels", []), *labels]))
    identity = {"recipe": record["made_by"]["recipe"], "data": data, "labels": label_names}
    predictions = {**record["predictions"], **list_files(folder, files)}
    fields = {"identity": identity, "results": other_results + new_results, "predictions": predictions}
    write_with_checksum(folder / RECORD, {**record, "status": "finished", **fields})


def _fingerprint(info: CheckpointInfo) -> str:
    """Compute the checksum of a model, or of the manifest of an exported model."""
    if is_exported(info.folder):
        return file_fingerprint(info.folder / MANIFEST)
    return fingerprint_all(info.folder, info.member_folders)

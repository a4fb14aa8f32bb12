"""Push a run to the Hub: its model, and the files that load and describe the model, but no rows of the data."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from bertkit import __version__
from bertkit.errors import ModelError, ResourceError, UsageError
from bertkit.evaluation.baselines import BASELINES_FILE
from bertkit.evaluation.calibration import CALIBRATION_FILE, DECISION_FILE
from bertkit.metrics.registry import runs_code
from bertkit.progress import log
from bertkit.recipe.load import FOLDER_RECIPE, read_values
from bertkit.recipe.sections import expand_path
from bertkit.reports.card import hub_card
from bertkit.reports.templates import name_paths
from bertkit.storage import exports, hub, runs
from bertkit.storage.files import check_links, write_text
from bertkit.storage.fingerprints import describe_file, read_with_checksum, write_with_checksum
from bertkit.storage.hub.models import check_model
from bertkit.storage.runs import RunRecord, select_entries

CARD = "README.md"
_SCORES = ("all_results.json", "eval_results.json", "train_results.json")
_PRIVATE_FILES = {runs.TRAINING_ROWS, BASELINES_FILE, "parity.json"}
"""Files with digests, words or answers of single rows, which are not pushed."""
# Keys of a run's record that are pushed, because loading or comparing the model requires them.
_RUN_KEYS = ("identity_version", "status", "finished", "seconds", "versions", "machine", "split_file", "steps", "tuned")
_RESULT_KEYS = ("recipe", "split", "rows", "scores", "intervals")


@dataclass(frozen=True)
class PushResult:
    """Files and commit of a push, or of a dry run."""

    run: str
    name: str
    private: bool
    files: dict[str, int]
    """Path in the repository -> size in bytes."""
    notes: list[str]
    is_pretrained: bool = False
    """Whether the model is an encoder from pretraining, which cannot predict."""
    commit: str | None = None
    """Newest commit after the push, or None for a dry run."""
    before: str | None = None
    """Newest commit before the push, or None for a new repository. The commit stays in the history."""
    deleted: list[str] = field(default_factory=list)
    """Deleted files of the earlier model, which would be loaded together with the files of this run."""


def push(run: str | Path, name: str, *, private: bool = False, dry_run: bool = False) -> PushResult:
    """Push a finished run to a model repository on the Hub, and create the repository if it does not exist.

    If the repository has another model, a new commit replaces it; the earlier commit keeps the old model.

    Args:
        run: Run folder.
        name: Name of the repository, such as ``org/name``.
        private: Whether a new repository is private.
        dry_run: Whether to check and list the files without a request to the Hub.

    Raises:
        UsageError: If the name is not valid, or if the repository is public and `private` is set.
        ModelError: If the folder is not a finished and complete run, or if the metadata of its card is wrong.
        UnavailableError: If there is no token, or if the Hub cannot be reached or rejects the request.
    """
    # 1. Check the name, and that all files of the run are intact.
    if name.count("/") != 1 or not hub.is_name(name):
        message = f"{name!r} is not the name of a model on the Hub"
        raise UsageError(message, "write YOUR_NAME/NAME, or ORGANIZATION/NAME")
    remedy = "name a run folder; `bertkit runs list` shows the runs below runs/"
    folder = expand_path(run)
    if not folder.is_dir():
        raise ModelError(f"no such run: {folder}", remedy)
    exports.check_not_exported(folder)
    check_links(folder)
    check_model(folder)
    record: RunRecord = runs.read_record(folder) or {}
    if "files" not in record:
        raise ModelError("not a run folder with checksums, so its model files are unknown", remedy, file=folder)
    exports.compare_files(folder, record["files"], "restore it, or train again")
    # Users can edit the card before a push, so wrong metadata is an error; missing metadata is only a note.
    card, recipe = hub_card(folder / CARD, name), read_values(str(folder / FOLDER_RECIPE))
    missing_keys = [key for key in ("license", "language") if getattr(card.data, key) is None]
    notes = [f"the header of {CARD} has no {key}, so the Hub will show none: add it" for key in missing_keys]
    custom_metrics = filter(runs_code, recipe.get("metrics", []))
    notes += [f"`bertkit eval` needs the code of the metric {metric}; `predict` does not" for metric in custom_metrics]

    with tempfile.TemporaryDirectory() as temporary:
        # 2. List the files of the run and of the graphs that were exported to its folder. Files that mention rows or
        #    paths are rewritten in a temporary folder.
        target = Path(temporary)
        optional_files = [name for name in (*_SCORES, CALIBRATION_FILE, DECISION_FILE) if (folder / name).is_file()]
        files = _make_public_files(folder, [*record["files"], *optional_files], target)
        # `bertkit eval --output` can write such files to a subfolder of the run folder.
        files |= {f".eval_results/{file.name}": file for file in folder.rglob(".eval_results/*.yaml")}
        for graph in sorted(manifest.parent for manifest in folder.glob(f"*/{exports.MANIFEST}")):
            exports.check_export(graph)
            # Rewritten files have other checksums, so the manifest of the graph and the record of the run change too.
            graph_target, export = target / graph.name, exports.read_export(graph)
            graph_files = _make_public_files(graph, exports.listed_files(graph), graph_target)
            export = replace(export, record=_make_public_record(export.record))
            exports.write_export(graph_target, export, _list_checksums(graph_files))
            graph_files[exports.MANIFEST] = graph_target / exports.MANIFEST
            files |= {f"{graph.name}/{path}": file for path, file in graph_files.items()}
        write_with_checksum(target / runs.RECORD, {**_make_public_record(record), "files": _list_checksums(files)})
        write_text(target / CARD, str(card))
        files |= {name: target / name for name in (runs.RECORD, CARD)}

        # 3. Push the files.
        sizes = {path: files[path].stat().st_size for path in sorted(files)}
        result = PushResult(str(run), name, private, sizes, notes, is_pretrained="objective" in recipe)
        return result if dry_run else _commit(result, files, record)


def _make_public_files(folder: Path, names: Iterable[str], target: Path) -> dict[str, Path]:
    """Return name -> file for the public files; recipe and calibration are copied without paths and digests."""
    files = {name: folder / name for name in names if name not in _PRIVATE_FILES}
    target.mkdir(exist_ok=True)
    if recipe := files.get(FOLDER_RECIPE):
        files[FOLDER_RECIPE] = target / FOLDER_RECIPE
        write_text(files[FOLDER_RECIPE], name_paths(recipe.read_text(encoding="utf-8")))
    if calibration := files.get(CALIBRATION_FILE):
        damaged = ModelError("the calibration is damaged", "run `bertkit calibrate` again", file=calibration)
        content = read_with_checksum(calibration, damaged) or {}
        files[CALIBRATION_FILE] = target / CALIBRATION_FILE
        # The digests of rows in the folds would show whether a known text is among the rows.
        write_with_checksum(files[CALIBRATION_FILE], {**content, "source": name_paths(content["source"]), "folds": []})
    return files


def _make_public_record(record: RunRecord) -> RunRecord:
    """Return the parts of a record that loading or comparing a model requires, without command and data excerpts."""
    if not record:
        return record
    recipe, identity = record["identity"]["recipe"], record["identity"]
    identity = {key: identity[key] for key in ("model", "data", "labels", "hold_out") if key in identity}
    identity["recipe"] = {key: recipe[key] for key in ("name", "data", "training", "options") if key in recipe}
    results = [{key: result[key] for key in _RESULT_KEYS if key in result} for result in record.get("results", [])]
    return cast(RunRecord, {**select_entries(record, *_RUN_KEYS), "identity": identity, "results": results})


def _list_checksums(files: Mapping[str, Path]) -> dict[str, Any]:
    return {name: describe_file(file) for name, file in files.items()}


def _commit(result: PushResult, files: Mapping[str, Path], record: RunRecord) -> PushResult:
    """Add a commit to the repository, after its newest commit, and create the repository if it does not exist."""
    name, before, deleted = result.name, None, list[str]()
    hub.check_token()
    if (repository := hub.find_repository(name)) is None:
        hub.create_repository(name, private=result.private)
    else:
        if result.private and not repository.private:
            remedy = "leave --private out, or make it private in its settings on the Hub"
            raise UsageError(f"{name} exists already, and is public", remedy)
        before, paths = repository.sha, {sibling.rfilename for sibling in repository.siblings}
        earlier_record: Mapping[str, Any] = {}
        if runs.RECORD in paths:
            folder = hub.fetch(hub.get_repo_info("model", name, before), [runs.RECORD])
            # Another program may have written the file.
            with suppress(ResourceError):
                earlier_record = runs.read_record(folder) or {}
        # Delete weights in other formats and the calibration of the earlier model, which would be loaded instead of
        # this run's. Keep all other files, which bertkit did not write.
        model_files = {*earlier_record.get("files", ()), *hub.WEIGHTS, CALIBRATION_FILE, DECISION_FILE}
        deleted = sorted(model_files & paths - files.keys())
        is_other_run = earlier_record.get("identity") != _make_public_record(record)["identity"]
        if is_other_run and paths & {*hub.WEIGHTS, *files}:
            log.info(f"{name} already contains a model; pushing a new commit ({name}@{before} keeps the old one)")
    # With `parent`, the Hub rejects the commit if another push came in between.
    commit = hub.commit_files(name, files, deleted, parent=before, message=f"Push by bertkit {__version__}")
    return replace(result, commit=commit, before=before, deleted=deleted)

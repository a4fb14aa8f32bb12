"""Push a run to the hub: what loads, describes and measures its model, and nothing of its rows."""

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
from bertkit.evaluation.calibration import CALIBRATION_FILE
from bertkit.metrics.registry import runs_code
from bertkit.progress import log
from bertkit.recipe.load import FOLDER_RECIPE, read_values
from bertkit.recipe.sections import typed_path
from bertkit.reports.card import hub_card
from bertkit.reports.templates import name_paths
from bertkit.storage import exports, hub, runs
from bertkit.storage.files import refuse_links, write_text
from bertkit.storage.fingerprints import describe_file, read_signed, write_signed
from bertkit.storage.hub.models import check_model
from bertkit.storage.runs import RunRecord, take

CARD = "README.md"
_SCORES = ("all_results.json", "eval_results.json", "train_results.json")
_OF_ROWS = {runs.TRAINING_ROWS, BASELINES_FILE, "parity.json"}
"""Files of a model that stay here: digests, words and answers of single rows."""
_OF_RUN = ("identity_version", "status", "finished", "seconds", "versions", "machine", "split_file", "steps", "tuned")
_OF_RESULT = ("recipe", "split", "rows", "scores", "intervals")


@dataclass(frozen=True)
class PushResult:
    """What was pushed, or would be."""

    run: str
    name: str
    private: bool
    files: dict[str, int]
    """Path there -> bytes."""
    notes: list[str]
    is_pretrained: bool = False
    """Whether it is an encoder, which predicts nothing."""
    commit: str | None = None
    """The newest commit now; None of a dry run."""
    before: str | None = None
    """The newest commit before, which the history keeps; None of a new repository."""
    deleted: list[str] = field(default_factory=list)
    """Files of the model before that would be read beside those of this run."""


def push(run: str | Path, name: str, *, private: bool = False, dry_run: bool = False) -> PushResult:
    """Push a finished run to a model repository of the hub, which is created where there is none.

    If the repository has another model, a commit on top replaces it, and the history keeps it.

    Args:
        run: its folder.
        name: of the repository, as ``org/name``.
        private: whether a new repository is private.
        dry_run: check and list the files, and ask the hub nothing.

    Raises:
        UsageError: no name of a repository, or the name of a public one where it is to be private.
        ModelError: no run, one that is unfinished or damaged, or a card whose metadata are wrong.
        UnavailableError: no token, or the hub cannot be reached, breaks off, or its answer is no.
    """
    # 1. Check the name, and that all files of the run are intact.
    if name.count("/") != 1 or not hub.is_name(name):
        raise UsageError(f"{name!r} is no name of a model on the hub", "write YOUR_NAME/NAME, or ORGANIZATION/NAME")
    folder, remedy = typed_path(run), "name a run folder; `bertkit runs list` shows those below runs/"
    if not folder.is_dir():
        raise ModelError(f"no such run: {folder}", remedy)
    exports.refuse_exported(folder)
    refuse_links(folder)
    check_model(folder)
    record: RunRecord = runs.read_record(folder) or {}
    if "files" not in record:
        raise ModelError("no run of bertkit with checksums, which tell what of it is the model", remedy, file=folder)
    exports.compare_files(folder, record["files"], "restore it, or train again")
    card, recipe = hub_card(folder / CARD, name), read_values(str(folder / FOLDER_RECIPE))
    missing_keys = [key for key in ("license", "language") if getattr(card.data, key) is None]
    notes = [f"{CARD} names no {key}, so none is published: fill it in at its top" for key in missing_keys]
    custom = filter(runs_code, recipe.get("metrics", []))
    notes += [f"`bertkit eval` needs the code of the metric {metric}; `predict` does not" for metric in custom]

    with tempfile.TemporaryDirectory() as temporary:
        # 2. List the files of the run and of its graphs. Files that mention rows or paths are rewritten in `rewritten`.
        rewritten = Path(temporary)
        optional = [name for name in (*_SCORES, CALIBRATION_FILE) if (folder / name).is_file()]
        files = _without_rows(folder, [*record["files"], *optional], rewritten)
        for graph in sorted(manifest.parent for manifest in folder.glob(f"*/{exports.MANIFEST}")):
            exports.check_export(graph)
            target, export = rewritten / graph.name, exports.read_export(graph)
            graph_files = _without_rows(graph, exports.listed_files(graph), target)
            public = replace(export, record=_public(export.record))
            exports.write_export(target, public, _list_checksums(graph_files))
            graph_files[exports.MANIFEST] = target / exports.MANIFEST
            files |= {f"{graph.name}/{path}": file for path, file in graph_files.items()}
        write_signed(rewritten / runs.RECORD, {**_public(record), "files": _list_checksums(files)})
        write_text(rewritten / CARD, str(card))
        files |= {name: rewritten / name for name in (runs.RECORD, CARD)}

        # 3. Push them.
        sizes = {path: files[path].stat().st_size for path in sorted(files)}
        result = PushResult(str(run), name, private, sizes, notes, is_pretrained="objective" in recipe)
        return result if dry_run else _commit(result, files, record)


def _without_rows(folder: Path, names: Iterable[str], target: Path) -> dict[str, Path]:
    """Return name -> file of what says nothing of single rows; recipe and calibration are written anew."""
    files = {name: folder / name for name in names if name not in _OF_ROWS}
    target.mkdir(exist_ok=True)
    if recipe := files.get(FOLDER_RECIPE):
        files[FOLDER_RECIPE] = target / FOLDER_RECIPE
        write_text(files[FOLDER_RECIPE], name_paths(recipe.read_text(encoding="utf-8")))
    if calibration := files.get(CALIBRATION_FILE):
        damaged = ModelError("the calibration is damaged", "run `bertkit calibrate` again", file=calibration)
        content = read_signed(calibration, damaged) or {}
        files[CALIBRATION_FILE] = target / CALIBRATION_FILE
        # its folds are digests of the rows that it was fitted to
        write_signed(files[CALIBRATION_FILE], {**content, "source": name_paths(content["source"]), "folds": []})
    return files


def _public(record: RunRecord) -> RunRecord:
    """Return what a model is loaded and judged by, of the record of its run: no command, no words of the data."""
    if not record:
        return record
    identity, recipe = record["identity"], record["identity"]["recipe"]
    kept = ("model", "data", "labels", "hold_out")
    public: dict[str, Any] = {name: identity[name] for name in kept if name in identity}
    public["recipe"] = {name: recipe[name] for name in ("name", "data", "training", "options") if name in recipe}
    results = [{name: result[name] for name in _OF_RESULT if name in result} for result in record.get("results", [])]
    return cast(RunRecord, {**take(record, *_OF_RUN), "identity": public, "results": results})


def _list_checksums(files: Mapping[str, Path]) -> dict[str, Any]:
    return {name: describe_file(file) for name, file in files.items()}


def _commit(result: PushResult, files: Mapping[str, Path], record: RunRecord) -> PushResult:
    """Make the commit, on top of the newest one of a repository that is there."""
    name, before, deleted = result.name, None, list[str]()
    hub.check_token()
    if (there := hub.find_repository(name)) is None:
        hub.create_repository(name, private=result.private)
    else:
        if result.private and not there.private:
            remedy = "leave --private out, or make it private in its settings on the hub"
            raise UsageError(f"{name} is there already, and is public", remedy)
        before, paths = there.sha, {sibling.rfilename for sibling in there.siblings}
        earlier: Mapping[str, Any] = {}
        if runs.RECORD in paths:
            folder = hub.fetch(hub.look_up("model", name, before), [runs.RECORD])
            with suppress(ResourceError):  # another program wrote the file
                earlier = runs.read_record(folder) or {}
        # Weights of another form, or the calibration of another model, would be read in place of this run's.
        read = {*earlier.get("files", ()), *hub.WEIGHTS, CALIBRATION_FILE}
        deleted = sorted(read & paths - files.keys())
        if earlier.get("identity") != _public(record)["identity"] and paths & {*hub.WEIGHTS, *files}:
            log.info(f"{name} has another model: a commit on top replaces it, and {name}@{before} stays what it was")
    commit = hub.commit_files(name, files, deleted, parent=before, message=f"Push by bertkit {__version__}")
    return replace(result, commit=commit, before=before, deleted=deleted)

"""Model folders: the demo model, a directory, or a model of the Hub, whose other files are not fetched.

A model of bertkit is compared with its checksums before it is used, and brings its recipe along.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from bertkit.errors import ModelError, ResourceError, UnavailableError, UsageError, did_you_mean, similar_path
from bertkit.recipe.sections import expand_path
from bertkit.storage import checkpoints, runs
from bertkit.storage.cache import log_once
from bertkit.storage.exports import check_export, compare_files, is_exported
from bertkit.storage.hub.repositories import (
    Repository,
    cached_folder,
    fetch,
    get_repo_info,
    is_name,
    is_offline_by_choice,
    write_ref,
)
from bertkit.storage.run_sets import is_seeds_folder, seed_folders
from bertkit.storage.runs import RunRecord

WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""Files of weights; transformers loads the first one that exists."""

# Configs, vocabularies and records of a run. Other files of a model are not read.
_SETTINGS_FILES = (
    "config.json",
    runs.RECORD,
    runs.TRAINING_ROWS,
    "recipe.yaml",
    "calibration.json",
    "*token*.json",
    "*vocab*.json",
    "*vocab*.txt",
    "merges.txt",
    "*.model",
    "modules.json",
    "router_config.json",
    "config_sentence_transformers.json",
    "sentence_*_config.json",
)
_LEFT_OUT: ContextVar[dict[Path, int] | None] = ContextVar("_LEFT_OUT", default=None)


def find_model(name: str) -> Path:
    """Find the folder of a model: ``demo``, a directory, or a name on the Hub, which is cached or downloaded.

    A name on the Hub can end in ``@`` and a revision.

    Raises:
        ModelError: If a path is not a directory, or a run or a checkpoint of bertkit is damaged or unfinished.
        UnavailableError: If the Hub does not give the model, and it is not in the cache.
    """
    if name == "demo":
        return Path(__file__).parents[2] / "data" / "demo" / "model"
    folder = expand_path(name)
    if folder.is_dir():
        check_model(folder)
        return folder
    if folder.is_file():
        raise ModelError("not a model folder but a file", "name the folder that it is in", file=name)
    # A name on the Hub has at most one slash.
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        address = re.match(r"(?:hf:/|https://huggingface\.co)/([\w.-]+(?:/[\w.-]+)?)", name)
        remedy = f"write {address[1]}" if address else _list_folders(folder.parent)
        raise ModelError(f"no such directory: {name}", remedy)
    folder = _find_on_hub(name)
    # Weights that stayed on the Hub cannot be compared with checksums.
    if bytes_left_out(folder) is None:
        check_model(folder)
    return folder


@contextmanager
def without_weights() -> Iterator[dict[Path, int]]:
    """Keep `find_model` from downloading weights inside the block; yield folder without weights -> their size."""
    left_out: dict[Path, int] = {}
    token = _LEFT_OUT.set(left_out)
    try:
        yield left_out
    finally:
        _LEFT_OUT.reset(token)


def bytes_left_out(folder: Path) -> int | None:
    """Return the size of a model's weights if `without_weights` left them on the Hub, or None."""
    return (_LEFT_OUT.get() or {}).get(folder)


def is_cached(folder: Path) -> bool:
    """Return whether a folder is in the Hub's cache, where more files of its commit can arrive at any time."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) in folder.parents


def cached_models() -> list[str]:
    """List the names of the models in the Hub's cache."""
    from huggingface_hub import constants

    # The cache has a folder models--ORG--NAME per model, with a folder per commit in snapshots/.
    folders = (snapshots.parent for snapshots in Path(constants.HF_HUB_CACHE).glob("models--*/snapshots"))
    return sorted(folder.name.removeprefix("models--").replace("--", "/") for folder in folders)


def split_revision(name: str) -> tuple[str, str | None]:
    """Return the name of a model on the Hub and the revision after its ``@``: a branch, a tag or a commit.

    >>> split_revision("me/model@v2"), split_revision("me/model")
    (('me/model', 'v2'), ('me/model', None))
    """
    repository, _, revision = name.partition("@")
    return repository, revision or None


def find_base_model(model: str) -> str | None:
    """Return the Hub id of a model, or of the model that a local folder was trained from, or None if it is unknown.

    A folder names it in ``base_model`` of its card, or in ``_name_or_path`` of a config of transformers 4. The latter
    can be a path on another machine, so only a name with an organization counts.
    """
    import yaml
    from huggingface_hub import metadata_load

    folder, names = expand_path(model), None
    if model == "demo" or not folder.exists():
        return None if model == "demo" else split_revision(model)[0]
    with suppress(OSError, ValueError, yaml.YAMLError):  # The card can be missing or damaged.
        names = (metadata_load(folder / "README.md") or {}).get("base_model")
    with suppress(OSError, ValueError):
        names = names or json.loads((folder / "config.json").read_text(encoding="utf-8")).get("_name_or_path")
    # A merged model has several.
    name = names[0] if names and isinstance(names, list) else names
    return name if isinstance(name, str) and is_hub_name(name) else None


def get_commit(folder: Path) -> str | None:
    """Return the commit of a folder in the Hub's cache, or None for any other folder."""
    return folder.name if is_cached(folder) else None


def _find_on_hub(name: str) -> Path:
    from huggingface_hub import constants

    repository_name, revision = split_revision(name)
    if not is_name(repository_name):
        raise ModelError(f"{name!r} is neither a directory nor the name of a model on the Hub", _list_folders(Path()))
    try:
        repository = get_repo_info("model", repository_name, revision)
    except UnavailableError as error:
        folder = cached_folder("model", repository_name, revision)
        if folder is None and expand_path(name).parent.is_dir() and "/" in name:
            message = f"no such directory: {name}; as a name on the Hub, {error.message}"
            raise ModelError(message, _list_folders(expand_path(name).parent)) from None
        if folder is None or not _is_complete(folder):
            location = "neither a directory nor in the cache" if folder is None else "only in part in the cache"
            remedy = _alternatives(name) if constants.is_offline_mode() else error.remedy
            raise UnavailableError(f"{name!r} is {location}, and {error.message}", remedy) from None
        if not is_offline_by_choice():
            log_once(f"{name} is read from the cache (commit {folder.name[:8]}): {error.message}")
        return folder
    return _fetch_model(repository)


def _fetch_model(repository: Repository) -> Path:
    """Fetch config and tokenizer of a model, and the weights that transformers would take, unless they are left out.

    Of a model of sentence-transformers, fetch the modules as well.
    """
    # 1. Settings and tokenizer, and the list of modules of a model of sentence-transformers.
    folder = fetch(repository, _list_settings(repository, ""))
    encoder, *modules = _modules(folder)
    if encoder:
        fetch(repository, _list_settings(repository, f"{encoder}/"))
    fetch(repository, [name for module in modules for name in _files_of_module(repository, module)])
    # 2. Weights: the first of the files that transformers would look for, and the shards that an index lists.
    weights = next((name for name in _weights_in(encoder) if name in repository.files), None)
    if weights is None:  # only a tokenizer, or weights that are not read
        write_ref(repository)
        return folder
    left_out = _LEFT_OUT.get()
    if left_out is not None and not (folder / weights).exists():
        shard = weights.replace(".safetensors.index.json", "-*.safetensors").replace(".bin.index.json", "-*.bin")
        parts = [about.get("size") or 0 for name, about in repository.files.items() if fnmatch(name, shard)]
        left_out[folder] = sum(parts)
        return folder
    fetch(repository, [weights])
    fetch(repository, [name for name in _shards(folder / weights, encoder) if name in repository.files])
    write_ref(repository)
    return folder


def _list_settings(repository: Repository, prefix: str) -> list[str]:
    """List the files in a folder of a repository that are read in addition to its weights."""
    names = [name.removeprefix(prefix) for name in repository.files if name.startswith(prefix)]
    return [
        f"{prefix}{name}" for name in names if "/" not in name and any(fnmatch(name, how) for how in _SETTINGS_FILES)
    ]


def _modules(folder: Path) -> list[str]:
    """List the folders of a model's modules, the encoder first; a plain model has only an encoder."""
    file = folder / "modules.json"
    if not file.exists():
        return [""]
    try:
        paths = [str(entry["path"]) for entry in json.loads(file.read_text(encoding="utf-8"))]
        # A router is one entry, and lists the modules itself; "." is the encoder.
        if (router := folder / "router_config.json").exists():
            paths = sorted(path.strip(".") for path in json.loads(router.read_text(encoding="utf-8"))["types"])
    except (ValueError, RecursionError, KeyError, TypeError):
        raise ModelError("not a list of modules", "name another model", file=file) from None
    return paths or [""]


def _files_of_module(repository: Repository, module: str) -> list[str]:
    """List the files of a module that follows the encoder: settings and weights, as safetensors if there are such."""
    names = [name for name in repository.files if module and name.startswith(f"{module}/")]
    endings = (".json", ".txt", ".model", ".safetensors")
    has_safetensors = any(name.endswith(".safetensors") for name in names)
    return [name for name in names if name.endswith(endings if has_safetensors else (*endings, ".bin"))]


def _weights_in(encoder: str) -> list[str]:
    return [f"{encoder}/{name}" if encoder else name for name in WEIGHTS]


def _is_complete(folder: Path) -> bool:
    """Return whether a folder of the cache has all files of a model that are read."""
    encoder, *_ = _modules(folder)
    weights = next((folder / name for name in _weights_in(encoder) if (folder / name).exists()), None)
    left_out = _LEFT_OUT.get()
    if weights is None and left_out is not None:
        left_out[folder] = 0  # unknown
        return True
    return weights is not None and all((folder / name).exists() for name in _shards(weights, encoder))


def _shards(file: Path, encoder: str) -> list[str]:
    """List the files of weights in an index, relative to the repository; empty if the file is not an index."""
    if file.suffix != ".json":
        return []
    try:
        names = sorted(set(json.loads(file.read_text(encoding="utf-8"))["weight_map"].values()))
        return [f"{encoder}/{name}" if encoder else name for name in names]
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        raise ModelError("not an index of weights", "name another checkpoint", file=file) from None


def _alternatives(name: str) -> str:
    """Describe what to do about a model that cannot be downloaded."""
    cached = cached_models()
    matches = did_you_mean(name, cached).rstrip("?") if cached else "the cache is empty"
    return (
        f"{matches}; or name a directory (with config.json, weights and tokenizer.json) or demo (comes with bertkit), "
        f"or `hf download {split_revision(name)[0]} --local-dir DIR` on a connected machine, then copy DIR here"
    )


def _list_folders(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder} does not exist either"
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    return f"folders in {folder.resolve()}: {', '.join(names[:12]) or 'none'}"


# --- Checksums, written with a run or a checkpoint, and compared before its model is used ---


RECIPE = "recipe.yaml"
_ONLY_TO_RESUME = ("optimizer", "scheduler", "scaler", "rng_state", "trainer_state", "training_args")
"""Starts of the names of a checkpoint's files that do not belong to the model."""
_SNAPSHOTS = "snapshots"
"""Folder of commits in the Hub's cache, which has some files of each."""


def check_model(folder: Path) -> None:
    """Check a model folder of bertkit against the checksums that were written with it; any other folder passes.

    A finished run has them in its record, also for the models in its subfolders, and a checkpoint in its manifest.

    Raises:
        ModelError: If a file is missing or has changed, or the run or the checkpoint is not finished.
    """
    real = folder.resolve()  # `.` has a folder above it too
    if is_exported(real):
        check_export(folder)
    elif (real / checkpoints.MANIFEST).is_file():
        _check_checkpoint(folder)
    elif (real / runs.RECORD).is_file():
        _check_run(folder)
    elif seeds := seed_folders(real):
        remedy = f"name one of its runs: {folder / seeds[0].name}"
        raise ModelError("a folder of seeds, not one model", remedy, file=folder)
    elif (real.parent / runs.RECORD).is_file():
        if real.name.startswith("checkpoint-"):
            raise ModelError("the checkpoint was not finished", "name another one of the run", file=folder)
        files = _read_record(real.parent).get("files", {})
        compare_files(folder, _directly_in(f"{real.name}/", files), f"restore it, or {_unchecked(real.parent)}")


def _check_checkpoint(folder: Path) -> None:
    files = checkpoints.read_manifest(folder)["files"]
    expected = {name: entry for name, entry in files.items() if not name.startswith(_ONLY_TO_RESUME)}
    compare_files(folder, expected, f"name another checkpoint, or remove {checkpoints.MANIFEST} to use it unchecked")


def _check_run(folder: Path) -> None:
    record = _read_record(folder)
    if record.get("status", "finished") != "finished":
        newest, _ = checkpoints.get_last_checkpoint(folder)
        remedy = "repeat the command that started it" + (f", or name its newest checkpoint: {newest}" if newest else "")
        raise ModelError(f"the run is not finished ({record['status']})", remedy, file=folder)
    expected = _directly_in("", record.get("files", {}))
    if folder.parent.name == _SNAPSHOTS or not (folder / RECIPE).exists():
        expected = {name: entry for name, entry in expected.items() if (folder / name).exists()}
    if not (folder / runs.TRAINING_ROWS).exists():  # it may be left out of what is published
        expected.pop(runs.TRAINING_ROWS, None)
    best = folder / (record.get("best_checkpoint") or "")
    instead = f"name {best} instead" if best != folder and best.is_dir() else "restore it"
    compare_files(folder, expected, f"{instead}, or {_unchecked(folder)}")


def _read_record(run: Path) -> RunRecord:
    try:
        return runs.read_record(run) or {}
    except ResourceError as error:
        raise ModelError(error.message, f"restore it, or {_unchecked(run)}", file=error.file) from None


def _unchecked(run: Path) -> str:
    return f"remove {run / runs.RECORD} to use the model unchecked"


def _directly_in(prefix: str, files: Mapping[str, Any]) -> dict[str, Any]:
    """Return the files of one folder, by their names there."""
    names = {name.removeprefix(prefix): entry for name, entry in files.items() if name.startswith(prefix)}
    return {name: entry for name, entry in names.items() if "/" not in name}


# --- The recipe that a trained model brings along ---


def find_recipe(folder: Path) -> Path | None:
    """Find the recipe of a run, of one of its checkpoints, or of the first finished run of several seeds.

    Returns:
        The file, or None for a model of another program.
    """
    folders = [folder]
    if folder.name.startswith("checkpoint-"):
        folders.append(folder.resolve().parent)
    elif is_seeds_folder(folder):
        folders += seed_folders(folder)
    return next((file for file in (holder / RECIPE for holder in folders) if file.is_file()), None)


def find_run(model: str) -> Path:
    """Return the folder of a run or of another model on disk, or of a model on the Hub.

    Raises:
        ModelError: If no such folder or model exists.
    """
    folder = expand_path(model)
    if folder.is_dir():
        return folder
    try:
        return find_model(model)
    except (ModelError, UnavailableError):
        remedy = "`bertkit runs list` shows the runs below runs/; a model on the Hub must be cached or reachable"
        raise ModelError(f"no such run: {model}", similar_path(folder) or remedy) from None


def is_hub_name(name: str) -> bool:
    """Return whether a name means a model on the Hub: ``org/name``, without a folder ``org`` on this machine."""
    repository, revision = split_revision(name)
    owner, slash, _ = repository.partition("/")
    is_path = name.startswith(("runs/", ".", "/", "~")) or name.endswith((".yaml", ".yml"))
    return bool(slash) and not is_path and (bool(revision) or not Path(owner).is_dir()) and is_name(repository)


def has_recipe(name: str) -> bool:
    """Return whether a name means a folder or a model on the Hub, which can have a recipe."""
    return expand_path(name).is_dir() or is_hub_name(name)


def get_recipe_file(model: str, remedy: str = "name a run folder, or add --recipe RECIPE") -> str:
    """Return the recipe of a trained model on disk or on the Hub.

    Raises:
        ModelError: If the model does not exist, or its run is not finished.
        UnavailableError: If the Hub does not give the model, and the cache does not have it.
        UsageError: If the model has no recipe; `remedy` explains how to name one.
    """
    folder = expand_path(model)
    if is_hub_name(model) and not folder.exists():
        folder = find_model(model)
    file = find_recipe(folder)
    if file is None:
        check_model(folder)
        raise UsageError(f"no {RECIPE} in the model folder, so its task is unknown", remedy, file=model)
    return str(file)

"""The recipe that a trained model brings along: in the folder of its run, of an export, or of several seeds."""

from __future__ import annotations

from pathlib import Path

from bertkit.errors import ModelError, UnavailableError, UsageError
from bertkit.recipe import typed_path
from bertkit.storage import hub
from bertkit.storage.checksums import check_model
from bertkit.storage.seeds import is_seeds_folder, seed_folders

RECIPE = "recipe.yaml"


def find_recipe(folder: Path) -> Path | None:
    """Find the recipe of a run, of one of its checkpoints, or of the first finished run of several seeds.

    Returns:
        its file; None for a model of another program.
    """
    folders = [folder]
    if folder.name.startswith("checkpoint-"):
        folders.append(folder.resolve().parent)
    elif is_seeds_folder(folder):
        folders += seed_folders(folder)
    return next((file for file in (holder / RECIPE for holder in folders) if file.is_file()), None)


def find_run(model: str) -> Path:
    """Return the folder of a run or of another model on disk, or of a model of the hub.

    Raises:
        ModelError: there is none.
    """
    folder = typed_path(model)
    if folder.is_dir():
        return folder
    try:
        return hub.find_model(model)
    except (ModelError, UnavailableError):
        remedy = "`bertkit runs list` shows those below runs/; a model of the hub must be in its cache or reachable"
        raise ModelError(f"no such run: {model}", remedy) from None


def names_hub_model(name: str) -> bool:
    """Tell whether a name is meant for a model of the hub: ``org/name``, where no folder ``org`` is here."""
    repository, revision = hub.split_revision(name)
    owner, slash, _ = repository.partition("/")
    is_path = name.startswith(("runs/", ".", "/", "~")) or name.endswith((".yaml", ".yml"))
    return bool(slash) and not is_path and (bool(revision) or not Path(owner).is_dir()) and hub.is_name(repository)


def brings_recipe(name: str) -> bool:
    """Tell whether a name is that of a folder, or is meant for a model of the hub: what may bring a recipe along."""
    return typed_path(name).is_dir() or names_hub_model(name)


def recipe_of(model: str, remedy: str = "name a run folder, or say --recipe RECIPE") -> str:
    """Return the recipe that a trained model on disk or of the hub brings along.

    Raises:
        ModelError: there is no such model, or its run is not finished.
        UnavailableError: a model that the hub does not give, and that is not in the cache.
        UsageError: it has none; the remedy says how to name one.
    """
    folder = typed_path(model)
    if names_hub_model(model) and not folder.exists():
        folder = hub.find_model(model)
    file = find_recipe(folder)
    if file is None:
        check_model(folder)
        raise UsageError(f"no {RECIPE} beside the model, so nothing says what it was trained for", remedy, file=model)
    return str(file)

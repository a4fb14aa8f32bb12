"""The models that a server is asked for: found by the names of their runs and checked before any is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bertkit.errors import ModelError, UsageError, shorten
from bertkit.evaluation.checkpoint import SavedCheckpoint, find_members
from bertkit.modeling.sentence.folder import DENSE, find_format
from bertkit.recipe.load import load_recipe, recipe_command
from bertkit.storage import hub, runs
from bertkit.storage.exports import is_exported
from bertkit.storage.hub.models import find_recipe, find_run


@dataclass(frozen=True)
class SavedModel:
    """A model on disk that can be served under a name; it predicts, makes vectors, or does both."""

    name: str
    folder: Path
    saved: SavedCheckpoint | None
    """What predicts; None for a folder of sentence-transformers that is no run."""
    has_vectors: bool
    """Whether it is an encoder of texts to one vector each."""


def find_models(names: Sequence[str], recipe: str | None = None) -> list[SavedModel]:
    """Find the models of runs, each given as ``RUN`` or ``NAME=RUN``.

    Args:
        names: folders of runs or of seeds, and model folders of other programs.
        recipe: how rows are read by model folders that are no runs; without it, these only make vectors.

    Raises:
        UsageError: two have one name, a name cannot be part of an address, or no model needs the recipe.
        ModelError: there is no such folder, or nothing in it that can be served.
    """
    models: list[SavedModel] = []
    for name in names:
        given, equals, path = name.partition("=")
        models.append(_find_model(path if equals else name, given if equals else None, recipe))
    if recipe is not None and all(find_recipe(model.folder) for model in models):
        what = f"--recipe {recipe}, and each of these models has a recipe of its own"
        raise UsageError(what, "leave --recipe out")
    for number, model in enumerate(models):
        if not model.name or not all(letter.isalnum() or letter in "-_." for letter in model.name):
            what = f"{model.name!r} is no name for a model: it is a part of addresses"
            raise UsageError(what, f"give one of letters, digits, '-', '_' and '.': NAME={model.folder}")
        twin = next((other for other in models[:number] if other.name == model.name), None)
        if twin is not None:
            what = f"two models are called {model.name!r}: {twin.folder} and {model.folder}"
            raise UsageError(what, f"name one of them: NAME={model.folder}")
    return models


def _find_model(path: str, name: str | None, recipe: str | None) -> SavedModel:
    folder = find_run(path)
    name = name or folder.resolve().name
    recipe_file = find_recipe(folder)
    if recipe_file is None:
        return _find_foreign(folder, path, name, recipe)
    if recipe_command(str(recipe_file)) == "pretrain":
        what = "a pretrained model has no answers to serve"
        raise ModelError(what, "fine-tune it first, or see `bertkit fill-mask`", file=folder)
    saved = find_members(load_recipe(str(recipe_file), {"model": str(folder)}))
    return SavedModel(name, folder, saved, _makes_vectors(saved.folder) and not saved.members)


def _find_foreign(folder: Path, path: str, name: str, recipe: str | None) -> SavedModel:
    has_vectors = _makes_vectors(folder)
    if not has_vectors and (names := runs.runs_in(folder)):
        what = f"a folder of runs and no run itself ({shorten(', '.join(names), 200)})"
        raise ModelError(what, f"name those to serve, e.g. {folder / names[0]}", file=folder)
    if recipe is None:
        if not has_vectors:
            what = "neither a run nor a model of sentence-transformers: nothing says how it reads rows"
            raise ModelError(what, "say so with --recipe, such as cola or rerank", file=folder)
        return SavedModel(name, hub.find_model(path), None, True)
    saved = find_members(load_recipe(recipe, {"model": path}))
    return SavedModel(name, saved.folder, saved, has_vectors)


def _makes_vectors(folder: Path) -> bool:
    """Tell whether a folder is an encoder of texts to one vector each, with its weights or its graph."""
    if find_format(folder) != DENSE:
        return False
    return is_exported(folder) or any(next(folder.rglob(name), None) for name in hub.WEIGHTS)

"""A recipe of several tasks: it names a recipe for each, and says how one encoder is trained on all of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field, field_validator

from bertkit.errors import RecipeError
from bertkit.recipe.load import find_recipe, load_recipe, load_record, read_values
from bertkit.recipe.records import Recipe
from bertkit.recipe.sections import Auto, Finite, FolderName, Location, Section
from bertkit.recipe.training import Training

MEAN = "mean"
"""The score that chooses the best step: the mean of the best metrics of all tasks."""

_OWN = ("max_length", "batching", "class_weights", "label_smoothing")
"""Keys of `training` that each task may have for itself."""


class SeveralRecipe(Section):
    """How one encoder is trained on several tasks, each with a head of its own."""

    name: FolderName
    about: str = ""
    model: Location = "google-bert/bert-base-uncased"
    tasks: dict[str, str]
    """Name of a task -> its recipe: a shipped one, or a file."""
    sampling: Finite = Field(1.0, ge=0, le=1)
    """A task has batches in proportion to its rows to this power: 0 is equally many."""
    data: dict[str, Any] = Field({})
    """Keys of `data` for all tasks, over those of their recipes."""
    training: Training = Training()

    @field_validator("tasks")
    @classmethod
    def _names_are_of_folders(cls, tasks: dict[str, str]) -> dict[str, str]:
        if len(tasks) < 2:
            raise ValueError("must name two tasks at least")
        for name in tasks:
            if not re.fullmatch(r"[A-Za-z]\w*", name) or name in (*cls.model_fields, MEAN):
                raise ValueError(f"the name of a task must be a word and no key of this recipe, and {name!r} is not")
        return tasks


@dataclass(frozen=True)
class SeveralTasks:
    """A recipe of several tasks, and the whole recipe of each: with the model and the training of all."""

    recipe: SeveralRecipe
    recipes: dict[str, Recipe]


def load_one_or_several(name: str, changes: Mapping[str, Any]) -> Recipe | SeveralTasks:
    """Load a recipe, of one task or of several, with changes; raises as `load_recipe` does."""
    return load_several(name, changes) if names_several(name) else load_recipe(name, changes)


def names_several(name: str) -> bool:
    """Tell whether a recipe is one of several tasks; raises what `load_recipe` does of files."""
    return "tasks" in read_values(name)


def load_several(name: str, changes: Mapping[str, Any] | None = None) -> SeveralTasks:
    """Load a recipe of several tasks with changes (dotted key -> value).

    Changes of `data` are those of all tasks. A change that begins with the name of a task is one of its recipe.

    Raises:
        RecipeError: as `load_recipe` does; or a task asks for what cannot be trained together with others.
    """
    changes = changes or {}
    tasks = read_values(name, "finetune").get("tasks")
    names = tasks if isinstance(tasks, dict) else {}
    shared = {key: value for key, value in changes.items() if key.split(".")[0] not in ("data", *names)}
    recipe = load_record("finetune", SeveralRecipe, name, shared)
    data = {f"data.{key}": value for key, value in recipe.data.items()}
    data |= {key: value for key, value in changes.items() if key.split(".")[0] == "data"}
    folder = find_recipe(name, "finetune").parent
    recipes = {}
    for task, reference in recipe.tasks.items():
        beside = folder / reference
        changes_of_task = {key.partition(".")[2]: value for key, value in changes.items() if key.split(".")[0] == task}
        _check_own(task, changes_of_task)
        file = str(beside) if beside.suffix in (".yaml", ".yml") and beside.is_file() else reference
        loaded = load_recipe(file, {"name": task, "model": recipe.model, **data, **changes_of_task})
        recipes[task] = _with_training_of_all(loaded, recipe.training, changes_of_task)
        _check_recipe(task, recipes[task])
    return SeveralTasks(recipe, recipes)


def _check_own(task: str, changes: Mapping[str, Any]) -> None:
    """Check that a task changes nothing that all tasks have in common."""
    for key in changes:
        section, _, name = key.partition(".")
        if section == "model" or (section == "training" and name not in _OWN):
            raise RecipeError(f"{task}.{key}: all tasks share it", f"--set {key}=... changes it for all")


def _with_training_of_all(recipe: Recipe, training: Training, own: Mapping[str, Any]) -> Recipe:
    """Return a task's recipe with the training of all tasks, but for what it may have for itself."""
    given = training.model_fields_set
    kept = {key: getattr(recipe.training, key) for key in _OWN if key not in given or f"training.{key}" in own}
    # the last layer is shared by heads that read other tokens than the first
    return recipe.model_copy(update={"training": training}).changed("training", **kept, cls_only_last_layer=False)


def _check_recipe(task: str, recipe: Recipe) -> None:
    together = "cannot be trained together with other tasks"
    if recipe.distillation:
        raise RecipeError(f"tasks.{task}: distillation {together}", "leave it out")
    if recipe.data.streaming:
        raise RecipeError(f"tasks.{task}: streamed rows {together}", "leave data.streaming out")
    if isinstance(recipe.training.epochs, Auto) or isinstance(recipe.training.learning_rate, Auto):
        raise RecipeError("training: auto is for one task at a time", "give training.epochs and training.learning_rate")
    if recipe.training.lora is not None:
        raise RecipeError("training.lora: adapters are trained for one task at a time", "leave it out")

"""A recipe: which model to train, on which data, with which settings, and how to score it."""

from bertkit.recipe.load import (
    assignment,
    find_recipe,
    load_any_recipe,
    load_pretrain_recipe,
    load_recipe,
    parse_changes,
    recipe_command,
    recipe_folder,
    recipe_names,
)
from bertkit.recipe.paths import typed_path
from bertkit.recipe.pretraining import Corpus, Pretraining, PretrainRecipe
from bertkit.recipe.records import (
    WHAT_IS_KEPT,
    CommonTraining,
    Data,
    Distillation,
    LayerMap,
    Published,
    Recipe,
    Training,
)
from bertkit.recipe.sections import Row, Section
from bertkit.recipe.several import SeveralRecipe, SeveralTasks, load_several, names_several
from bertkit.recipe.student_layers import read_layers
from bertkit.recipe.yaml import read_yaml, write_yaml

__all__ = [
    "WHAT_IS_KEPT",
    "CommonTraining",
    "Corpus",
    "Data",
    "Distillation",
    "LayerMap",
    "PretrainRecipe",
    "Pretraining",
    "Published",
    "Recipe",
    "Row",
    "Section",
    "SeveralRecipe",
    "SeveralTasks",
    "Training",
    "assignment",
    "find_recipe",
    "load_any_recipe",
    "load_pretrain_recipe",
    "load_recipe",
    "load_several",
    "names_several",
    "parse_changes",
    "read_layers",
    "read_yaml",
    "recipe_command",
    "recipe_folder",
    "recipe_names",
    "typed_path",
    "write_yaml",
]

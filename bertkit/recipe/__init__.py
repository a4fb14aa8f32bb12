"""A recipe: what to train on what, with which settings, scored how."""

from bertkit.recipe.load import (
    assignment,
    find_recipe,
    load_any_recipe,
    load_pretrain_recipe,
    load_recipe,
    parse_changes,
    recipe_folder,
    recipe_kind,
    recipe_names,
)
from bertkit.recipe.pretraining import Corpus, Pretraining, PretrainRecipe
from bertkit.recipe.records import (
    CommonTraining,
    Data,
    Distillation,
    LayerMap,
    Published,
    Recipe,
    Row,
    Section,
    Training,
    read_layers,
)
from bertkit.recipe.yaml import read_yaml, write_yaml

__all__ = [
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
    "Training",
    "assignment",
    "find_recipe",
    "load_any_recipe",
    "load_pretrain_recipe",
    "load_recipe",
    "parse_changes",
    "read_layers",
    "read_yaml",
    "recipe_folder",
    "recipe_kind",
    "recipe_names",
    "write_yaml",
]

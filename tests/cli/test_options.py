"""The options that commands share, and the recipe that they make."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertkit.cli.completion import complete_recipe
from bertkit.cli.options import common_settings, find_trained, load, merge_changes, zero_shot_task
from bertkit.errors import RecipeError, UsageError
from bertkit.recipe import load_pretrain_recipe

OWN = """extends: classify
data: {source: mine, files: {train: a.csv}}
"""


def test_recipes_are_completed_by_their_first_letters():
    assert complete_recipe("sq") == ["squad", "squad2"]
    assert complete_recipe("nothing") == []


def test_an_option_that_is_left_out_keeps_the_value_of_the_recipe():
    settings = common_settings(None, 10, None, 1e-3, None, None, None)
    recipe = load("cola", settings, None)
    assert (recipe.data.source, recipe.data.limit) == ("nyu-mll/glue", 10)
    assert (recipe.training.epochs, recipe.training.learning_rate) == (3, 1e-3)


def test_set_wins_over_an_option():
    settings = common_settings(None, None, 2.0, None, None, None, None)
    assert load("cola", settings, ["training.epochs=5"]).training.epochs == 5


def test_another_source_drops_the_files_of_the_recipe(here):
    Path("own.yaml").write_text(OWN)
    assert load("own.yaml", {"data.source": None}, None).data.files == {"train": "a.csv"}
    assert load("own.yaml", {"data.source": "other"}, None).data.files == {}
    assert load("own.yaml", {"data.source": "other"}, ["data.files.test=b.csv"]).data.files == {"test": "b.csv"}


def test_another_text_drops_the_config_of_the_recipe():
    assert load_pretrain_recipe("mlm").data.config == "wikitext-103-raw-v1"
    data = load_pretrain_recipe("mlm", merge_changes({"data.source": "text.txt"}, None)).data
    assert (data.config, data.documents) == (None, "auto")


def test_epochs_replace_the_steps_of_a_pretraining_recipe():
    assert load_pretrain_recipe("mlm").training.steps == 100_000
    training = load_pretrain_recipe("mlm", merge_changes({"training.epochs": 2}, None)).training
    assert (training.steps, training.epochs) == (None, 2)


def test_an_unknown_recipe_is_refused():
    with pytest.raises(RecipeError, match="colla"):
        load("colla", {}, None)


def test_a_run_brings_its_recipe_and_a_recipe_needs_a_checkpoint(here):
    for folder in ("runs/mine", "cola"):
        Path(folder).mkdir(parents=True)
        Path(folder, "recipe.yaml").write_text("extends: classify\n")
    assert find_trained("runs/mine", None) == ("runs/mine/recipe.yaml", "runs/mine")
    assert find_trained("runs/mine/recipe.yaml", "demo") == ("runs/mine/recipe.yaml", "demo")
    assert find_trained("cola", "demo") == ("cola", "demo")  # the shipped recipe, not the folder
    assert find_trained("./cola", None) == ("cola/recipe.yaml", "./cola")
    with pytest.raises(UsageError, match="cola is a recipe, which has no checkpoint - add --model RUN"):
        find_trained("cola", None)
    with pytest.raises(
        UsageError, match=r"runs/mine is a run, and --model demo is another checkpoint - leave --model "
    ):
        find_trained("runs/mine", "demo")
    with pytest.raises(UsageError, match=r"no recipe.yaml .* \(runs\) - name the recipe, .*: RECIPE --model runs"):
        find_trained("runs", None)


def test_labels_are_described_only_for_a_recipe_that_classifies_texts():
    assert zero_shot_task("sst2") == zero_shot_task("mnli") == "zero_shot"
    with pytest.raises(UsageError, match="--zero-shot with squad, whose task family is question_answering - name a re"):
        zero_shot_task("squad")

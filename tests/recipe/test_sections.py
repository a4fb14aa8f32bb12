"""Sections of a recipe: which values their keys take, and which of them go together."""

from __future__ import annotations

import pytest
from pydantic import Field, ValidationError

from bertkit.errors import RecipeError
from bertkit.recipe import PretrainingConfig, load_pretrain_recipe, load_recipe, recipe_names
from bertkit.recipe.sections import ConfigSection, Finite, FolderName


class Oven(ConfigSection):
    heat: Finite = 1.0
    name: FolderName = "oven"
    rows: int = Field(1, ge=1)


@pytest.mark.parametrize("values", [{"heat": "inf"}, {"name": "a/b"}, {"name": ".."}, {"cold": 1}])
def test_odd_values_and_unknown_keys_are_refused(values):
    with pytest.raises(ValidationError):
        Oven(**values)


def test_a_section_cannot_be_changed():
    with pytest.raises(ValidationError):
        Oven().rows = 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"freeze": 0}, "training.freeze = 0 is wrong: must be `embeddings`, `encoder`, or a number of layers of"),
        ({"freeze": "pooler"}, "training.freeze = 'pooler' is wrong: must be 'embeddings' or 'encoder' or an integer"),
        ({"head_only_epochs": 3}, "must be less than training.epochs (3); `freeze: encoder` trains only the head"),
        ({"gradual_unfreezing": 0}, "training.gradual_unfreezing = 0 is wrong: must be `epoch` or a number of steps"),
        (
            {"layerwise_lr_decay": 2},
            "training.layerwise_lr_decay = 2 is out of range - give a number above 0 and at most 1",
        ),
        (
            {"freeze": "encoder", "head_only_epochs": 1},
            "does not go with training.freeze = encoder: leave one of them out",
        ),
        ({"freeze": "encoder", "gradual_unfreezing": 5}, "does not go with training.freeze = encoder"),
        ({"freeze": "encoder", "layerwise_lr_decay": 0.9}, "does not go with training.freeze = encoder"),
        ({"freeze": "encoder", "reinit_layers": 1}, "does not go with training.freeze = encoder"),
        ({"freeze": "encoder", "lora": {}}, "does not go with training.freeze = encoder"),
        ({"reinit_layers": 1, "lora": {"rank": 4}}, "does not go with training.reinit_layers"),
        ({"lora": {"targets": []}}, "training.lora.targets = [] is wrong: must name at least one"),
        ({"lora": {"rang": 4}}, "unknown key 'training.lora.rang'"),
    ],
)
def test_values_that_do_not_fit_are_one_line(changes, message):
    with pytest.raises(RecipeError) as error:
        load_recipe("cola", {f"training.{key}": value for key, value in changes.items()})
    assert message in str(error.value)


def test_a_pooler_alone_and_epochs_of_the_head_in_a_run_by_steps_are_fine():
    recipe = load_recipe("cola", {"training.freeze": "encoder", "training.reinit_layers": 0})
    assert recipe.training.reinit_layers == 0
    assert load_recipe("cola", {"training.head_only_epochs": 9, "training.steps": 500}).training.head_only_epochs == 9


@pytest.mark.parametrize("name", recipe_names("pretrain"))
def test_every_shipped_recipe_loads_and_says_what_it_is(name):
    assert load_pretrain_recipe(name).about


@pytest.mark.parametrize(("budget", "seconds"), [("90s", 90), ("1.5m", 90), ("2h", 7200), ("1d", 86400), (None, None)])
def test_a_budget_is_a_time(budget, seconds):
    assert PretrainingConfig(budget=budget).budget_seconds == seconds


@pytest.mark.parametrize("budget", ["90", "2 h", "h", "-1h", "1w", ""])
def test_anything_else_is_no_budget(budget):
    with pytest.raises(ValidationError, match="must be a time such as 90s, 30m, 2h or 1d"):
        PretrainingConfig(budget=budget)


def test_a_short_block_is_shorter_than_the_long_one():
    assert PretrainingConfig(max_length=512, short_length=128).short_length == 128
    with pytest.raises(ValidationError, match=r"must be less than training.max_length \(128\)"):
        PretrainingConfig(max_length=128, short_length=128)


def test_roberta_is_trained_as_in_its_paper():
    recipe = load_pretrain_recipe("roberta")
    training = recipe.training
    assert (recipe.objective, recipe.size, training.max_length, training.steps) == ("mlm", "roberta-base", 512, 500_000)
    assert (training.batch_size, training.learning_rate, training.weight_decay) == (8192, 6e-4, 0.01)
    assert training.batch_size % training.gradient_accumulation == 0 < training.gradient_accumulation
    assert training.warmup_ratio * training.steps == 24_000
    smaller = load_pretrain_recipe("roberta", {"training.batch_size": 96}).training
    assert 96 % smaller.gradient_accumulation == 0

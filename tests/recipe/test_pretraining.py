"""Sections of a pretraining recipe."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from bertkit.recipe import Pretraining, load_pretrain_recipe, recipe_names


@pytest.mark.parametrize("name", recipe_names("pretrain"))
def test_every_shipped_recipe_loads_and_says_what_it_is(name):
    assert load_pretrain_recipe(name).about


@pytest.mark.parametrize(("budget", "seconds"), [("90s", 90), ("1.5m", 90), ("2h", 7200), ("1d", 86400), (None, None)])
def test_a_budget_is_a_time(budget, seconds):
    assert Pretraining(budget=budget).budget_seconds == seconds


@pytest.mark.parametrize("budget", ["90", "2 h", "h", "-1h", "1w", ""])
def test_anything_else_is_no_budget(budget):
    with pytest.raises(ValidationError, match="must be a time such as 90s, 30m, 2h or 1d"):
        Pretraining(budget=budget)


def test_a_short_block_is_shorter_than_the_long_one():
    assert Pretraining(max_length=512, short_length=128).short_length == 128
    with pytest.raises(ValidationError, match=r"must be less than training.max_length \(128\)"):
        Pretraining(max_length=128, short_length=128)


def test_roberta_is_trained_as_in_its_paper():
    recipe = load_pretrain_recipe("roberta")
    training = recipe.training
    assert (recipe.objective, recipe.size, training.max_length, training.steps) == ("mlm", "roberta-base", 512, 500_000)
    assert (training.batch_size, training.learning_rate, training.weight_decay) == (8192, 6e-4, 0.01)
    assert training.batch_size % training.gradient_accumulation == 0 < training.gradient_accumulation
    assert training.warmup_ratio * training.steps == 24_000
    smaller = load_pretrain_recipe("roberta", {"training.batch_size": 96}).training
    assert 96 % smaller.gradient_accumulation == 0

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

"""Layers by number: spread evenly, matched, and refused where they are not there."""

from __future__ import annotations

import pytest

from bertkit.errors import RecipeError
from bertkit.modeling.layers import LAYER_CHOICES, check_layers, layers_to_take, match_layers
from bertkit.recipe import TrainingConfig


@pytest.mark.parametrize(("choice", "layers"), [(6, [0, 2, 4, 6, 8, 10]), (1, [0]), (12, list(range(12))), ([3], [3])])
def test_a_number_of_layers_is_spread_and_a_list_is_taken_as_it_is(choice, layers):
    assert layers_to_take(choice, 12) == layers


@pytest.mark.parametrize("choice", [13, [0, 12]])
def test_layers_that_a_teacher_does_not_have(choice):
    with pytest.raises(RecipeError, match="the first teacher has 12 layers - number them from 0 to 11"):
        layers_to_take(choice, 12)


def test_layers_are_matched_as_in_tinybert_or_as_a_recipe_says():
    assert match_layers("uniform", 4, 12) == {0: 2, 1: 5, 2: 8, 3: 11}
    assert match_layers("uniform", 3, 2) == {0: 0, 1: 0, 2: 1}
    assert match_layers("last", 4, 12) == {3: 11}
    assert match_layers({0: 7}, 4, 12) == {0: 7}


@pytest.mark.parametrize("layer_map", [{4: 0}, {0: 12}, {-1: 0}])
def test_layers_that_cannot_be_matched(layer_map):
    with pytest.raises(RecipeError, match="they have 4 and 12 layers"):
        match_layers(layer_map, 4, 12)


@pytest.mark.parametrize(
    ("name", "numbers"), [("embeddings", [0]), ("last", [4]), ("second_to_last", [3]), ("weighted_sum", [1, 2, 3, 4])]
)
def test_choices_of_hidden_states(name, numbers):
    assert list(range(5))[LAYER_CHOICES[name].states] == numbers


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"freeze": 6},
            "training.freeze 6: this model has 6 layers - choose fewer, or `encoder`, which trains only the head",
        ),
        ({"reinit_layers": 7}, "training.reinit_layers 7: this model has 6 layers - choose fewer"),
        ({"freeze": 4, "reinit_layers": 3}, "training.reinit_layers 3: with training.freeze 4, new layers would never"),
    ],
)
def test_layers_that_a_model_does_not_have_are_refused(settings, message):
    with pytest.raises(RecipeError) as error:
        check_layers(TrainingConfig(**settings), 6)
    assert str(error.value).startswith(message)
    check_layers(TrainingConfig(freeze=4, reinit_layers=2), 6)

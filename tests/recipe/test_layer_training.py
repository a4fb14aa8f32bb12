"""Keys that tell embeddings, layers and head apart: which values they take, and which of them go together."""

from __future__ import annotations

import pytest

from bertkit.errors import RecipeError
from bertkit.recipe import load_recipe


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"freeze": 0}, "training.freeze = 0 is wrong: must be `embeddings`, `encoder`, or a number of layers of"),
        ({"freeze": "pooler"}, "training.freeze = 'pooler' is wrong: must be 'embeddings' or 'encoder' or a whole"),
        ({"head_only_epochs": 3}, "must be less than training.epochs (3); `freeze: encoder` trains the head alone"),
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

"""What a recipe says of a model's layers, where the model does not have them."""

from __future__ import annotations

import pytest
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from bertkit.errors import RecipeError
from bertkit.modeling.depths import configure_layers
from bertkit.recipe import TrainingConfig
from tests.modeling.tiny_models import make_tiny

TEXTS, TOKENS = AutoModelForSequenceClassification, AutoModelForTokenClassification


@pytest.mark.parametrize(
    ("model_type", "training", "message"),
    [
        ("bert", {"freeze": 2}, "training.freeze 2: this model has 2 layers - choose fewer, or `encoder`, which"),
        ("albert", {"freeze": 1}, "training.freeze 1: the layers of this albert model share their weights"),
        ("bert", {"reinit_layers": 3}, "training.reinit_layers 3: this model has 2 layers - choose fewer"),
        ("albert", {"reinit_layers": 2}, "training.reinit_layers 2: the layers of this albert model share their"),
        ("roberta", {"reinit_layers": 0}, "training.reinit_layers 0: this roberta model has no pooler - leave it out"),
    ],
)
def test_layers_that_a_model_does_not_have_are_refused(model_type, training, message):
    with pytest.raises(RecipeError) as error:
        configure_layers(make_tiny(model_type, TEXTS), TrainingConfig(**training))
    assert str(error.value).startswith(message)


def test_new_layers_below_frozen_ones_are_refused():
    with pytest.raises(RecipeError, match="would never be trained"):
        configure_layers(make_tiny("bert", TEXTS), TrainingConfig(freeze=1, reinit_layers=2))


def test_keys_without_effect_are_refused_where_the_encoder_is_frozen_anyway():
    model = make_tiny("bert", TOKENS)
    model.base_model.requires_grad_(False)
    with pytest.raises(RecipeError) as error:
        configure_layers(model, TrainingConfig(layerwise_lr_decay=0.9))
    assert str(error.value) == "training.layerwise_lr_decay: this recipe does not train the encoder - leave it out"
    configure_layers(model, TrainingConfig())

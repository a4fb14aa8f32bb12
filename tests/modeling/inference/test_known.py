"""Names and shapes of weights are those of transformers' encoders."""

from __future__ import annotations

import pytest
from transformers import AutoModel

from bertkit.modeling.architectures import ARCHITECTURES
from bertkit.modeling.inference.known import encoder_shapes, has_known_encoder
from tests.modeling.tiny_models import make_tiny


@pytest.mark.parametrize("model_type", [name for name, architecture in ARCHITECTURES.items() if architecture.prefix])
def test_weights_have_the_names_and_shapes_of_the_encoder(model_type):
    model = make_tiny(model_type, AutoModel)
    assert has_known_encoder(model.config)
    expected = {name: tuple(weight.shape) for name, weight in model.state_dict().items() if "pooler" not in name}
    assert encoder_shapes(model.config) == expected


@pytest.mark.parametrize(
    ("model_type", "change"),
    [
        ("mpnet", {}),
        ("bert", {"hidden_act": "relu"}),
        ("bert", {"is_decoder": True}),
        ("roberta", {"return_dict": False}),
    ],
)
def test_another_type_or_setting_is_not_known(model_type, change):
    config = make_tiny(model_type, AutoModel).config
    for name, value in change.items():
        setattr(config, name, value)
    assert not has_known_encoder(config)

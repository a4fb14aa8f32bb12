"""Where padding is computed, and why."""

from __future__ import annotations

import pytest
from transformers import AutoConfig, AutoModelForTokenClassification

from bertkit.hardware.precision import Machine
from bertkit.modeling.architectures import layers_of
from bertkit.modeling.dropout import DropoutStream
from bertkit.modeling.info import set_tagger_head
from bertkit.recipe import Training
from bertkit.training.arguments import on_speed_paths, why_padded


@pytest.fixture
def model():
    sizes = {"vocab_size": 9, "hidden_size": 8, "intermediate_size": 8}
    layers = {"num_hidden_layers": 1, "num_attention_heads": 1}
    return AutoModelForTokenClassification.from_config(AutoConfig.for_model("bert", **sizes, **layers))


@pytest.mark.parametrize(
    ("device", "settings", "why"),
    [
        ("cpu", {}, None),
        ("cuda", {}, "a GPU computes padding"),
        ("cuda", {"unpad": True}, "variable-length attention is not computed in fp32"),
        (
            "cuda",
            {"unpad": True, "gradient_checkpointing": True},
            "padding is computed with gradient_checkpointing: true",
        ),
        ("cpu", {"unpad": False}, "padding is computed with unpad: false"),
        ("cpu", {"unpad": True}, None),
        ("cpu", {"gradient_checkpointing": True}, "padding is computed with gradient_checkpointing: true"),
        ("cpu", {"torch_compile": True}, "padding is computed with torch_compile: true"),
    ],
)
def test_why_padded(model, monkeypatch, device, settings, why):
    monkeypatch.setattr("torch.compile", lambda forward: forward)
    training, machine = Training(**settings), Machine(device, "fp32", 1, "")
    with on_speed_paths(model, training, machine, DropoutStream(1), None):
        assert why_padded(model, training, machine) == why


def test_padding_is_computed_where_the_layers_of_a_model_are_read(model):
    training, machine = Training(), Machine("cpu", "fp32", 1, "")
    layers_of(model)[0].register_forward_hook(lambda *_: None)
    with on_speed_paths(model, training, machine, DropoutStream(1), None):
        assert why_padded(model, training, machine) == "padding is computed in this bert model"


def test_a_frozen_encoder_computes_no_padding_while_its_tagger_is_trained(model):
    set_tagger_head(model.config, {"layers": "last", "tagger": "linear", "size": 0})
    assert why_padded(model, Training(unpad=False), Machine("cuda", "fp32", 1, "")) is None

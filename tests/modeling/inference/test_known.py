"""Configs are read, and weights have names and shapes, as transformers' encoders have them."""

from __future__ import annotations

import json

import pytest
from transformers import AutoModel
from transformers.models.auto import modeling_auto

from bertkit.modeling.architectures import ARCHITECTURES
from bertkit.modeling.checkpoint import load_config
from bertkit.modeling.inference.known import encoder_shapes, has_known_encoder, read_known_config
from tests.modeling.tiny_models import make_tiny

KNOWN = [name for name, architecture in ARCHITECTURES.items() if architecture.prefix]


@pytest.mark.parametrize("model_type", KNOWN)
def test_a_config_is_read_as_transformers_reads_it_or_left_to_it(model_type, tmp_path):
    make_tiny(model_type, AutoModel).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    content = json.loads(file.read_text())
    theirs, left = load_config(tmp_path), set()
    for key in content:
        file.write_text(json.dumps({name: value for name, value in content.items() if name != key}))
        if key == "model_type":
            continue
        ours = read_known_config(tmp_path)
        if ours is None:
            left.add(key)
            continue
        # what may be missing changes nothing
        assert encoder_shapes(ours) == encoder_shapes(theirs)
        assert has_known_encoder(ours)
        for name in ("num_attention_heads", "num_hidden_layers", "pad_token_id", "problem_type"):
            assert getattr(ours, name) == getattr(theirs, name)
        assert getattr(ours, "layer_norm_eps", 1e-12) == getattr(theirs, "layer_norm_eps", 1e-12)
    assert {"vocab_size", "pad_token_id", "max_position_embeddings"} < left
    for key in left:
        file.write_text(json.dumps({**content, key: str(content[key])}))
        assert read_known_config(tmp_path) is None


@pytest.mark.parametrize("model_type", KNOWN)
def test_classes_have_transformers_names(model_type):
    names = modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
    assert names[model_type] == f"{ARCHITECTURES[model_type].classes}ForSequenceClassification"


@pytest.mark.parametrize("model_type", KNOWN)
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

"""The record of a model object: found through wrappers, never saved, and heads in configs under their old name."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import torch
from torch import nn
from transformers import AutoModel, BertConfig

from bertkit.modeling.info import (
    LoadingInfo,
    attention_can_split_rows,
    get_loading_info,
    get_tagger_head,
    has_patched_attention,
    patch_attention,
    patch_forward,
    set_tagger_head,
)
from tests.modeling.tiny_models import make_tiny, make_tiny_batch


def test_a_record_is_made_once_and_found_through_a_wrapper():
    model = make_tiny("bert", AutoModel)
    model.loading_info = LoadingInfo(("head",))
    for same in (model, SimpleNamespace(module=model), copy.copy(model)):
        assert get_loading_info(same).new_weights == ("head",)
    assert get_loading_info(make_tiny("bert", AutoModel)) == LoadingInfo()


def test_a_tagger_head_is_in_config_json_under_the_name_that_published_models_have():
    config, head = BertConfig(), {"layers": "last", "tagger": "linear", "size": 0}
    assert get_tagger_head(config) is None
    set_tagger_head(config, head)
    assert config.to_dict()["bertkit_head"] == head
    assert get_tagger_head(config) == get_tagger_head(config.to_dict()) == head
    set_tagger_head(config, None)
    assert "bertkit_head" not in config.to_dict()


def test_patched_attention_is_known_and_undone_even_after_an_error():
    model, calls = make_tiny("bert", AutoModel), []

    def attend(module, query, key, value, mask, **_):
        calls.append(mask.shape)
        return torch.zeros_like(query).transpose(1, 2), None

    assert attention_can_split_rows(model)
    try:
        with patch_attention(model, "bertkit-test", attend, can_split_rows=False):
            assert has_patched_attention(model)
            assert not attention_can_split_rows(model)
            model(**make_tiny_batch())
            raise KeyError
    except KeyError:
        pass
    assert len(calls) == 2
    assert calls[0][0] == 4
    assert model.config._attn_implementation == "sdpa"
    assert not has_patched_attention(model)


def test_eager_attention_is_not_split():
    assert not attention_can_split_rows(make_tiny("bert", AutoModel, attn_implementation="eager"))


def test_patched_forwards_are_undone_one_by_one():
    layer = nn.Linear(2, 2)
    x = torch.ones(1, 2)
    plain = layer(x)
    with patch_forward(layer, lambda _: "outer"):
        with patch_forward(layer, lambda _: "inner"):
            assert layer(x) == "inner"
        assert layer(x) == "outer"
    assert "forward" not in vars(layer)
    assert torch.equal(layer(x), plain)

"""Models with fewer layers, heads, neurons and tokens: config and weights fit, and the rest computes what it did."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForSequenceClassification

from bertkit.modeling.architectures import ARCHITECTURES, get_layers, list_types
from bertkit.modeling.students.narrow import (
    keep_heads,
    keep_layers,
    keep_neurons,
    keep_tokens,
    renumber_tokens,
    truncate_layers,
)
from bertkit.modeling.students.units import find_feed_forwards
from tests.kills import slow_unless
from tests.modeling.tiny_models import make_tiny, make_tiny_batch

QUICK = ("albert", "distilbert", "modernbert", "roberta")
walk = pytest.mark.parametrize("model_type", slow_unless(QUICK, ARCHITECTURES))


def build_again(model):
    """Build what a loader builds from the config, with the weights."""
    config = type(model.config).from_dict(model.config.to_dict())
    again = type(model)(config).eval()
    again.load_state_dict(model.state_dict())
    return again


def make(model_type, auto_class=AutoModelForSequenceClassification, **options):
    return make_tiny(model_type, auto_class, **options).eval()


@walk
def test_neurons_that_are_left_out_contribute_nothing(model_type):
    model, batch = make(model_type), make_tiny_batch()
    kept = [[0, 3, 4, 11, 20], [1, 2, 3, 22, 23]][: len(find_feed_forwards(model))]
    with torch.no_grad():
        for feed_forward, numbers in zip(find_feed_forwards(model), kept, strict=True):
            gone = [number for number in range(24) if number not in numbers]
            feed_forward.narrow.weight[:, gone] = 0
    expected = model(**batch).logits
    keep_neurons(model, kept)
    assert torch.allclose(build_again(model)(**batch).logits, expected, atol=1e-6)


@walk
def test_layers_that_are_left_out_are_skipped(model_type):
    model, batch = make(model_type), make_tiny_batch()
    plain = model(**batch).logits
    if layers := get_layers(model):
        handle = layers[1].register_forward_hook(
            lambda _, inputs, output: (inputs[0], *output[1:]) if isinstance(output, tuple) else inputs[0]
        )
        expected = model(**batch).logits
        handle.remove()
    with truncate_layers(model, [0]):
        shorter = model(**batch).logits
    assert torch.equal(model(**batch).logits, plain)
    keep_layers(model, [0])
    again = build_again(model)
    assert torch.equal(again(**batch).logits, shorter)
    if layers:
        assert torch.allclose(shorter, expected, atol=1e-6)
    else:  # ALBERT's, whose layers are one
        assert again.config.num_hidden_layers == 1


def test_types_of_layers_stay_with_their_layers():
    model = make("ultrabert")
    with truncate_layers(model, [1]):
        assert model.config.layer_types == ["full_attention"]
    assert model.config.layer_types == ["sliding_attention", "full_attention"]


@pytest.mark.parametrize("model_type", slow_unless(("eurobert",), list_types("stores_head_size")))
def test_heads_that_are_left_out_contribute_nothing(model_type):
    shared = {"num_key_value_heads": 2} if model_type in ("eurobert", "ultrabert") else {}
    model, batch = make(model_type, config={"num_attention_heads": 4, **shared}), make_tiny_batch()
    kept = [[0, 1], [2, 3]]
    with torch.no_grad():
        for layer, numbers in zip(get_layers(model), kept, strict=True):
            for head in {0, 1, 2, 3} - {*numbers}:
                layer.self_attn.o_proj.weight[:, head * 4 : head * 4 + 4] = 0
    expected = model(**batch).logits
    keep_heads(model, kept)
    again = build_again(model)
    assert again.config.num_attention_heads == 2 and again.config.head_dim == 4
    assert torch.allclose(again(**batch).logits, expected, atol=1e-6)


def test_a_special_token_that_no_tokenizer_has_bars_nothing():
    config = AutoConfig.for_model("eurobert", vocab_size=60, pad_token_id=0, eos_token_id=5)  # its mask is 128002
    renumber_tokens(config, [0, 1, 5, 6])
    assert (config.pad_token_id, config.eos_token_id, config.mask_token_id) == (0, 2, 4)


@pytest.mark.parametrize("model_type", slow_unless(("electra",), ARCHITECTURES))
def test_tokens_that_are_kept_have_the_logits_that_they_had(model_type):
    model, batch = make(model_type, AutoModelForMaskedLM), make_tiny_batch()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)  # also biases of tokens, which begin as zeros
    model.get_input_embeddings().weight.data[1] = 0
    kept = sorted({0, 1, 2, 3, 4, 59, *batch["input_ids"].flatten().tolist()})
    plain = model(**batch).logits
    keep_tokens(model, kept)
    numbers = torch.full((60,), -1)
    numbers[torch.tensor(kept)] = torch.arange(len(kept))
    logits = build_again(model)(**{**batch, "input_ids": numbers[batch["input_ids"]]}).logits
    assert model.config.vocab_size == len(kept) and model.config.pad_token_id == 1
    assert torch.allclose(logits, plain[..., kept], atol=1e-5)

"""Attention with relative positions: as transformers computes it, with and without padding, and near and far."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModel

from bertkit.modeling.unpadding.hooks import _multiply_distances, unpad_layers
from tests.modeling.tiny_models import make_tiny, make_tiny_batch


@pytest.mark.parametrize("length", [1, 5])
def test_tokens_are_multiplied_by_their_distances(length):
    states, distances = torch.randn(2, 3, length, 4), torch.randn(3, 2 * length, 4)
    found = _multiply_distances(states, distances)
    for i in range(length):
        for j in range(length):
            expected = (states[:, :, i] * distances[:, length - 1 - i + j]).sum(dim=-1)
            torch.testing.assert_close(found[:, :, i, j], expected)


@pytest.mark.parametrize("lengths", [(1, 1), (9, 9), (3, 30)])
@pytest.mark.parametrize(
    "options",
    [
        {"position_buckets": 8, "share_att_key": True, "norm_rel_ebd": "layer_norm", "position_biased_input": False},
        {"position_buckets": -1, "pos_att_type": ["p2c"]},
        {"max_relative_positions": 4, "pos_att_type": ["c2p"]},
        {"relative_attention": False, "pos_att_type": None},
    ],
)
def test_disentangled_attention_is_that_of_transformers(options, lengths):
    model, batch = make_tiny("deberta-v2", AutoModel, config=options), make_tiny_batch(lengths)
    real = batch["attention_mask"].bool()
    expected = model(**batch)[0][real]
    with unpad_layers(model):
        torch.testing.assert_close(model(**batch)[0][real], expected, rtol=0, atol=1e-6)


def test_evaluations_are_computed_by_transformers():
    model, batch = make_tiny("deberta-v2", AutoModel).eval(), make_tiny_batch()
    expected = model(**batch)[0]
    with unpad_layers(model):
        assert torch.equal(model(**batch)[0], expected)


def test_a_convolution_across_tokens_keeps_the_padding():
    model = make_tiny("deberta-v2", AutoModel, config={"conv_kernel_size": 3})
    with unpad_layers(model):
        assert "forward" not in vars(model.encoder.layer[0].attention.self)

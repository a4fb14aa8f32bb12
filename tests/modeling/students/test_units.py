"""The units of every architecture in the table: found layer by layer, masked alike, and given gradients row by row."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from bertkit.errors import ModelError
from bertkit.modeling.architectures import ARCHITECTURES
from bertkit.modeling.students.units import find_attention_outputs, find_feed_forwards, mask_units
from tests.kills import slow_unless
from tests.modeling.tiny_models import make_tiny, make_tiny_batch

QUICK = ("albert", "distilbert", "modernbert", "mpnet")


@pytest.mark.parametrize("model_type", slow_unless(QUICK, ARCHITECTURES))
def test_gradients_of_masks_are_those_of_the_states_row_by_row(model_type):
    model = make_tiny(model_type, AutoModelForSequenceClassification).eval()
    batch = {**make_tiny_batch(), "labels": torch.tensor([0, 1, 1, 0])}
    narrow = [feed_forward.narrow for feed_forward in find_feed_forwards(model)]
    outputs = find_attention_outputs(model)
    assert len(narrow) == len(outputs) == (1 if model_type == "albert" else 2)
    kept = {}

    def keep(layer, inputs):
        kept.setdefault(layer, []).append(inputs[0])
        inputs[0].retain_grad()

    handles = [layer.register_forward_pre_hook(keep) for layer in (*narrow, *outputs)]
    plain = model(**batch)
    plain.loss.backward()
    for handle in handles:
        handle.remove()
    layers, units = [*narrow, *outputs], [24] * len(narrow) + [2] * len(outputs)
    with mask_units(layers, units) as masks:
        masked = model(**batch)
        masked.loss.backward()
    assert torch.equal(masked.logits, plain.logits)
    for layer, count in zip(layers, units, strict=True):
        for mask, states in zip(masks[layer], kept[layer], strict=True):
            products = states * states.grad  # the gradient of a mask is their sum over tokens and the width of a unit
            expected = products.view(*products.shape[:-1], count, -1).sum(dim=(1, -1))
            assert torch.allclose(mask.grad.flatten(1), expected, atol=1e-7)


def test_other_layers_are_refused():
    model = SimpleNamespace(base_model=torch.nn.Linear(2, 2), config=SimpleNamespace(model_type="odd"))
    for find in (find_feed_forwards, find_attention_outputs):
        with pytest.raises(ModelError, match="of a odd model is not known"):
            find(model)

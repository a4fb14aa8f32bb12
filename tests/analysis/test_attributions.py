"""Integrated gradients and occlusion: against plain loops, on every architecture, and on a model known by heart."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoModel, AutoModelForSequenceClassification

from bertkit.analysis.attributions import ExplainedInput, integrated_gradients, occlusion
from bertkit.modeling.architectures import ARCHITECTURES
from tests.modeling.tiny_models import make_tiny

IDS, MASK, SPECIAL = [2, 7, 8, 9, 12, 3], 5, {1, 2, 3}


def collate(features):
    ids = torch.tensor([feature["input_ids"] for feature in features])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def first_logit(outputs):
    return outputs["logits"][:, 0]


def make_explained(model, score=first_logit, ids=IDS):
    positions = [(0, index) for index, token in enumerate(ids) if token not in SPECIAL]
    return ExplainedInput(model.eval(), {"input_ids": ids}, collate, score, MASK, positions)


def first_logit_of(model, ids):
    return model(input_ids=torch.tensor([ids])).logits[0, 0].item()


def make_sharp(model_type, auto_class):
    """Build a tiny model whose weights are large enough for its output to bend."""
    model = make_tiny(model_type, auto_class)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8)
    return model


def test_integrated_gradients_are_those_of_a_plain_loop():
    model = make_sharp("bert", AutoModelForSequenceClassification)
    found = integrated_gradients(make_explained(model), 512)
    embed = model.get_input_embeddings()
    own, baseline = embed(torch.tensor([IDS])).detach(), embed(torch.tensor([[2, MASK, MASK, MASK, MASK, 3]])).detach()
    shares = ((torch.arange(3000) + 0.5) / 3000)[:, None, None]
    points = (baseline + shares * (own - baseline)).requires_grad_()
    (gradients,) = torch.autograd.grad(model(inputs_embeds=points).logits[:, 0].sum(), points)
    expected = (gradients.mean(dim=0) * (own - baseline)[0]).sum(dim=-1)
    np.testing.assert_allclose(found.values[0], expected.numpy(), rtol=0.02, atol=1e-4 * expected.abs().max().item())
    assert found.score == pytest.approx(first_logit_of(model, IDS), rel=1e-4)
    assert found.is_complete
    assert found.values.sum() == pytest.approx(found.score - found.baseline_score, rel=0.01)


def test_occlusion_is_the_drop_with_the_baseline_in_place():
    model = make_sharp("bert", AutoModelForSequenceClassification)
    drops = occlusion(make_explained(model), [[(0, 1)], [(0, 2), (0, 3)]])
    others = ([2, MASK, 8, 9, 12, 3], [2, 7, MASK, MASK, 12, 3])
    whole, *parts = (first_logit_of(model, ids) for ids in (IDS, *others))
    np.testing.assert_allclose(drops, [whole - part for part in parts], rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_attributions_are_complete_on_every_architecture(model_type):
    model = make_sharp(model_type, AutoModel)
    found = integrated_gradients(make_explained(model, lambda outputs: outputs["last_hidden_state"][:, 0, 0]), 4096)
    assert found.is_complete, found.gap
    assert np.abs(found.values).max() > 0
    assert not found.values[0, [0, 5]].any()  # special tokens


class Squares(nn.Module):
    """Sums the squares of the embeddings, which are the ids."""

    device = torch.device("cpu")

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding.from_pretrained(torch.arange(20.0)[:, None])

    def get_input_embeddings(self):
        return self.embedding

    def forward(self, input_ids, attention_mask):
        return {"logits": self.embedding(input_ids).square().sum(dim=1)}


def test_a_sum_of_squares_is_shared_exactly_and_steps_are_not_doubled_in_vain():
    found = integrated_gradients(make_explained(Squares()), 512)
    np.testing.assert_allclose(found.values, [[0, 49 - 25, 64 - 25, 81 - 25, 144 - 25, 0]])
    assert (found.steps, found.is_complete) == (16, True)
    assert found.gap < 1e-6


def test_what_does_not_add_up_is_told():
    def jump(outputs):
        # the gradient of the slope is not that of the step
        values = outputs["logits"][:, 0]
        return values + ((values > 200).float() * 1000).detach()

    found = integrated_gradients(make_explained(Squares(), jump), 40)
    assert (found.steps, found.is_complete) == (40, False)
    assert found.gap == pytest.approx(1000 / (1000 + 338 - 100), rel=1e-6)


def test_nothing_to_explain_adds_up_to_nothing():
    found = integrated_gradients(make_explained(Squares(), ids=[2, 3]), 512)
    assert (found.gap, found.is_complete) == (0, True)

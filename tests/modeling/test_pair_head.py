"""Two heads at once: their losses are transformers' own, and scores are means over what was summed up."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import AutoModelForPreTraining

from bertkit.modeling.pair_head import accumulate_pairs, count_pairs, score_pairs, sum_pair_losses
from bertkit.tokens.features import IGNORED
from tests.modeling.tiny_models import make_tiny, make_tiny_batch


@pytest.fixture
def batch() -> dict[str, torch.Tensor]:
    batch = make_tiny_batch()
    labels = torch.full_like(batch["input_ids"], IGNORED)
    labels[:, 1] = batch["input_ids"][:, 1]
    return {**batch, "labels": labels, "pair_labels": torch.tensor([0, 1, 1, 0])}


@pytest.mark.parametrize("model_type", ["bert", "albert"])
def test_losses_are_those_of_transformers(model_type, batch):
    model = make_tiny(model_type, AutoModelForPreTraining).eval()
    masked, pairs = count_pairs(batch)
    assert (masked, pairs) == (4, 4)
    masked_loss, pair_loss = sum_pair_losses(model, batch)
    name = {"bert": "next_sentence_label", "albert": "sentence_order_label"}[model_type]
    theirs = model(
        **{("labels" if key == "labels" else name if key == "pair_labels" else key): batch[key] for key in batch}
    )
    assert (masked_loss / masked + pair_loss / pairs).item() == pytest.approx(theirs.loss.item(), rel=1e-5)


def test_scores_are_means_over_tokens_and_over_pairs(batch):
    with torch.no_grad():
        totals = accumulate_pairs(make_tiny("bert", AutoModelForPreTraining).eval(), batch)
    doubled = {name: 2 * value for name, value in totals.items()}
    assert score_pairs(doubled) == score_pairs(totals)
    scores = score_pairs({"mlm": 8.0, "masked": 4.0, "found": 1.0, "pair": 2.0, "pairs": 4.0, "pairs_found": 3.0})
    assert (scores["loss"], scores["pair_accuracy"], scores["masked_accuracy"]) == (2.5, 0.75, 0.25)
    assert scores["perplexity"] == pytest.approx(math.exp(2))

"""ELECTRA's pair of models, and the head over span boundaries: what they read, share and compute."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForMaskedLM, ElectraForMaskedLM, ElectraForPreTraining

from bertkit.errors import RecipeError
from bertkit.modeling.heads.pretraining import (
    ElectraPair,
    SpanBoundary,
    add_span_boundary,
    make_generator_config,
    sample_tokens,
)
from bertkit.tokens.features import IGNORE_INDEX
from tests.modeling.tiny_models import make_tiny, make_tiny_batch


@pytest.fixture
def pair() -> ElectraPair:
    config = make_tiny("electra", AutoModelForMaskedLM).config
    torch.manual_seed(1)
    return ElectraPair(ElectraForPreTraining(config), ElectraForMaskedLM(make_generator_config(config, 0.5))).eval()


@pytest.fixture
def batch() -> dict[str, torch.Tensor]:
    batch = make_tiny_batch()
    ids = batch["input_ids"]
    masked = torch.zeros_like(ids, dtype=torch.bool)
    masked[:, 1] = True
    draws = torch.rand(ids.shape, generator=torch.Generator().manual_seed(2))
    return {**batch, "input_ids": ids.masked_fill(masked, 4), "labels": ids.where(masked, IGNORE_INDEX), "draws": draws}


def test_only_masked_tokens_can_be_replaced_and_only_by_other_tokens(pair, batch):
    outputs = pair(**batch)
    masked = batch["labels"] != IGNORE_INDEX
    assert outputs["masked_logits"].shape == (1, 4, 60)
    assert torch.equal(outputs["masked_labels"], batch["labels"][masked])
    samples = sample_tokens(outputs["masked_logits"][0], batch["draws"][masked])
    assert torch.equal(outputs["replaced"][masked], samples != outputs["masked_labels"])
    assert not outputs["replaced"][~masked].any()


def test_the_discriminator_teaches_the_generator_nothing_but_embeddings(pair, batch):
    pair(**batch)["logits"].sum().backward()
    reached = {name for name, p in pair.generator.named_parameters() if p.grad is not None}
    assert reached
    assert all(name.startswith("electra.embeddings.") for name in reached)
    assert pair.generator.electra.embeddings is pair.discriminator.electra.embeddings


def test_samples_have_the_probabilities_of_the_softmax():
    logits = torch.tensor([0.5, 0.2, 0.3]).log()
    draws = (torch.arange(1000) + 0.5) / 1000
    samples = sample_tokens(logits.repeat(1000, 1), draws)
    assert torch.bincount(samples).tolist() == [500, 200, 300]


def test_a_generator_has_whole_heads():
    config = make_tiny("electra", AutoModelForMaskedLM).config
    smaller = make_generator_config(config, 0.5)
    assert (smaller.num_attention_heads, smaller.hidden_size, smaller.num_hidden_layers) == (1, 8, 2)
    with pytest.raises(RecipeError, match=r"generator_size 0\.25 of 2 heads"):
        make_generator_config(config, 0.25)


WORDS = torch.randn(30, 6, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def head() -> SpanBoundary:
    torch.manual_seed(0)
    return SpanBoundary(hidden_size=8, embedding_size=6, vocabulary=30, deviation=0.5)


def arguments() -> dict[str, torch.Tensor]:
    """One row of seven tokens, of which 2 to 4 are a masked span."""
    masked = torch.tensor([[0, 0, 1, 1, 1, 0, 0]]).bool()
    states = torch.randn(1, 7, 8, generator=torch.Generator().manual_seed(1))
    batch = {"labels": torch.where(masked, 1, IGNORE_INDEX)}
    return {"states": states, "batch": batch, "starts": masked * 2, "ends": masked * 5, "words": WORDS}


def test_only_the_states_at_both_boundaries_are_read(head):
    logits = head(**arguments())
    assert logits.shape == (3, 30)
    for index in range(7):
        changed = arguments()
        changed["states"][0, index] += 1
        assert torch.equal(head(**changed), logits) == (index not in (1, 5)), index


def test_tokens_of_a_span_differ_by_their_position(head):
    logits = head(**arguments())
    assert not torch.allclose(logits[0], logits[1])
    with torch.no_grad():
        head.places.weight.zero_()
    logits = head(**arguments())
    assert torch.allclose(logits[0], logits[1])


def test_positions_beyond_the_last_share_its_embedding(head):
    masked = torch.ones(1, 24, dtype=torch.bool)
    states = torch.randn(1, 24, 8)
    starts, ends = torch.zeros(1, 24, dtype=torch.long), torch.full((1, 24), 24)  # no token before it, none after it
    logits = head(states, {"labels": masked.long()}, starts, ends, WORDS)
    assert torch.allclose(logits[19], logits[23], atol=1e-6)
    assert not torch.allclose(logits[18], logits[19])


def test_a_model_gets_the_head_as_a_submodule():
    model = make_tiny("electra", AutoModelForMaskedLM)  # its embeddings are narrower than its layers
    add_span_boundary(model)
    weights = {name: p.shape for name, p in model.named_parameters() if name.startswith("span_boundary.")}
    assert weights["span_boundary.places.weight"] == (20, 200)
    assert weights["span_boundary.layers.0.weight"] == (16, 2 * 16 + 200)
    assert weights["span_boundary.layers.3.weight"] == (8, 16)

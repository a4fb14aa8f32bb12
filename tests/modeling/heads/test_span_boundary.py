"""Span boundaries: each masked token is predicted from both boundaries and its position, and from nothing else."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForMaskedLM

from bertkit.modeling.heads.span_boundary import SpanBoundary, add_span_boundary
from bertkit.tokens.features import IGNORED
from tests.modeling.tiny_models import make_tiny

WORDS = torch.randn(30, 6, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def head() -> SpanBoundary:
    torch.manual_seed(0)
    return SpanBoundary(hidden_size=8, embedding_size=6, vocabulary=30, deviation=0.5)


def arguments() -> dict[str, torch.Tensor]:
    """One row of seven tokens, of which 2 to 4 are a masked span."""
    masked = torch.tensor([[0, 0, 1, 1, 1, 0, 0]]).bool()
    states = torch.randn(1, 7, 8, generator=torch.Generator().manual_seed(1))
    batch = {"labels": torch.where(masked, 1, IGNORED)}
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

"""The pair of generator and discriminator: what is sampled, what counts as replaced, and which weights are shared."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForMaskedLM, ElectraForMaskedLM, ElectraForPreTraining

from bertkit.errors import RecipeError
from bertkit.modeling.heads.electra import ElectraPair, draw, generator_config
from bertkit.tokens.features import IGNORED
from tests.modeling.tiny_models import make_tiny, make_tiny_batch


@pytest.fixture
def pair() -> ElectraPair:
    config = make_tiny("electra", AutoModelForMaskedLM).config
    torch.manual_seed(1)
    return ElectraPair(ElectraForPreTraining(config), ElectraForMaskedLM(generator_config(config, 0.5))).eval()


@pytest.fixture
def batch() -> dict[str, torch.Tensor]:
    batch = make_tiny_batch()
    ids = batch["input_ids"]
    masked = torch.zeros_like(ids, dtype=torch.bool)
    masked[:, 1] = True
    draws = torch.rand(ids.shape, generator=torch.Generator().manual_seed(2))
    return {**batch, "input_ids": ids.masked_fill(masked, 4), "labels": ids.where(masked, IGNORED), "draws": draws}


def test_only_masked_tokens_can_be_replaced_and_only_by_other_tokens(pair, batch):
    outputs = pair(**batch)
    masked = batch["labels"] != IGNORED
    assert outputs["masked_logits"].shape == (1, 4, 60)
    assert torch.equal(outputs["masked_labels"], batch["labels"][masked])
    samples = draw(outputs["masked_logits"][0], batch["draws"][masked])
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
    samples = draw(logits.repeat(1000, 1), draws)
    assert torch.bincount(samples).tolist() == [500, 200, 300]


def test_a_generator_has_whole_heads():
    config = make_tiny("electra", AutoModelForMaskedLM).config
    smaller = generator_config(config, 0.5)
    assert (smaller.num_attention_heads, smaller.hidden_size, smaller.num_hidden_layers) == (1, 8, 2)
    with pytest.raises(RecipeError, match=r"generator_size 0\.25 of 2 heads"):
        generator_config(config, 0.25)

"""Pooling, compared with loops written out."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModel

from bertkit.errors import UsageError
from bertkit.hardware.precision import ComputeConfig
from bertkit.modeling.layers import read_layer_choice
from bertkit.modeling.sentence.encoder import (
    LayerCombination,
    TokenStates,
    load_for_vectors,
    load_sentence_encoder,
    pool,
)
from bertkit.modeling.sentence.folder import SentenceModules
from tests.modeling.inference.test_model import save_tiny
from tests.modeling.tiny_models import make_tiny_batch

LOOPS = {
    "mean": lambda tokens: sum(tokens) / len(tokens),
    "cls": lambda tokens: tokens[0],
    "max": lambda tokens: torch.stack(tokens).max(dim=0).values,
    "mean_sqrt_len_tokens": lambda tokens: sum(tokens) / len(tokens) ** 0.5,
    "weightedmean": lambda tokens: sum(n * token for n, token in enumerate(tokens, 1)) / sum(range(1, len(tokens) + 1)),
    "lasttoken": lambda tokens: tokens[-1],
}


@pytest.mark.parametrize("mode", LOOPS)
def test_a_mode_pools_the_tokens_of_each_text_alone(mode):
    states = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
    lengths = [5, 2, 1]
    mask = torch.tensor([[1] * length + [0] * (5 - length) for length in lengths])
    expected = torch.stack([LOOPS[mode](list(states[row, :length])) for row, length in enumerate(lengths)])
    torch.testing.assert_close(pool(states, mask, (mode,)), expected)


def test_several_modes_stand_side_by_side():
    states, mask = torch.ones(2, 3, 4), torch.ones(2, 3, dtype=torch.long)
    assert pool(states, mask, ("mean", "max")).shape == (2, 8)


@pytest.mark.parametrize("model_type", ["modernbert", "mpnet", "deberta-v2"])
def test_weights_that_are_cast_once_are_those_that_autocast_casts(model_type, tmp_path):
    folder, batch = save_tiny(tmp_path, model_type, "AutoModel"), make_tiny_batch()
    encoder, autocast = load_for_vectors(folder, SentenceModules(), ComputeConfig("cpu", "bf16", 1, ""))
    assert autocast == "bf16"
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        expected = load_sentence_encoder(folder, SentenceModules())(**batch)["embedding"]
        assert torch.equal(encoder(**batch)["embedding"], expected)


@pytest.fixture(scope="module")
def model(tiny_model):
    return AutoModel.from_pretrained(tiny_model).eval()


MERGED = {
    "embeddings": lambda states: states[0],
    "last": lambda states: states[2],
    "second_to_last": lambda states: states[1],
    "mean_last_2": lambda states: (states[1] + states[2]) / 2,
    "sum_last_2": lambda states: states[1] + states[2],
    "concat_last_2": lambda states: torch.cat([states[1], states[2]], dim=-1),
}


@pytest.mark.parametrize("name", MERGED)
def test_layers_are_merged(model, name):
    inputs = {"input_ids": torch.tensor([[2, 7, 8, 3]]), "attention_mask": torch.ones(1, 4, dtype=torch.long)}
    chosen = TokenStates(LayerCombination(model, read_layer_choice(name)))
    with torch.no_grad():
        expected = MERGED[name](model(**inputs, output_hidden_states=True).hidden_states)
        torch.testing.assert_close(chosen(**inputs)["states"], expected)


def test_a_model_has_so_many_layers(model):
    with pytest.raises(UsageError, match="the last 3 layers: the model has 2"):
        LayerCombination(model, read_layer_choice("mean_last_3"))


@pytest.mark.parametrize("name", ["mean_last_0", "weighted_sum", "mean", "-4"])
def test_other_names_of_layers_are_refused(name):
    with pytest.raises(UsageError, match="are not known - mean_last_K, sum_last_K, concat_last_K, concat_all, or"):
        read_layer_choice(name)

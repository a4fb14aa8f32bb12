"""Hidden states of several layers, compared with those that the model itself returns."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModel

from bertkit.errors import UsageError
from bertkit.modeling.layers import read_layer_choice
from bertkit.modeling.sentence.states import ChosenLayers, TokenStates


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
    chosen = TokenStates(ChosenLayers(model, read_layer_choice(name)))
    with torch.no_grad():
        expected = MERGED[name](model(**inputs, output_hidden_states=True).hidden_states)
        torch.testing.assert_close(chosen(**inputs)["states"], expected)


def test_a_model_has_so_many_layers(model):
    with pytest.raises(UsageError, match="the last 3 layers: the model has 2"):
        ChosenLayers(model, read_layer_choice("mean_last_3"))


@pytest.mark.parametrize("name", ["mean_last_0", "weighted_sum", "mean", "-4"])
def test_other_names_of_layers_are_refused(name):
    with pytest.raises(UsageError, match="are not known - mean_last_K, sum_last_K, concat_last_K, concat_all, or"):
        read_layer_choice(name)

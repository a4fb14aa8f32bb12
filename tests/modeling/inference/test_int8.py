"""Graphs in int8 answer a text as if it were alone, and nearly as the model does."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from bertkit.modeling.inference.graphs import export_graph
from bertkit.runtime.sessions import open_graph


@pytest.mark.slow
def test_a_graph_in_int8_answers_a_text_as_if_it_were_alone(tiny_model, tmp_path):
    model = AutoModelForSequenceClassification.from_pretrained(tiny_model).eval()
    names = ("input_ids", "attention_mask", "token_type_ids")
    export_graph(model, names, "onnx", tmp_path / "model.onnx", calibration=[])
    compute = open_graph(tmp_path / "model.onnx", "onnx")
    size = model.config.vocab_size
    ids = torch.arange(5, 5 + 6 * 9).reshape(6, 9) * 7 % size
    texts = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
    texts["attention_mask"][:5, 4:] = 0  # the last text is longer, and pads the others
    together = compute({name: values.numpy() for name, values in texts.items()})["logits"]
    for row in range(5):
        alone = compute({name: values[row : row + 1, :4].numpy() for name, values in texts.items()})["logits"]
        np.testing.assert_allclose(alone[0], together[row], rtol=0, atol=1e-5)
    with torch.no_grad():
        expected = model(**texts).logits.numpy()
    assert 0 < np.abs(together - expected).max() < 0.02 * np.abs(expected).max() + 0.02
    weights = {value.name: value for value in onnx.load(tmp_path / "model.onnx").graph.initializer}
    assert (
        sum(value.data_type == onnx.TensorProto.INT8 for value in weights.values()) > 6 * model.config.num_hidden_layers
    )

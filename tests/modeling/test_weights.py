"""Weights and configs of checkpoints: complete and consistent, or refused with a reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModel, BertModel

from bertkit.errors import ModelError
from bertkit.modeling.weights import (
    first_line,
    load_config,
    load_weights,
    loaded_bytes,
    refuse_misfit,
    refuse_non_finite,
)
from tests.modeling.tiny_models import make_tiny

NOTHING = {"missing_keys": [], "unexpected_keys": [], "mismatched_keys": []}


@pytest.fixture
def folder(tmp_path) -> Path:
    make_tiny("bert", AutoModel).save_pretrained(tmp_path)
    return tmp_path


def test_a_checkpoint_loads_in_float32_with_a_report(folder):
    model, report = load_weights(BertModel, folder, load_config(folder))
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert not report["missing_keys"]
    refuse_misfit(model, report, folder)
    refuse_non_finite(model.named_parameters(), folder)


def test_the_size_of_weights_is_that_of_single_precision_whatever_they_are_stored_in(folder, tmp_path):
    model = BertModel.from_pretrained(folder)
    size = 4 * sum(weights.numel() for weights in model.parameters())
    assert loaded_bytes(folder / "model.safetensors") == size
    model.half().save_pretrained(tmp_path / "half")
    assert loaded_bytes(tmp_path / "half" / "model.safetensors") == size
    for name in ("damaged.safetensors", "pytorch_model.bin"):
        (tmp_path / name).write_bytes(bytes(100))
        assert loaded_bytes(tmp_path / name) == 100


def test_only_weights_of_the_encoder_must_fit():
    model = make_tiny("bert", AutoModel)
    for harmless in ("pooler.dense.weight", "cls.predictions.bias", "embeddings.position_ids"):
        refuse_misfit(model, {**NOTHING, "missing_keys": [harmless]}, Path("folder"))
    names = ["encoder.layer.1.output.dense.bias", "encoder.layer.0.output.dense.bias"]
    with pytest.raises(ModelError, match=r"the checkpoint lacks encoder\.layer\.0\.output\.dense\.bias and 1 more"):
        refuse_misfit(model, {**NOTHING, "missing_keys": names}, Path("folder"))
    mismatch = ("embeddings.word_embeddings.weight", (1, 2), (3, 2))
    with pytest.raises(ModelError, match=r"its config\.json has another shape for"):
        refuse_misfit(model, {**NOTHING, "mismatched_keys": [mismatch]}, Path("folder"))


@pytest.mark.parametrize(("field", "value"), [("hidden_size", "wide"), ("classifier_dropout", [0.1])])
def test_a_config_with_a_value_of_another_type(folder, field, value):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, field: value}))
    with pytest.raises(ModelError, match=f"the config does not load: .*{field}"):
        load_config(folder)


def test_the_first_line_of_an_error():
    assert first_line(ValueError("\n  a word\nmore")) == "a word"
    assert first_line(ValueError("x" * 999)) == "x" * 300
    assert first_line(KeyboardInterrupt()) == "KeyboardInterrupt"

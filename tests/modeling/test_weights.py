"""Weights and configs of checkpoints: complete and consistent, or refused with a reason."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoModel, BertModel

from bertkit.errors import ModelError
from bertkit.modeling.weights import (
    first_line,
    load_config,
    load_pickle,
    load_weights,
    loaded_bytes,
    refuse_misfit,
    refuse_non_finite,
    restore_weights,
)
from tests.modeling.tiny_models import make_tiny

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
KEYS = ["architectures", "id2label", "label2id", "model_type", "hidden_size", "vocab_size", "num_attention_heads"]
KEYS += ["pad_token_id", "problem_type", "dtype", "auto_map", "num_labels", "hidden_act", "type_vocab_size"]
NOTHING = {"missing_keys": [], "unexpected_keys": [], "mismatched_keys": []}


@pytest.fixture
def folder(tmp_path) -> Path:
    make_tiny("bert", AutoModel).save_pretrained(tmp_path)
    return tmp_path


def test_a_checkpoint_loads_in_float32_with_a_report(folder):
    model, report = load_weights(BertModel, folder, load_config(folder))
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert not report["missing_keys"]
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


def test_torchs_advice_to_run_the_code_of_a_pickle_is_not_repeated():
    advice = "Weights only load failed. (1) Re-running `torch.load` with `weights_only` set to `False` will"
    assert first_line(RuntimeError(advice)) == "not only weights, or damaged: loading it could run code"


def test_the_first_line_of_an_error():
    assert first_line(ValueError("\n  a word\nmore")) == "a word"
    assert first_line(ValueError("x" * 999)) == "x" * 300
    assert first_line(KeyboardInterrupt()) == "KeyboardInterrupt"


WRONG_KEYS = [
    ("id2label", {"a": "x"}),
    ("id2label", 3),
    ("architectures", {"a": 1}),
    ("architectures", [None]),
    ("auto_map", 1.5),
    ("num_labels", "2"),
    ("num_attention_heads", -1),
    ("vocab_size", 0),
    ("hidden_size", "x"),
    ("hidden_act", None),
    ("dtype", []),
    ("model_type", ["bert"]),
]


@pytest.mark.parametrize(("key", "value"), WRONG_KEYS)
def test_a_key_of_the_wrong_type_in_a_config_is_refused(folder, key, value):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, key: value}))
    with pytest.raises(ModelError) as raised:
        load_config(folder)
    assert "\n" not in str(raised.value)


@given(st.dictionaries(st.sampled_from(KEYS), JSON_VALUES, min_size=1))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_values_in_a_config_load_or_are_refused_in_a_line(folder, changes):
    config = {**make_tiny("bert", AutoModel).config.to_dict(), **changes}
    (folder / "config.json").write_text(json.dumps(config))
    try:
        load_config(folder)
    except ModelError as error:
        assert "\n" not in str(error)


def test_slices_of_a_weight_of_the_file_become_weights_of_their_own(tmp_path):
    make_tiny("gte", AutoModel).save_pretrained(tmp_path)  # under the names of its first release, with q, k, v in one
    assert any("qkv_proj" in name for name in load_file(tmp_path / "model.safetensors"))
    model, _ = load_weights(AutoModel, tmp_path, load_config(tmp_path))
    assert all(weight.untyped_storage().nbytes() == weight.nbytes for weight in model.parameters())


def test_a_checkpoint_is_restored_whole_or_refused(folder):
    model, _ = load_weights(BertModel, folder, load_config(folder))
    file, start = folder / "model.safetensors", model.state_dict()["pooler.dense.bias"].clone()
    model.pooler.dense.bias.data += 1
    restore_weights(model, file)
    assert torch.equal(model.pooler.dense.bias, start)
    save_file({name.replace("weight", "gamma"): value for name, value in load_file(file).items()}, file)
    with pytest.raises(ModelError, match=r"the weights do not fit the model: .*embeddings.LayerNorm.weight"):
        restore_weights(model, file)


def test_weights_that_share_a_storage_as_those_of_an_lstm_on_a_gpu_are_restored(tmp_path):
    model = torch.nn.LSTM(3, 4)
    model.device = torch.device("cpu")
    expected = {name: weight.clone() for name, weight in model.state_dict().items()}
    save_file(expected, tmp_path / "model.safetensors")
    storage, start = torch.zeros(sum(weight.numel() for weight in expected.values())), 0
    for weight in model.parameters():
        weight.data = storage[start : (start := start + weight.numel())].view(weight.shape)
    restore_weights(model, tmp_path / "model.safetensors")
    assert all(torch.equal(weight, expected[name]) for name, weight in model.state_dict().items())


class _Malicious:
    def __reduce__(self):
        return os.mkdir, ("it-ran",)


@pytest.mark.parametrize(
    "content",
    [_Malicious(), {"a": _Malicious()}, [1], {"a": 1}, {1: torch.zeros(1)}, b"", b"\x80\x02", b"PK\x03\x04", b"junk"],
)
@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_that_is_no_file_of_weights_is_refused_and_not_run(folder, here, content, zipped):
    config = load_config(folder)
    (folder / "model.safetensors").unlink()
    if isinstance(content, bytes):
        (folder / "pytorch_model.bin").write_bytes(content)
    else:
        torch.save(content, folder / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    with pytest.raises(ModelError) as raised:
        load_weights(BertModel, folder, config)
    assert not (here / "it-ran").exists()
    assert "weights_only" not in str(raised.value)
    assert str(raised.value).count("pytorch_model.bin") == 1


NO_MEMORY = RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes.")


@pytest.mark.parametrize("error", [MemoryError(), NO_MEMORY])
def test_too_little_memory_is_no_damage_of_the_weights(folder, monkeypatch, error):
    def fail(*_: object, **__: object) -> None:
        raise error

    torch.save({}, folder / "weights.bin")
    monkeypatch.setattr(torch, "load", fail)
    with pytest.raises(type(error)):
        load_pickle(folder / "weights.bin")
    monkeypatch.setattr(BertModel, "from_pretrained", fail)
    with pytest.raises(type(error)):
        load_weights(BertModel, folder, load_config(folder))


@pytest.mark.parametrize("zipped", [True, False])
def test_weights_in_torchs_format_load(folder, zipped):
    weights = BertModel.from_pretrained(folder).state_dict()
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    model, report = load_weights(BertModel, folder, load_config(folder))
    assert not report["missing_keys"]
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def test_quantized_weights_are_refused(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "gptq"}}))
    with pytest.raises(ModelError, match=r"the weights are quantized .* - use the model that they were made from"):
        load_config(folder)

"""Folders of checkpoints: what is known before weights are read, or refused with a reason."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModel, BertModel

from bertkit.errors import ModelError
from bertkit.modeling.checkpoint import fingerprint, get_loaded_file_bytes, load_config, read_config, shorten_error
from tests.modeling.test_load import edit_config
from tests.modeling.tiny_models import make_tiny

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
KEYS = ["architectures", "id2label", "label2id", "model_type", "hidden_size", "vocab_size", "num_attention_heads"]
KEYS += ["pad_token_id", "problem_type", "dtype", "auto_map", "num_labels", "hidden_act", "type_vocab_size"]


@pytest.fixture
def copy(tiny_model, tmp_path) -> Path:
    return Path(shutil.copytree(tiny_model, tmp_path / "copy"))


@pytest.fixture
def folder(tmp_path) -> Path:
    make_tiny("bert", AutoModel).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("model_type", "what"),
    [
        ("gpt2", r"a model of type 'gpt2' is not an encoder: causal \(left-to-right\) models are not supported"),
        ("vit", "a model of type 'vit' is not an encoder: transformers has no head for texts"),
        ("brt", "does not know the model type 'brt' .* - correct config.json, or update transformers"),
    ],
)
def test_a_model_that_is_no_encoder_is_refused_before_its_weights_are_looked_at(copy, model_type, what):
    edit_config(copy, model_type=model_type)
    with pytest.raises(ModelError, match=what):
        read_config(copy)


@pytest.mark.parametrize("model_type", ["bart", "t5"])
def test_an_encoder_with_a_decoder_is_refused(copy, model_type):
    (copy / "config.json").write_text(json.dumps({"model_type": model_type}))
    with pytest.raises(ModelError, match=f"a model of type '{model_type}' is not an encoder: it has a decoder"):
        load_config(copy)


@pytest.mark.parametrize("field", [{"is_causal": False}, {"use_bidirectional_attention": True}])
def test_a_config_can_declare_that_a_type_of_decoders_reads_both_sides(copy, field):
    edit_config(copy, model_type="llama", **field)
    assert read_config(copy)["model_type"] == "llama"


def test_a_folder_of_checkpoints_names_the_newest(tmp_path):
    for step in (9, 10):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "config.json").write_text("{}")
    (tmp_path / "checkpoint-11").mkdir()
    with pytest.raises(ModelError) as caught:
        read_config(tmp_path)
    assert caught.value.remedy == f"name its newest checkpoint: {tmp_path / 'checkpoint-10'}"


@pytest.mark.parametrize(("missing", "what"), [("config.json", "no config.json"), ("model.safetensors", "no weights")])
def test_incomplete_folders(copy, missing, what):
    (copy / missing).unlink()
    with pytest.raises(ModelError, match=what):
        read_config(copy)


def test_fingerprints_follow_content(copy, tiny_model):
    assert fingerprint(copy) == fingerprint(tiny_model)
    edit_config(copy, hidden_dropout_prob=0.3)
    assert fingerprint(copy) != fingerprint(tiny_model)


def test_the_size_of_weights_is_that_of_single_precision_whatever_they_are_stored_in(folder, tmp_path):
    model = BertModel.from_pretrained(folder)
    size = 4 * sum(weights.numel() for weights in model.parameters())
    assert get_loaded_file_bytes(folder / "model.safetensors") == size
    model.half().save_pretrained(tmp_path / "half")
    assert get_loaded_file_bytes(tmp_path / "half" / "model.safetensors") == size
    for name in ("damaged.safetensors", "pytorch_model.bin"):
        (tmp_path / name).write_bytes(bytes(100))
        assert get_loaded_file_bytes(tmp_path / name) == 100


@pytest.mark.parametrize(("field", "value"), [("hidden_size", "wide"), ("classifier_dropout", [0.1])])
def test_a_config_with_a_value_of_another_type(folder, field, value):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, field: value}))
    with pytest.raises(ModelError, match=f"the config does not load: .*{field}"):
        load_config(folder)


def test_torchs_advice_to_run_the_code_of_a_pickle_is_not_repeated():
    advice = "Weights only load failed. (1) Re-running `torch.load` with `weights_only` set to `False` will"
    assert shorten_error(RuntimeError(advice)) == "not only weights, or damaged: loading it could run code"


def test_the_first_line_of_an_error():
    assert shorten_error(ValueError("\n  a word\nmore")) == "a word"
    assert shorten_error(ValueError("x" * 999)) == "x" * 300
    assert shorten_error(KeyboardInterrupt()) == "KeyboardInterrupt"


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


def test_quantized_weights_are_refused(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "gptq"}}))
    with pytest.raises(ModelError, match=r"the weights are quantized .* - use the model before quantization"):
        load_config(folder)

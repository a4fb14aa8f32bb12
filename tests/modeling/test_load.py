"""Checkpoints that load completely, and those that must not load at all."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification, BertModel

from bertkit.errors import ModelError
from bertkit.modeling.checkpoint import load_config
from bertkit.modeling.info import LoadingInfo, get_loading_info
from bertkit.modeling.load import check_finite, check_fit, load_pickle, load_weights, restore_weights
from tests.conftest import make_tokenizer
from tests.kills import slow_unless
from tests.modeling.tiny_models import load_head, make_tiny

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


SPECIAL = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}


FAMILIES = {
    "bert": SMALL,
    "roberta": {**SMALL, "pad_token_id": 0, "max_position_embeddings": 66},
    "xlm-roberta": {**SMALL, "pad_token_id": 0, "max_position_embeddings": 66},
    "electra": {**SMALL, "embedding_size": 16},
    "albert": {**SMALL, "embedding_size": 16},
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64},
    "deberta": {**SMALL, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "deberta-v2": {**SMALL, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "mpnet": {**SMALL, "pad_token_id": 0, "max_position_embeddings": 66},
    "modernbert": {**SMALL, **SPECIAL, "cls_token_id": 2, "sep_token_id": 3},
    "eurobert": {**SMALL, **SPECIAL, "mask_token_id": 4},
    "gte": {**SMALL, **SPECIAL},
    "jina_embeddings_v3": {**SMALL, **SPECIAL},
    "nomic_bert": {**SMALL, **SPECIAL},
    "ultrabert": {**SMALL, **SPECIAL},
}


def save_family(family: str, folder: Path) -> Path:
    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, vocab_size=len(tokenizer), **FAMILIES[family])
    AutoModelForMaskedLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def load(folder: Path, labels=("bad", "good"), *, new_head=True):
    return load_head("AutoModelForSequenceClassification", folder, labels, new_head=new_head)


def edit_config(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def edit_weights(folder: Path, change) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file(change(weights), folder / "model.safetensors", metadata={"format": "pt"})


@pytest.fixture
def copy(tiny_model, tmp_path) -> Path:
    return Path(shutil.copytree(tiny_model, tmp_path / "copy"))


@pytest.fixture
def classifier(copy) -> Path:
    """The tiny model with a head for the labels bad and good."""
    model = load(copy)
    model.save_pretrained(copy)
    return copy


@pytest.mark.parametrize(
    "family", slow_unless(["bert", "roberta", "deberta-v2", "distilbert", "modernbert", "gte"], FAMILIES)
)
def test_every_family_gets_a_new_head_and_keeps_it(family, tmp_path):
    folder = save_family(family, tmp_path / family)
    model = load(folder)
    assert get_loading_info(model).head == "new"
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    model.save_pretrained(folder)
    again = load(folder, new_head=False)
    assert get_loading_info(again).head is None
    tokens = torch.tensor([[2, 10, 11, 3]])
    torch.testing.assert_close(model.eval()(tokens).logits, again.eval()(tokens).logits, rtol=0, atol=1e-6)


def test_weights_in_half_precision_become_float32(copy):
    edit_weights(copy, lambda weights: {name: tensor.half() for name, tensor in weights.items()})
    assert load(copy).dtype == torch.float32


def test_a_head_with_other_labels_is_made_new(classifier):
    assert get_loading_info(load(classifier)) == LoadingInfo(head="kept")
    assert get_loading_info(load(classifier, new_head=False)) == LoadingInfo()
    before = load_file(classifier / "model.safetensors")["classifier.weight"]
    renamed = load(classifier, ("no", "yes"))
    assert get_loading_info(renamed) == LoadingInfo(head="new", other_labels=("bad", "good"))
    assert not torch.equal(renamed.classifier.weight, before)
    assert load(classifier, ("a", "b", "c")).classifier.weight.shape == (3, 32)


def test_a_fresh_head_is_never_scored(copy):
    with pytest.raises(ModelError, match="no trained head for this task"):
        load(copy, new_head=False)


def test_a_head_of_another_class_is_never_scored(copy):
    config = AutoConfig.from_pretrained(copy, num_labels=2)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(copy)
    edit_config(copy, architectures=["BertForTokenClassification"])
    with pytest.raises(ModelError, match="it was trained for another task"):
        load(copy, new_head=False)


@pytest.mark.parametrize(("layers", "what"), [(1, "config.json does not define"), (3, "the checkpoint lacks")])
def test_layers_that_do_not_fit_the_config(copy, layers, what):
    edit_config(copy, num_hidden_layers=layers)
    with pytest.raises(ModelError, match=f"weights and config do not fit: .*{what}"):
        load(copy)


def test_a_width_that_does_not_fit_the_config(copy):
    edit_config(copy, intermediate_size=48)
    with pytest.raises(ModelError, match="has another shape for"):
        load(copy)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers(copy, value):
    def spoil(weights):
        weights["embeddings.LayerNorm.weight"][3] = value
        return weights

    edit_weights(copy, spoil)
    with pytest.raises(ModelError, match=r"the weight bert\.embeddings\.LayerNorm\.weight is not finite"):
        load(copy)


def test_a_file_cut_short(copy):
    file = copy / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ModelError, match="the checkpoint does not load"):
        load(copy)


NO_HEAD = "transformers has no AutoModelForSequenceClassification for models of type"
BOXES = r"'bros' is not an encoder: it needs more inputs than token ids and a mask \(You have to specify bbox\)"


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("bros", BOXES),
        ("canine", "'canine' is not an encoder: its config has no vocab_size"),
        ("convbert", "'convbert' reads padding, so its scores would depend on the batch"),
        ("fnet", "'fnet' reads padding"),
        ("gemma", "'gemma' reads padding"),  # its mask is causal where a batch has padding
        ("mistral4", "'mistral4' is not an encoder: its first token does not depend on the last token"),
        ("splinter", f"{NO_HEAD} 'splinter' .* - name another encoder, or choose another task"),
        ("xlnet", "'xlnet' reads padding"),  # its head for texts reads the last token
    ],
)
def test_a_model_that_does_not_read_as_an_encoder_is_refused_with_the_reason(model_type, reason, tmp_path):
    make_tiny(model_type, AutoModel, config={"initializer_range": 0.3}).save_pretrained(tmp_path)
    head = "AutoModelForTokenClassification" if model_type == "bros" else "AutoModelForSequenceClassification"
    with pytest.raises(ModelError, match=reason):
        load_head(head, tmp_path, ["a", "b"], new_head=True)


@pytest.mark.parametrize("model_type", ["big_bird", "reformer"])
def test_the_check_of_an_encoder_changes_nothing(model_type, tmp_path, monkeypatch):
    sizes = {"axial_pos_shape": (5, 8), "axial_pos_embds_dim": (8, 8), "attn_layers": ["lsh", "local"]}
    make_tiny(model_type, AutoModelForMaskedLM, config=sizes).save_pretrained(tmp_path)

    def load() -> tuple[list, list, str]:
        torch.manual_seed(0)
        model, _ = load_weights(AutoModel, tmp_path, load_config(tmp_path))
        is_sparse = getattr(model, "attention_type", None) == "block_sparse"  # BigBird, before its first short text
        tensors = [*model.parameters(), *model.buffers(), torch.get_rng_state()]
        return tensors, [is_sparse, model.training], str(model.config)

    (tensors, state, config) = load()
    monkeypatch.setattr("bertkit.modeling.load.check_encoder", lambda *_, **__: None)
    (expected, *others) = load()
    assert [state, config] == others
    assert all(map(torch.equal, tensors, expected))
    assert state[0] == (model_type == "big_bird")


def test_code_in_a_checkpoint_is_never_run(copy, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    (copy / "evil.py").write_text("raise SystemExit('ran')\n")
    edit_config(copy, model_type="mine", auto_map={"AutoConfig": "evil.Config", "AutoModel": "evil.Model"})
    with pytest.raises(ModelError, match="needs to run its own code"):
        load(copy)


NEW = {"AutoConfig": "Alibaba-NLP/new-impl--configuration.NewConfig"}


FLASH = {"AutoModel": "jinaai/xlm-roberta-flash-implementation--modeling_lora.XLMRobertaLoRA"}


NOMIC = {"AutoConfig": "nomic-ai/nomic-bert-2048--configuration_hf_nomic_bert.NomicBertConfig"}


SIZES_OF_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 2}


@pytest.mark.parametrize(
    ("config", "way_out"),
    [
        ({"model_type": "neobert", "auto_map": {"AutoConfig": "model.NeoBERTConfig"}}, "use a standard architecture"),
        ({"model_type": "lfm2", "architectures": ["Lfm2Encoder"], "auto_map": {"AutoModel": "m.E"}}, "use a standard"),
        ({"model_type": "new", "auto_map": NEW}, r"use transformers' own gte \(alibaba-nlp-community/gte-mult"),
        ({"model_type": "xlm-roberta", "auto_map": FLASH, **SMALL}, r"own jina_embeddings_v3 \(jinaai/jina-emb"),
        ({"model_type": "bert", "architectures": ["JinaBertForMaskedLM"], "auto_map": {"AutoModel": "j.M"}}, "use a s"),
        ({"model_type": "nomic_bert", "auto_map": NOMIC, **SIZES_OF_GPT2}, r"transformers' own nomic_bert \(nomic-ai"),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_a_checkpoint_with_its_own_code_is_refused_with_the_way_out(copy, config, way_out, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    (copy / "config.json").write_text(json.dumps({"vocab_size": len(make_tokenizer()), **config}))
    with pytest.raises(ModelError, match=f"needs to run its own code .* - bertkit never does that; .*{way_out}"):
        load(copy)


@pytest.mark.parametrize("model_type", ["eurobert", "nomic_bert"])
def test_a_checkpoint_with_its_own_code_is_read_by_transformers_class_where_that_fits(copy, model_type):
    sizes = {**SMALL, "num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0}
    config = AutoConfig.for_model(model_type, vocab_size=len(make_tokenizer()), **sizes)
    AutoModelForMaskedLM.from_config(config).save_pretrained(copy)
    edit_config(copy, auto_map={"AutoConfig": "own.Config", "AutoModelForMaskedLM": "own.Model"})
    assert load(copy).config.model_type == model_type


NOTHING = {"missing_keys": [], "unexpected_keys": [], "mismatched_keys": []}


@pytest.fixture
def folder(tmp_path) -> Path:
    make_tiny("bert", AutoModel).save_pretrained(tmp_path)
    return tmp_path


def test_a_checkpoint_loads_in_float32_with_a_report(folder):
    model, report = load_weights(BertModel, folder, load_config(folder))
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert not report["missing_keys"]
    check_finite(model.named_parameters(), folder)


def test_only_weights_of_the_encoder_must_fit():
    model = make_tiny("bert", AutoModel)
    for harmless in ("pooler.dense.weight", "cls.predictions.bias", "embeddings.position_ids"):
        check_fit(model, {**NOTHING, "missing_keys": [harmless]}, Path("folder"))
    names = ["encoder.layer.1.output.dense.bias", "encoder.layer.0.output.dense.bias"]
    with pytest.raises(ModelError, match=r"the checkpoint lacks encoder\.layer\.0\.output\.dense\.bias and 1 more"):
        check_fit(model, {**NOTHING, "missing_keys": names}, Path("folder"))
    mismatch = ("embeddings.word_embeddings.weight", (1, 2), (3, 2))
    with pytest.raises(ModelError, match=r"config\.json has another shape for"):
        check_fit(model, {**NOTHING, "mismatched_keys": [mismatch]}, Path("folder"))


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

"""Checkpoints that load whole, and those that must not load at all."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer

from bertkit.errors import ModelError
from bertkit.modeling import load as models
from bertkit.modeling.info import info_of
from bertkit.storage.hub import find_model
from tests.conftest import make_tokenizer
from tests.kills import slow_unless

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
    return models.load_model("AutoModelForSequenceClassification", folder, labels, new_head=new_head)


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
    assert info_of(model).has_new_head
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    model.save_pretrained(folder)
    again = load(folder, new_head=False)
    assert not info_of(again).has_new_head
    tokens = torch.tensor([[2, 10, 11, 3]])
    torch.testing.assert_close(model.eval()(tokens).logits, again.eval()(tokens).logits, rtol=0, atol=1e-6)


def test_weights_in_half_precision_become_float32(copy):
    edit_weights(copy, lambda weights: {name: tensor.half() for name, tensor in weights.items()})
    assert load(copy).dtype == torch.float32


def test_a_head_with_other_labels_is_made_new(classifier):
    kept = info_of(load(classifier))
    assert (kept.has_new_head, kept.keeps_head, kept.other_labels) == (False, True, ())
    assert not info_of(load(classifier, new_head=False)).keeps_head
    before = load_file(classifier / "model.safetensors")["classifier.weight"]
    renamed = load(classifier, ("no", "yes"))
    assert info_of(renamed).has_new_head
    assert info_of(renamed).other_labels == ("bad", "good")
    assert not torch.equal(renamed.classifier.weight, before)
    assert load(classifier, ("a", "b", "c")).classifier.weight.shape == (3, 32)


def test_a_fresh_head_is_never_scored(copy):
    with pytest.raises(ModelError, match="no trained head for this task"):
        load(copy, new_head=False)


def test_a_head_of_another_class_is_never_scored(copy):
    config = AutoConfig.from_pretrained(copy, num_labels=2)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(copy)
    edit_config(copy, architectures=["BertForTokenClassification"])
    with pytest.raises(ModelError, match="it was trained for something else"):
        load(copy, new_head=False)


@pytest.mark.parametrize(("layers", "what"), [(1, "has no place for"), (3, "the checkpoint lacks")])
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


@pytest.mark.parametrize(
    ("model_type", "what"),
    [
        ("gpt2", "a model of type 'gpt2' is not an encoder"),
        ("brt", "does not know the model type 'brt' .* - correct config.json, or update transformers"),
    ],
)
def test_a_model_that_is_no_encoder_is_refused_before_its_weights_are_looked_at(copy, model_type, what):
    edit_config(copy, model_type=model_type)
    with pytest.raises(ModelError, match=what):
        models.read_config(copy)


def test_an_encoder_with_a_decoder_is_refused(copy):
    edit_config(copy, model_type="bart")
    with pytest.raises(ModelError, match="a model of type 'bart' is not an encoder"):
        load(copy)


def test_code_in_a_checkpoint_is_never_run(copy, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    (copy / "evil.py").write_text("raise SystemExit('ran')\n")
    edit_config(copy, model_type="mine", auto_map={"AutoConfig": "evil.Config", "AutoModel": "evil.Model"})
    with pytest.raises(ModelError, match="needs to run its own code"):
        load(copy)


def test_a_folder_of_checkpoints_names_the_newest(tmp_path):
    for step in (9, 10):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "config.json").write_text("{}")
    (tmp_path / "checkpoint-11").mkdir()
    with pytest.raises(ModelError) as caught:
        models.read_config(tmp_path)
    assert caught.value.remedy == f"name its newest checkpoint: {tmp_path / 'checkpoint-10'}"


@pytest.mark.parametrize(("missing", "what"), [("config.json", "no config.json"), ("model.safetensors", "no weights")])
def test_incomplete_folders(copy, missing, what):
    (copy / missing).unlink()
    with pytest.raises(ModelError, match=what):
        models.read_config(copy)


def test_the_tokenizer_ends_where_the_positions_end(tmp_path):
    folder = save_family("roberta", tmp_path / "roberta")
    edit_config(folder, max_position_embeddings=34)
    assert models.load_tokenizer(folder).model_max_length == 33  # the padding id is 0, so positions begin at 1


OWN_SIZES = {
    "convbert": {"embedding_size": 16, "num_groups": 1},
    "fnet": {"use_tpu_fourier_optimizations": False},
    "longformer": {"attention_window": 4},
    "luke": {"entity_vocab_size": 10, "entity_emb_size": 8},
    "xmod": {"default_language": "en_XX"},
}


@pytest.mark.parametrize("padding", [1, 4])
@pytest.mark.parametrize(
    "model_type",
    slow_unless(
        ("bert", "roberta", "mpnet", "longformer", "esm", "nystromformer"),
        [
            *("bert", "roberta", "camembert", "mpnet", "data2vec-text", "ibert", "luke", "longformer", "esm"),
            *("electra", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod", "nystromformer", "convbert"),
        ],
    ),
)
def test_a_text_as_long_as_the_bound_is_read_and_a_longer_one_is_not(model_type, padding):
    sizes = {**SMALL, **OWN_SIZES.get(model_type, {}), "max_position_embeddings": 24, "pad_token_id": padding}
    config = AutoConfig.for_model(model_type, vocab_size=60, mask_token_id=5, **sizes)
    config.position_embedding_type = "absolute"  # ESM's default has no bound
    tokenizer = make_tokenizer()
    tokenizer.model_max_length = int(1e30)
    models.fit_tokenizer(tokenizer, config)
    assert 24 - padding - 1 <= tokenizer.model_max_length <= 24
    model = AutoModelForSequenceClassification.from_config(config).eval()

    def read(length: int) -> torch.Tensor:
        return model(torch.full((1, length), 7), attention_mask=torch.ones(1, length, dtype=torch.long)).logits

    assert read(tokenizer.model_max_length).isfinite().all()
    with pytest.raises((IndexError, RuntimeError)):
        read(tokenizer.model_max_length + 1)


@pytest.mark.parametrize(("types", "is_read"), [(1, False), (2, True)])
def test_a_tokenizer_makes_token_types_only_for_a_model_with_several(types, is_read, tmp_path):
    sizes = {**SMALL, "max_position_embeddings": 24, "type_vocab_size": types, "pad_token_id": 0}
    tokenizer = AutoTokenizer.from_pretrained(find_model("demo"))
    config = AutoConfig.for_model("bert", vocab_size=len(tokenizer), **sizes)
    AutoModelForMaskedLM.from_config(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    models.load_tokenizer(tmp_path).save_pretrained(tmp_path)
    pair = AutoTokenizer.from_pretrained(tmp_path)("good film", "bad film")
    assert ("token_type_ids" in pair) == is_read


def test_a_model_that_reads_padding_is_refused(copy):
    sizes = {**SMALL, **OWN_SIZES["fnet"], "max_position_embeddings": 24}
    config = AutoConfig.for_model("fnet", vocab_size=len(make_tokenizer()), **sizes)
    AutoModelForMaskedLM.from_config(config).save_pretrained(copy)
    with pytest.raises(ModelError, match="a model of type 'fnet' reads the padding of a batch"):
        models.load_tokenizer(copy)


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


def test_a_tokenizer_that_does_not_fit_the_embeddings(copy):
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["one", "two"])
    tokenizer.save_pretrained(copy)
    with pytest.raises(ModelError, match="the tokenizer knows 2 more tokens than the model"):
        models.load_tokenizer(copy)


def test_fingerprints_follow_content(copy, tiny_model):
    assert models.fingerprint(copy) == models.fingerprint(tiny_model)
    edit_config(copy, hidden_dropout_prob=0.3)
    assert models.fingerprint(copy) != models.fingerprint(tiny_model)


def test_a_tokenizer_without_its_fast_version_is_refused(copy):
    (copy / "tokenizer.json").unlink()
    (copy / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
    with pytest.raises(ModelError, match="the tokenizer does not load: Couldn't instantiate the backend tokenizer"):
        models.load_tokenizer(copy)


def test_a_tokenizer_without_a_padding_token_is_refused(copy):
    settings = json.loads((copy / "tokenizer_config.json").read_text())
    settings.pop("pad_token")
    (copy / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(
        ModelError, match=r"the tokenizer has no padding token .* - name one as pad_token in tokenizer_"
    ):
        models.load_tokenizer(copy)

"""What a folder of sentence-transformers says, read and written."""

from __future__ import annotations

import json

import pytest

from bertkit.errors import ModelError, UsageError
from bertkit.modeling.sentence.modules import (
    Normalize,
    SentenceModules,
    read_modules,
    unknown_modules,
    with_options,
)
from bertkit.modeling.sentence.writing import write_modules


def test_a_plain_model_folder_pools_the_mean(tmp_path):
    assert read_modules(tmp_path) == SentenceModules()


def test_old_folders_switch_pooling_modes_on_one_by_one(tmp_path):
    write_modules(tmp_path, SentenceModules(), width=8)
    config = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False, "word_embedding_dimension": 8}
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(config))
    assert read_modules(tmp_path).pooling == ("cls",)


@pytest.mark.parametrize("content", ["{", "[1]", '[{"type": "a.Transformer", "path": ""}]'])
def test_a_damaged_list_of_modules_is_refused(content, tmp_path):
    (tmp_path / "modules.json").write_text(content)
    with pytest.raises(ModelError):
        read_modules(tmp_path)


def entries(*modules):
    return json.dumps([{"type": name, "path": path} for name, path in modules])


ST = "sentence_transformers.models"


def test_an_old_folder_has_its_encoder_in_a_subfolder(tmp_path):
    (tmp_path / "0_Transformer").mkdir()
    (tmp_path / "modules.json").write_text(entries((f"{ST}.Transformer", "0_Transformer"), (f"{ST}.Pooling", "1")))
    settings = {"max_seq_length": 128, "do_lower_case": True}
    (tmp_path / "0_Transformer" / "sentence_roberta_config.json").write_text(json.dumps(settings))
    modules = read_modules(tmp_path)
    assert (modules.subfolder, modules.max_length, modules.lowercase) == ("0_Transformer", 128, True)


@pytest.mark.parametrize(
    ("modules", "settings", "unknown"),
    [
        ([("Transformer", ""), ("Pooling", "1"), ("Dropout", "2"), ("Normalize", "3")], {}, []),
        ([("Transformer", ""), ("Pooling", "1")], {"model_args": {"torch_dtype": "float16"}}, []),
        ([("Transformer", ""), ("Pooling", "1"), ("LayerNorm", "2")], {}, ["LayerNorm"]),
        ([("StaticEmbedding", "")], {}, ["StaticEmbedding"]),
        ([("Transformer", "")], {}, ["modules in the order Transformer"]),
        ([("Transformer", ""), ("Pooling", "1")], {"config_args": {"rope_scaling": 2}}, ["config_args rope_scaling"]),
        ([("Transformer", ""), ("Pooling", "1")], {"processing_kwargs": {"text": {}}}, ["processing_kwargs"]),
        ([("Transformer", ""), ("Pooling", "1")], {"modality_config": {"text": {}}}, ["modality_config"]),
    ],
)
def test_what_only_the_library_computes_is_found(tmp_path, modules, settings, unknown):
    (tmp_path / "modules.json").write_text(entries(*((f"{ST}.{name}", path) for name, path in modules)))
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps(settings))
    assert unknown_modules(tmp_path) == unknown
    if unknown:
        with pytest.raises(ModelError, match="it has what bertkit does not know"):
            read_modules(tmp_path)


def test_a_normalization_of_tokens_is_not_that_of_vectors(tmp_path):
    modules = ((f"{ST}.Transformer", ""), (f"{ST}.Pooling", "1"), (f"{ST}.Normalize", "2"))
    (tmp_path / "modules.json").write_text(entries(*modules))
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "config.json").write_text(json.dumps({"module_input_name": "token_embeddings"}))
    assert unknown_modules(tmp_path) == ["Normalize of token_embeddings"]


def test_modules_with_code_of_their_own_are_refused(tmp_path):
    (tmp_path / "modules.json").write_text(entries(("custom_st.Transformer", "")))
    with pytest.raises(ModelError, match="the module Transformer needs to run its own code"):
        unknown_modules(tmp_path)


@pytest.mark.parametrize("path", ["../other", "/etc"])
def test_modules_are_inside_the_folder(tmp_path, path):
    (tmp_path / "modules.json").write_text(entries((f"{ST}.Transformer", ""), (f"{ST}.Pooling", path)))
    with pytest.raises(ModelError, match="not a list of modules"):
        read_modules(tmp_path)


def test_a_dense_layer_without_sizes_is_damaged(tmp_path):
    modules = ((f"{ST}.Transformer", ""), (f"{ST}.Pooling", "1"), (f"{ST}.Dense", "2"))
    (tmp_path / "modules.json").write_text(entries(*modules))
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="no in_features and out_features"):
        read_modules(tmp_path)


def test_options_change_what_the_folder_says():
    modules = SentenceModules(after=(Normalize(),), prompts={"query": "query: "})
    changed = with_options(modules, pooling="cls", normalize=False, prompt="query")
    assert (changed.pooling, changed.after, changed.default_prompt) == (("cls",), (), "query")
    assert with_options(modules, pooling=None, normalize=True, prompt=None) == modules
    for wrong, message in (({"pooling": "men"}, "did you mean mean"), ({"prompt": "quer"}, "did you mean query")):
        with pytest.raises(UsageError, match=message):
            with_options(modules, **{"pooling": None, "normalize": None, "prompt": None, **wrong})

"""Folders of sentence-transformers: what is read of them, what is written, and what bertkit does not know."""

from __future__ import annotations

import json

import pytest

from bertkit.errors import ModelError, UsageError
from bertkit.modeling.sentence.folder import (
    DENSE,
    LATE,
    PROJECTION,
    SPARSE,
    Dense,
    Normalize,
    SentenceModules,
    find_format,
    find_unsupported_modules,
    read_format,
    read_modules,
    with_options,
    write_late,
    write_modules,
    write_sparse,
)


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
    assert find_unsupported_modules(tmp_path) == unknown
    if unknown:
        with pytest.raises(ModelError, match="unsupported modules"):
            read_modules(tmp_path)


def test_a_normalization_of_tokens_is_not_that_of_vectors(tmp_path):
    modules = ((f"{ST}.Transformer", ""), (f"{ST}.Pooling", "1"), (f"{ST}.Normalize", "2"))
    (tmp_path / "modules.json").write_text(entries(*modules))
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "config.json").write_text(json.dumps({"module_input_name": "token_embeddings"}))
    assert find_unsupported_modules(tmp_path) == ["Normalize of token_embeddings"]


def test_modules_with_code_of_their_own_are_refused(tmp_path):
    (tmp_path / "modules.json").write_text(entries(("custom_st.Transformer", "")))
    with pytest.raises(ModelError, match="the module Transformer needs to run its own code"):
        find_unsupported_modules(tmp_path)


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
    modules = SentenceModules(transforms=(Normalize(),), prompts={"query": "query: "})
    changed = with_options(modules, pooling="cls", normalize=False, prompt="query")
    assert (changed.pooling, changed.transforms, changed.default_prompt) == (("cls",), (), "query")
    assert with_options(modules, pooling=None, normalize=True, prompt=None) == modules
    for wrong, message in (({"pooling": "men"}, "did you mean mean"), ({"prompt": "quer"}, "did you mean query")):
        with pytest.raises(UsageError, match=message):
            with_options(modules, **{"pooling": None, "normalize": None, "prompt": None, **wrong})


def test_what_is_written_is_read(tmp_path):
    prompts = {"query": "query: ", "document": ""}
    modules = SentenceModules(
        pooling=("cls", "max"), transforms=(Normalize(),), prompts=prompts, default_prompt="query", max_length=64
    )
    write_modules(tmp_path, modules, width=8)
    assert read_modules(tmp_path) == modules


def test_the_pooling_is_written_as_older_versions_and_other_servers_read_it_too(tmp_path):
    write_modules(tmp_path, SentenceModules(pooling=("cls",)), width=8)
    pooling = json.loads((tmp_path / "1_Pooling" / "config.json").read_text())
    assert pooling["pooling_mode"] == "cls"
    assert (pooling["pooling_mode_cls_token"], pooling["pooling_mode_mean_tokens"]) == (True, False)
    assert next(key for key, value in pooling.items() if value is True) == "pooling_mode_cls_token"


MODULES = SentenceModules(pooling=(), prompts={"query": "query: ", "document": ""}, max_length=64, lowercase=True)


@pytest.fixture
def folders(tmp_path):
    """One folder of each format."""
    made = {name: tmp_path / name for name in (DENSE, SPARSE, LATE, "plain")}
    for folder in made.values():
        folder.mkdir()
    write_modules(made[DENSE], SentenceModules(pooling=("cls",), transforms=(Normalize(),), max_length=32), width=8)
    write_sparse(made[SPARSE], MODULES, vocabulary=100)
    write_late(made[LATE], MODULES, width=8, dimension=4)
    return made


def test_each_format_is_found_and_what_is_written_is_read(folders):
    assert [find_format(folder) for folder in folders.values()] == [DENSE, SPARSE, LATE, None]
    sparse, late = (read_format(folders[name], name) for name in (SPARSE, LATE))
    assert (sparse.prompts, sparse.max_length, sparse.lowercase) == (MODULES.prompts, 64, True)
    assert (sparse.similarity, late.similarity, sparse.transforms) == ("dot", "maxsim", ())
    assert late.transforms == (Dense(folders[LATE] / PROJECTION, 8, 4, False, "torch.nn.modules.linear.Identity"),)


def test_any_encoder_may_be_trained_for_another_format(folders):
    found = read_format(folders[DENSE], SPARSE)
    assert (found.pooling, found.transforms, found.max_length) == ((), (), 32)
    assert read_format(folders["plain"], LATE) == SentenceModules(pooling=())
    assert read_format(folders[DENSE], DENSE) == read_modules(folders[DENSE])


def test_folders_of_another_format_are_refused(folders):
    with pytest.raises(ModelError, match="it is a SparseEncoder, not a MultiVectorEncoder"):
        read_format(folders[SPARSE], LATE)
    for name, message in ((SPARSE, "its vectors are sparse"), (LATE, "it makes a vector per token")):
        with pytest.raises(ModelError, match=message):
            read_format(folders[name], DENSE)


@pytest.mark.parametrize(
    ("model_format", "file", "change", "message"),
    [
        (
            SPARSE,
            "1_SpladePooling/config.json",
            {"pooling_strategy": "sum"},
            "unsupported settings: pooling_strategy 'sum'",
        ),
        (LATE, "2_MultiVectorMask/config.json", {"skiplist_words": ["."]}, "unsupported settings: skiplist_words"),
        (LATE, "sentence_bert_config.json", {"query_length": 32}, "unsupported settings: query_length"),
        (LATE, "1_Dense/config.json", {"bias": True}, "its projection has a bias, an activation or"),
        (LATE, "1_Dense/config.json", {"in_features": "8"}, "no in_features and out_features"),
    ],
)
def test_what_bertkit_does_not_compute_is_refused(folders, model_format, file, change, message):
    file = folders[model_format] / file
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ModelError, match=message):
        read_format(folders[model_format], model_format)


def test_other_modules_are_refused(folders):
    listed = json.loads((folders[LATE] / "modules.json").read_text())
    (folders[LATE] / "modules.json").write_text(json.dumps(listed[:3]))
    with pytest.raises(ModelError, match="modules in the order Transformer, Dense, MultiVectorMask"):
        read_format(folders[LATE], LATE)

"""Models found by name: what is fetched of them, and when the cache serves instead."""

from __future__ import annotations

import json
import logging
import shutil

import pytest

from bertkit.errors import ModelError, UnavailableError
from bertkit.storage import hub
from bertkit.storage.hub import repositories
from tests.kills import slow_unless

pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])

SMALL = ["config.json", "tokenizer.json", "tokenizer_config.json"]
UNREAD = ["README.md", "flax_model.msgpack", "onnx/model.onnx", "onnx/config.json", "tf_model.h5", "generation.json"]


@pytest.fixture
def crowded(tiny_model, tmp_path):
    """The tiny model as it lies on the hub: beside files for other programs."""
    folder = tmp_path / "crowded"
    shutil.copytree(tiny_model, folder)
    for name in ["pytorch_model.bin", *UNREAD]:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"not read")
    return folder


def shard(folder, weights, index):
    """Cut the weights of a model folder in two files with an index."""
    content = (folder / weights).read_bytes()
    (folder / weights).unlink()
    stem, ending = weights.split(".")
    names = [f"{stem}-0000{number}-of-00002.{ending}" for number in (1, 2)]
    for name, half in zip(names, (content[:500], content[500:]), strict=True):
        (folder / name).write_bytes(half)
    (folder / index).write_text(json.dumps({"weight_map": {"a": names[0], "b": names[1], "c": names[0]}}))
    return [*names, index]


def begin_again():
    """Forget what the hub has answered, as a new process would."""
    repositories._look_up.cache_clear()


@pytest.mark.parametrize(
    ("model", "card", "config", "base"),
    [
        ("me/model@v2", None, None, "me/model"),
        ("demo", None, None, None),
        ("folder", "base_model: me/base", {"_name_or_path": "me/other"}, "me/base"),
        ("folder", "base_model:\n- me/base", {}, "me/base"),
        ("folder", "tags: [x]", {"_name_or_path": "me/base"}, "me/base"),
        ("folder", None, {"_name_or_path": "/home/me/base"}, None),
        ("folder", None, {"_name_or_path": "here/checkpoint"}, None),  # a folder next to this one
        ("folder", None, {"_name_or_path": "bert"}, None),
        ("folder", "base_model: [", {}, None),
        ("folder", None, {}, None),
    ],
)
def test_the_base_model_of_a_model(tmp_path, monkeypatch, model, card, config, base):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    if config is not None:
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "config.json").write_text(json.dumps(config))
    if card is not None:
        (tmp_path / "folder" / "README.md").write_text(f"---\n{card}\n---\ntext\n")
    assert hub.find_base_model(model) == base


def test_a_model_of_the_cache_is_found_without_a_network(tmp_path, tiny_model, monkeypatch):
    from huggingface_hub import constants

    cache = tmp_path / "hub"
    snapshot = cache / "models--me--tiny" / "snapshots" / "0123456789abcdef0123456789abcdef01234567"
    shutil.copytree(tiny_model, snapshot)
    (cache / "models--me--tiny" / "refs").mkdir()
    (cache / "models--me--tiny" / "refs" / "main").write_text(snapshot.name)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    assert hub.cached_models() == ["me/tiny"]
    assert hub.find_model("me/tiny") == snapshot
    with pytest.raises(UnavailableError, match="did you mean me/tiny; or name a directory"):
        hub.find_model("me/tinyy")


def test_names_that_are_no_names():
    with pytest.raises(ModelError, match="is neither a directory nor the name of a model on the Hub"):
        hub.find_model("no such name")


def test_a_folder_that_is_missing_beside_others_is_no_question_of_the_network(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "v1").mkdir(parents=True)
    with pytest.raises(ModelError, match="no such directory: runs/v9") as raised:
        hub.find_model("runs/v9")
    assert raised.value.remedy.endswith("runs: v1")


def test_a_revision_pins_a_model(loopback, crowded, monkeypatch):
    first = loopback.add("models", "me/tiny", crowded)
    (crowded / "config.json").write_text((crowded / "config.json").read_text() + "\n")
    newest = loopback.add("models", "me/tiny", crowded)
    assert hub.get_commit(hub.find_model(f"me/tiny@{first}")) == first
    assert hub.get_commit(hub.find_model("me/tiny")) == hub.get_commit(hub.find_model("me/tiny@main")) == newest
    with pytest.raises(UnavailableError, match="the Hub does not have"):
        hub.find_model("me/tiny@v2")
    begin_again()
    loopback.fail("/api/", 503)
    assert hub.get_commit(hub.find_model(f"me/tiny@{first}")) == first


def test_only_what_is_read_is_fetched(loopback, crowded):
    loopback.add("models", "me/tiny", crowded)
    folder = hub.find_model("me/tiny")
    assert loopback.fetched() == sorted([*SMALL, "model.safetensors"])
    assert (folder / "model.safetensors").read_bytes() == (crowded / "model.safetensors").read_bytes()


def test_a_model_that_was_fetched_costs_one_question(loopback, crowded):
    loopback.add("models", "me/tiny", crowded)
    folder = hub.find_model("me/tiny")
    loopback.forget()
    begin_again()
    assert hub.find_model("me/tiny") == hub.find_model("me/tiny") == folder
    assert [request.path for request in loopback.requests] == ["/api/models/me/tiny/revision/main"]


@pytest.mark.parametrize("weights", slow_unless(["model.safetensors"], ["model.safetensors", "pytorch_model.bin"]))
def test_shards_are_fetched_as_their_index_names_them(loopback, crowded, weights):
    if weights == "pytorch_model.bin":
        (crowded / weights).write_bytes((crowded / "model.safetensors").read_bytes())
        (crowded / "model.safetensors").unlink()
    shards = shard(crowded, weights, f"{weights}.index.json")
    loopback.add("models", "me/tiny", crowded)
    hub.find_model("me/tiny")
    assert loopback.fetched() == sorted([*SMALL, *shards])
    loopback.fail("*", 503)
    begin_again()
    assert hub.find_model("me/tiny")


def test_a_model_without_safetensors_is_fetched_as_it_is(loopback, crowded):
    (crowded / "model.safetensors").unlink()
    loopback.add("models", "me/tiny", crowded)
    hub.find_model("me/tiny")
    assert loopback.fetched() == sorted([*SMALL, "pytorch_model.bin"])


def test_a_plan_leaves_the_weights_on_the_hub(loopback, crowded):
    loopback.add("models", "me/tiny", crowded)
    with hub.without_weights() as left_out:
        folder = hub.find_model("me/tiny")
        assert hub.bytes_left_out(folder) == (crowded / "model.safetensors").stat().st_size
    assert list(left_out) == [folder] and hub.bytes_left_out(folder) is None
    assert loopback.fetched() == SMALL
    hub.find_model("me/tiny")
    with hub.without_weights() as left_out:
        hub.find_model("me/tiny")
    assert left_out == {}


def test_the_size_of_shards_that_are_left_out_is_known(loopback, crowded):
    size = (crowded / "model.safetensors").stat().st_size
    shard(crowded, "model.safetensors", "model.safetensors.index.json")
    loopback.add("models", "me/tiny", crowded)
    with hub.without_weights() as left_out:
        hub.find_model("me/tiny")
    assert list(left_out.values()) == [size]


@pytest.mark.parametrize("status", slow_unless([403, 429, 503], [401, 403, 404, 429, 500, 502, 503]))
def test_the_cache_serves_where_the_hub_refuses(loopback, crowded, caplog, status):
    commit = loopback.add("models", "me/tiny", crowded)
    folder = hub.find_model("me/tiny")
    loopback.forget()
    loopback.fail("*", status, headers={"Retry-After": "1000"})
    begin_again()
    with caplog.at_level(logging.INFO, "bertkit"):
        assert hub.find_model("me/tiny") == hub.find_model("me/tiny") == folder
    assert [
        line for line in caplog.messages if line.startswith(f"me/tiny is read from the cache (commit {commit[:8]}): ")
    ]
    assert f"({status}" in caplog.text
    assert caplog.text.count("is read from the cache") == 1
    assert len(loopback.requests) == 2  # no waiting: the cache has it


def test_half_a_model_does_not_count_as_one(loopback, crowded):
    loopback.add("models", "me/tiny", crowded)
    with hub.without_weights():
        hub.find_model("me/tiny")
    loopback.fail("*/model.safetensors", 403)
    with pytest.raises(UnavailableError, match=r"me/tiny, model.safetensors: the Hub forbids it \(403\)"):
        hub.find_model("me/tiny")
    begin_again()
    loopback.fail("*", 503)
    with pytest.raises(
        UnavailableError, match=r"'me/tiny' is neither a directory nor in the cache, and the Hub failed"
    ):
        find_quickly("me/tiny")


def find_quickly(name):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
        return hub.find_model(name)


def test_an_update_that_breaks_off_leaves_the_commit_before_it_in_use(loopback, crowded):
    loopback.add("models", "me/tiny", crowded)
    before = hub.find_model("me/tiny")
    (crowded / "config.json").write_text((crowded / "config.json").read_text() + "\n")
    (crowded / "model.safetensors").write_bytes(b"newer")
    loopback.add("models", "me/tiny", crowded)
    loopback.fail("*/model.safetensors", 403)
    begin_again()
    with pytest.raises(UnavailableError, match="the Hub forbids it"):
        hub.find_model("me/tiny")
    begin_again()
    loopback.fail("*", 404)
    loopback.faults.reverse()
    assert hub.find_model("me/tiny") == before


def test_an_index_that_is_none_is_refused(loopback, crowded):
    (crowded / "model.safetensors").unlink()
    (crowded / "model.safetensors.index.json").write_text("[]")
    loopback.add("models", "me/tiny", crowded)
    with pytest.raises(ModelError, match="not an index of weights"):
        hub.find_model("me/tiny")


ST = ["1_Pooling/config.json", "config_sentence_transformers.json", "modules.json", "sentence_bert_config.json"]


@pytest.fixture
def sentence_model(crowded):
    """A model of sentence-transformers with a dense layer, as it lies on the hub."""
    from bertkit.modeling.sentence.folder import SentenceModules, write_modules

    write_modules(crowded, SentenceModules(), width=32)
    entries = json.loads((crowded / "modules.json").read_text())
    entries.append({"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"})
    (crowded / "modules.json").write_text(json.dumps(entries))
    (crowded / "2_Dense").mkdir()
    for name in ("config.json", "model.safetensors", "pytorch_model.bin"):
        (crowded / "2_Dense" / name).write_text("{}")
    return crowded


def test_a_model_of_sentence_transformers_comes_with_its_modules(loopback, sentence_model):
    loopback.add("models", "me/vectors", sentence_model)
    hub.find_model("me/vectors")
    dense = ["2_Dense/config.json", "2_Dense/model.safetensors"]
    assert loopback.fetched() == sorted([*SMALL, *ST, *dense, "model.safetensors"])


@pytest.mark.slow
def test_a_module_without_safetensors_is_fetched_as_it_is(loopback, sentence_model):
    (sentence_model / "2_Dense" / "model.safetensors").unlink()
    loopback.add("models", "me/vectors", sentence_model)
    assert (hub.find_model("me/vectors") / "2_Dense" / "pytorch_model.bin").is_file()


def test_an_encoder_in_a_subfolder_is_fetched_from_there(loopback, sentence_model, tiny_model, tmp_path):
    old = tmp_path / "old"
    shutil.copytree(tiny_model, old / "0_Transformer")
    shutil.copytree(sentence_model / "1_Pooling", old / "1_Pooling")
    modules = json.loads((sentence_model / "modules.json").read_text())[:2]
    modules[0]["path"] = "0_Transformer"
    (old / "modules.json").write_text(json.dumps(modules))
    shards = shard(old / "0_Transformer", "model.safetensors", "model.safetensors.index.json")
    (old / "0_Transformer" / "model.onnx").write_text("")
    loopback.add("models", "me/old", old)
    hub.find_model("me/old")
    encoder = [f"0_Transformer/{name}" for name in (*SMALL, *shards)]
    assert loopback.fetched() == sorted([*encoder, "1_Pooling/config.json", "modules.json"])
    loopback.fail("*", 503)
    begin_again()
    assert hub.find_model("me/old")


def test_a_router_comes_with_the_modules_of_its_routes(loopback, tiny_model, tmp_path):
    from bertkit.modeling.sentence.folder import SPARSE, SentenceModules, read_format, write_sparse

    source = shutil.copytree(tiny_model, tmp_path / "sparse")
    table = write_sparse(source, SentenceModules(), 86, has_table=True)
    (table / "model.safetensors").write_text("{}")
    loopback.add("models", "me/sparse", source)
    folder = hub.find_model("me/sparse")
    assert read_format(folder, SPARSE).query_table == folder / table.name
    assert (folder / table.name / "model.safetensors").is_file()


def test_a_damaged_list_of_modules_is_named(loopback, sentence_model):
    (sentence_model / "modules.json").write_text("{}{")
    loopback.add("models", "me/vectors", sentence_model)
    with pytest.raises(ModelError, match="not a list of modules"):
        hub.find_model("me/vectors")

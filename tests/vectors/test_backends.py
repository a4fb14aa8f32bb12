"""Vectors that sentence-transformers computes, and those of the graph of an export, without torch."""

from __future__ import annotations

import json
import shutil
import sys

import numpy as np
import pytest

from bertkit.errors import ModelError, UnavailableError, UsageError
from bertkit.modeling.sentence.folder import SentenceModules, write_modules
from bertkit.vectors.embedder import Embedder
from tests.conftest import make_tokenizer
from tests.kills import slow_unless
from tests.runtime.hand_made import write_exported, write_vectors

TEXTS = ["the film is good", "a very dull book"]
GRAPH_TEXTS = ["the film was good", "good " * 40, "a"]


@pytest.fixture
def folder(tiny_model, tmp_path):
    """A model whose last module is a layer norm."""
    import torch
    from safetensors.torch import save_file

    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    write_modules(folder, SentenceModules(prompts={"query": "the "}), width=32)
    entries = json.loads((folder / "modules.json").read_text())
    module = "sentence_transformers.sentence_transformer.modules.layer_norm.LayerNorm"
    entries.append({"idx": 2, "name": "2", "path": "2_LayerNorm", "type": module})
    (folder / "modules.json").write_text(json.dumps(entries))
    (folder / "2_LayerNorm").mkdir()
    (folder / "2_LayerNorm" / "config.json").write_text(json.dumps({"dimension": 32}))
    weights = {"norm.weight": torch.linspace(1, 2, 32), "norm.bias": torch.zeros(32)}
    save_file(weights, folder / "2_LayerNorm" / "model.safetensors")
    return folder


@pytest.mark.slow
def test_the_library_computes_what_bertkit_does_not_know(folder):
    from sentence_transformers import SentenceTransformer

    reference = SentenceTransformer(str(folder), device="cpu")
    embedder = Embedder(str(folder), prompt="query", dimension=8)
    assert embedder.unknown == ["LayerNorm"]
    np.testing.assert_allclose(embedder.encode(TEXTS), reference.encode(TEXTS, prompt="the ")[:, :8], atol=1e-6)
    np.testing.assert_allclose(embedder.with_prompt("").encode(TEXTS), reference.encode(TEXTS)[:, :8], atol=1e-6)
    assert embedder.describe()["max_length"] == 64
    named = {"attn_implementation": "kernels-community/flash-attn2"}  # nor is it fetched
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 64, "model_args": named}))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | named))
    np.testing.assert_allclose(Embedder(str(folder)).encode(TEXTS), reference.encode(TEXTS), atol=1e-6)
    (folder / "2_LayerNorm" / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match="sentence-transformers does not load it"):
        Embedder(str(folder)).encode(TEXTS)


def test_without_the_library_its_extra_is_named(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(UnavailableError, match=r"pip install .*\[sentence-transformers\]'"):
        Embedder(str(folder)).encode(TEXTS)


@pytest.mark.parametrize("option", [{"pooling": "cls"}, {"normalize": True}, {"layers": "mean_last_2"}])
def test_options_that_such_modules_do_not_have_are_refused(folder, option):
    with pytest.raises(UsageError, match="the model has custom modules: LayerNorm"):
        Embedder(str(folder), **option).encode(TEXTS)


def sums(table: np.ndarray, texts: list[str], length: int = 32) -> np.ndarray:
    tokenizer = make_tokenizer()
    return np.stack([table[tokenizer(text, truncation=True, max_length=length)["input_ids"]].sum(0) for text in texts])


@pytest.mark.parametrize(
    "output", slow_unless(["sentence_embedding"], ["sentence_embedding", "vectors"])
)  # the last is that of earlier exports
def test_vectors_are_those_of_the_graph_without_torch(output, tmp_path, light_zygote):
    table = write_vectors(tmp_path / "made", output)
    model = Embedder(str(tmp_path / "made"))
    assert np.abs(model.encode(GRAPH_TEXTS) - sums(table, GRAPH_TEXTS)).max() < 1e-4
    begun = [f"good {text}" for text in GRAPH_TEXTS]
    assert np.abs(model.with_prompt("query").encode(GRAPH_TEXTS) - sums(table, begun)).max() < 1e-4
    shorter = Embedder(str(tmp_path / "made"), max_length=8, dimension=2)
    assert np.abs(shorter.encode(GRAPH_TEXTS) - sums(table, GRAPH_TEXTS, 8)[:, :2]).max() < 1e-4
    (tmp_path / "texts.txt").write_text("\n".join(GRAPH_TEXTS))
    arguments = ["embed", "texts.txt", "--model", "made", "--output", "vectors.npy"]
    assert light_zygote.imports(tmp_path, arguments) & {"torch", "transformers", "datasets"} == set()
    assert json.loads((tmp_path / "vectors.npy.json").read_text())["precision"] == "fp32"


def test_what_a_graph_has_settled_cannot_be_changed(tmp_path):
    write_vectors(tmp_path / "made")
    for options in ({"pooling": "cls"}, {"normalize": True}, {"layers": "mean_last_2"}):
        with pytest.raises(UsageError, match=r"custom modules: the graph of an exported model .* - leave out"):
            Embedder(str(tmp_path / "made"), **options).encode(["a"])
    with pytest.raises(UsageError, match="a length of 99 tokens"):
        Embedder(str(tmp_path / "made"), max_length=99).encode(["a"])
    write_vectors(tmp_path / "unpooled", include_prompt=False)
    with pytest.raises(ModelError, match="leaves out the tokens of prompts, which a graph cannot"):
        Embedder(str(tmp_path / "unpooled"), prompt="query").encode(["a"])


def test_a_graph_without_vectors_is_refused(tmp_path):
    write_exported(tmp_path / "classes", ("bad", "good"))
    with pytest.raises(ModelError, match="exported for text_classification, and its graph makes no vectors of texts"):
        Embedder(str(tmp_path / "classes")).encode(["a"])


def test_other_graphs_have_other_fingerprints(tmp_path):
    write_vectors(tmp_path / "one")
    write_vectors(tmp_path / "two", prompts={})
    one, again, two = (Embedder(str(tmp_path / name)).fingerprint for name in ("one", "one", "two"))
    assert one == again != two

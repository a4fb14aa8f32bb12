"""Modules that bertkit does not know, computed by sentence-transformers."""

from __future__ import annotations

import json
import shutil
import sys

import numpy as np
import pytest

from bertkit.errors import ModelError, UnavailableError, UsageError
from bertkit.modeling.sentence.modules import SentenceModules
from bertkit.modeling.sentence.writing import write_modules
from bertkit.vectors.embedder import Embedder

TEXTS = ["the film is good", "a very dull book"]


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
    with pytest.raises(UsageError, match="the model has modules of its own: LayerNorm"):
        Embedder(str(folder), **option).encode(TEXTS)

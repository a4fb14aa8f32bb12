"""Vectors of all layers, compared with a plain forward pass over each row."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from bertkit.analysis.layer_vectors import LayerReader
from bertkit.errors import DataError, ModelError

TEXT = "the xyz film"  # xyz is three tokens
WORDS = ["the", "xyz", "film"]


@pytest.fixture(scope="module")
def reader(tiny_model):
    return LayerReader(str(tiny_model), precision="fp32")


def plain(folder, *texts):
    """Compute the hidden states of a text or a pair, (layers + 1, tokens, width)."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        states = model(**tokenizer(*texts, return_tensors="pt"), output_hidden_states=True).hidden_states
    return torch.cat(states).numpy()


def test_a_text_and_a_pair_have_the_mean_of_their_tokens_at_each_layer(reader, tiny_model):
    texts = reader.read([{"text": TEXT}, {"text": "good"}], "text")
    expected = plain(tiny_model, TEXT)
    assert texts.layers == len(expected) - 1
    np.testing.assert_allclose(texts.vectors[0], expected.mean(axis=1), atol=1e-5)
    np.testing.assert_allclose(texts.at(1)[1], plain(tiny_model, "good")[1].mean(axis=0), atol=1e-5)
    pairs = reader.read([{"text": "good", "text_pair": "a film"}, {"text": TEXT, "text_pair": "bad"}], "pair")
    np.testing.assert_allclose(pairs.vectors[1], plain(tiny_model, TEXT, "bad").mean(axis=1), atol=1e-5)
    assert pairs.rows.tolist() == [0, 1] and pairs.index.tolist() == [0, 0]


def test_a_word_has_the_mean_of_its_tokens_at_each_layer(reader, tiny_model):
    words = reader.read([{"tokens": ["good"]}, {"tokens": WORDS}], "word")
    assert words.rows.tolist() == [0, 1, 1, 1] and words.index.tolist() == [0, 0, 1, 2]
    expected = plain(tiny_model, TEXT)
    np.testing.assert_allclose(words.vectors[2], expected[:, 2:5].mean(axis=1), atol=1e-5)
    target = reader.read([{"tokens": WORDS, "target": 1}], "target")
    np.testing.assert_allclose(target.vectors[0], words.vectors[2], atol=1e-5)


def test_many_rows_are_computed_once(reader, tiny_model, monkeypatch, tmp_path):
    from bertkit.vectors.embedder import Embedder

    monkeypatch.setenv("BERTKIT_CACHE", str(tmp_path))
    rows = [{"text": " ".join(["good film"] * (1 + number % 3))} for number in range(600)]
    encode, calls = Embedder.encode, []

    def counted(self, texts, **options):
        calls.append(len(texts))
        return encode(self, texts, **options)

    monkeypatch.setattr(Embedder, "encode", counted)
    first = reader.read(rows, "text")
    again = LayerReader(str(tiny_model), precision="fp32").read(rows, "text")
    assert calls == [256, 256, 88]
    np.testing.assert_array_equal(first.vectors, again.vectors)
    np.testing.assert_allclose(first.vectors[0], first.vectors[300], atol=1e-6)
    reader.read(rows[:1], "text")
    assert calls[3:] == [1]


def test_what_a_folder_does_to_the_vectors_of_texts_is_left_out(reader, tiny_model, tmp_path):
    folder = shutil.copytree(tiny_model, tmp_path / "sentences")
    names = ("Transformer", "Pooling", "Dense", "Normalize")
    modules = [
        {
            "idx": number,
            "name": str(number),
            "path": f"{number}_{name}" if number else "",
            "type": f"sentence_transformers.models.{name}",
        }
        for number, name in enumerate(names)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    for name, settings in {
        "1_Pooling": {"word_embedding_dimension": 32, "pooling_mode_cls_token": True},
        "2_Dense": {"in_features": 32, "out_features": 8},
    }.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(settings))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"truncate_dim": 4}))
    of_folder = LayerReader(str(folder), precision="fp32").read([{"text": TEXT}], "text")
    np.testing.assert_array_equal(of_folder.vectors, reader.read([{"text": TEXT}], "text").vectors)
    modules[2]["type"] = "sentence_transformers.models.LSTM"
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ModelError, match=r"custom modules: .*LSTM.* - name another encoder"):
        LayerReader(str(folder)).read([{"text": TEXT}], "text")


def test_a_row_with_something_else_is_refused(reader):
    with pytest.raises(DataError, match="must be strings"):
        reader.read([{"text": "good", "text_pair": 3}], "pair")
    with pytest.raises(DataError, match="not text"):
        reader.read([{"text": 3}], "text")

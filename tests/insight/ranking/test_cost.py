"""What an encoder costs: its size and longest input are those of transformers, its license that of the catalog."""

from __future__ import annotations

import pytest
from transformers import AutoModel

from bertkit.errors import ModelError
from bertkit.insight.layer_vectors import LayerReader
from bertkit.insight.ranking import cost
from bertkit.insight.ranking.cost import measure_costs, texts_of


def test_costs_are_measured(tiny_model, timed_once):
    readers = [LayerReader(model, 16, "fp32") for model in (str(tiny_model), "demo")]
    rows = [{"text": f"a good film {number}", "text_pair": "bad"} for number in range(40)]
    tiny, demo = measure_costs([reader.embedder for reader in readers], rows)
    assert tiny.parameters == sum(one.numel() for one in AutoModel.from_pretrained(tiny_model).parameters())
    assert (tiny.max_tokens, demo.max_tokens) == (64, 128)
    assert (tiny.license, tiny.languages) == ("unknown", "unknown")
    assert tiny.tokens_per_second / tiny.rows_per_second == pytest.approx(
        sum(len(readers[0].embedder.tokenizer(text)["input_ids"]) for text in texts_of(rows)) / 40
    )
    assert demo.memory_bytes is None or demo.memory_bytes >= 0


def test_published_encoders_have_a_license():
    assert cost._describe_model("answerdotai/ModernBERT-base") == ("Apache-2.0", "en")


def test_words_are_joined_and_a_damaged_model_is_named(tiny_model, tmp_path):
    assert texts_of([{"tokens": ["a", "b"], "target": 1}, {"text": "c"}]) == ["a b", "c"]
    assert len(texts_of([{"text": "c"}] * 200)) == 64
    for file in tiny_model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes()[: 100 if file.suffix == ".safetensors" else None])
    with pytest.raises(ModelError, match="does not load") as raised:
        measure_costs([LayerReader(str(tmp_path), precision="fp32").embedder], [{"text": "a"}])
    assert str(tmp_path) in str(raised.value)

"""A tokenizer that is read without transformers splits texts as transformers does."""

from __future__ import annotations

import json

import pytest

from bertkit.errors import ModelError
from bertkit.modeling.load import load_tokenizer
from bertkit.storage import hub
from bertkit.tokens.features import tokenize_texts
from bertkit.tokens.light import lowercases, read_light_tokenizer

TEXTS = ["Bank is located in the city of London", "naïve [SEP] ж", " two  spaces\n", "", "日本"]


def test_its_tokens_are_those_of_transformers():
    folder = hub.find_model("demo")
    light = read_light_tokenizer(folder)
    expected = tokenize_texts(load_tokenizer(folder), TEXTS)
    for text, encoding in zip(TEXTS, expected, strict=True):
        assert light.encode(text, add_special_tokens=False).ids == encoding.ids
    assert light.encode("word " * 500).ids[-1] == light.token_to_id("[SEP]")  # not truncated, not padded
    assert len(light.encode("a").ids) == 3


def test_what_transformers_would_change_is_left_to_it(tmp_path):
    source = hub.find_model("demo")
    content = (source / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(content)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "do_lower_case": false}')
    assert lowercases(json.loads(content))
    assert read_light_tokenizer(tmp_path) is None
    (tmp_path / "tokenizer_config.json").unlink()
    assert read_light_tokenizer(tmp_path) is not None
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="does not load"):
        read_light_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    assert read_light_tokenizer(tmp_path) is None

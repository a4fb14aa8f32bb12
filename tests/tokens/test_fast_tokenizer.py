"""A tokenizer that is read without transformers splits texts as transformers does."""

from __future__ import annotations

import json

import pytest
from transformers import AutoTokenizer

from bertkit.errors import ModelError
from bertkit.modeling.tokenizer import load_tokenizer, read_tokenizer
from bertkit.recipe import load_recipe
from bertkit.runtime.tokenizer import open_tokenizer, tokenizer_settings
from bertkit.storage import hub
from bertkit.tokens.fast_tokenizer import lowercases, read_fast_tokenizer
from bertkit.tokens.features import TaskContext, encode_texts, tokenize_texts

TEXTS = ["Bank is located in the city of London", "naïve [SEP] ж", " two  spaces\n", "", "日本"]
PLAIN_SEP = AutoTokenizer.from_pretrained(hub.find_model("demo")).convert_tokens_to_ids(["[", "s", "##e", "##p", "]"])


def test_its_tokens_are_those_of_transformers():
    folder = hub.find_model("demo")
    fast = read_fast_tokenizer(folder)
    expected = tokenize_texts(load_tokenizer(folder), TEXTS)
    for text, encoding in zip(TEXTS, expected, strict=True):
        assert fast.encode(text, add_special_tokens=False).ids == encoding.ids
    assert fast.encode("word " * 500).ids[-1] == fast.token_to_id("[SEP]")  # not truncated, not padded
    assert len(fast.encode("a").ids) == 3


def test_what_transformers_would_change_is_left_to_it(tmp_path):
    source = hub.find_model("demo")
    content = (source / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(content)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "do_lower_case": false}')
    assert lowercases(json.loads(content))
    assert read_fast_tokenizer(tmp_path) is None
    (tmp_path / "tokenizer_config.json").unlink()
    assert read_fast_tokenizer(tmp_path) is not None
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="does not load"):
        read_fast_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    assert read_fast_tokenizer(tmp_path) is None


def test_only_special_tokens_of_the_template_are_split_in_a_text(tmp_path):
    source, folder, saved = hub.find_model("demo"), tmp_path / "markers", tmp_path / "saved"
    theirs = AutoTokenizer.from_pretrained(source)
    theirs.add_special_tokens({"additional_special_tokens": ["[E1]", "[/E1]"]})
    theirs(["a", "b c"], padding="max_length", max_length=4, truncation=True)
    theirs.save_pretrained(folder)
    content = json.loads((folder / "tokenizer.json").read_text())
    content["truncation"] = {"max_length": 4, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    pad = {"pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}
    content["padding"] = {"strategy": {"Fixed": 30}, "direction": "Right", "pad_to_multiple_of": None, **pad}
    (folder / "tokenizer.json").write_text(json.dumps(content))

    text = "[E1] the dog [/E1] is red, and so is[E1]that cat"
    expected = theirs(text, padding=False)["input_ids"]
    loaded = read_tokenizer(folder)
    loaded.save_pretrained(saved)
    opened = open_tokenizer(folder, tokenizer_settings(loaded))
    assert {theirs.convert_tokens_to_ids(token) for token in ("[E1]", "[/E1]")} < set(expected)
    for tokenizer in (loaded, opened, open_tokenizer(saved, tokenizer_settings(loaded))):
        assert [one.ids for one in tokenize_texts(tokenizer, [text, "[SEP]"])] == [expected[1:-1], PLAIN_SEP]
        assert [one.ids for one in tokenize_texts(tokenizer, [text.split(), ["[SEP]"]])][1] == PLAIN_SEP
        feature = encode_texts([{"text": text}], TaskContext(load_recipe("cola", {"model": "demo"}), tokenizer, ()))[0]
        assert feature["input_ids"] == expected
    for read in map(read_fast_tokenizer, (folder, saved)):
        assert [read.encode(one, add_special_tokens=False).ids for one in (text, "[SEP]")] == [
            expected[1:-1],
            PLAIN_SEP,
        ]
    assert AutoTokenizer.from_pretrained(saved)(text)["input_ids"] == expected

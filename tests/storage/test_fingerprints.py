"""Fingerprints: equal for equal content, and only then."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path

from bertkit.storage.fingerprints import file_fingerprint, json_fingerprint, package_fingerprint, tokenizer_content
from tests.conftest import make_tokenizer


def test_a_file_is_read_in_blocks_to_its_end(tmp_path):
    content = bytes(range(256)) * 5000  # more than a mebibyte
    (tmp_path / "a").write_bytes(content)
    assert file_fingerprint(tmp_path / "a") == hashlib.sha256(content).hexdigest()


def test_values_are_those_that_json_gives_back():
    values = {"a": (1, 2.5), 10: "x", 9: None, "folder": Path("a")}
    assert json_fingerprint(values) == json_fingerprint(json.loads(json.dumps(values, default=str)))
    assert json_fingerprint({"loss": math.nan}) == json_fingerprint({"loss": None})
    assert json_fingerprint({"loss": 0.5}) != json_fingerprint({"loss": 0.25})


def test_the_package_has_one_fingerprint():
    assert len(package_fingerprint()) == 64
    assert package_fingerprint() == package_fingerprint()


def test_truncation_and_padding_of_the_last_call_do_not_count():
    tokenizer, fresh = make_tokenizer(), tokenizer_content(make_tokenizer())
    tokenizer(["good film", "good"], truncation=True, max_length=4, padding=True)
    assert tokenizer_content(tokenizer) == fresh


def test_a_word_more_and_another_length_count():
    fresh = tokenizer_content(make_tokenizer())
    longer, larger = make_tokenizer(), make_tokenizer()
    longer.model_max_length = 128
    larger.add_tokens(["unheard"])
    assert fresh != tokenizer_content(longer) != tokenizer_content(larger) != fresh

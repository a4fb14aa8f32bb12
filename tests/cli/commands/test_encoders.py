"""What `bertkit encoders` prints."""

from __future__ import annotations

import json


def test_a_table_of_encoders_and_json(run):
    ended = run("encoders", "--language", "de", "--min-tokens", 1024, "--no-vectors")
    assert ended.code == 0
    assert "    EuroBERT/EuroBERT-210m        212M   8,192         15  Apache-2.0\n" in ended.out
    assert "  jhu-clsp/mmBERT-small   many languages and long texts, small\n" in ended.out
    assert ended.out.endswith("the model card on the Hub lists them.\n")
    found = json.loads(run("encoders", "--license", "open", "--max-parameters", 15, "--json").out)["encoders"]
    assert {one["name"] for one in found} == {"google/electra-small-discriminator", "albert/albert-base-v2"}


def test_nothing_found_is_said(run):
    assert run("encoders", "--max-parameters", 1).out == "no encoder meets all conditions; leave one out\n"

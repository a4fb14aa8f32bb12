"""Folders of sentence-transformers, written and read again."""

from __future__ import annotations

import json

from bertkit.modeling.sentence.modules import Normalize, SentenceModules, read_modules
from bertkit.modeling.sentence.writing import write_modules


def test_what_is_written_is_read(tmp_path):
    prompts = {"query": "query: ", "document": ""}
    modules = SentenceModules(
        pooling=("cls", "max"), after=(Normalize(),), prompts=prompts, default_prompt="query", max_length=64
    )
    write_modules(tmp_path, modules, width=8)
    assert read_modules(tmp_path) == modules


def test_the_pooling_is_written_as_older_versions_and_other_servers_read_it_too(tmp_path):
    write_modules(tmp_path, SentenceModules(pooling=("cls",)), width=8)
    pooling = json.loads((tmp_path / "1_Pooling" / "config.json").read_text())
    assert pooling["pooling_mode"] == "cls"
    assert (pooling["pooling_mode_cls_token"], pooling["pooling_mode_mean_tokens"]) == (True, False)
    assert next(key for key, value in pooling.items() if value is True) == "pooling_mode_cls_token"

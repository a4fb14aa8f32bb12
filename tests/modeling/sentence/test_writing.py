"""Folders of sentence-transformers, written and read again."""

from __future__ import annotations

from bertkit.modeling.sentence.modules import Normalize, SentenceModules, read_modules
from bertkit.modeling.sentence.writing import write_modules


def test_what_is_written_is_read(tmp_path):
    prompts = {"query": "query: ", "document": ""}
    modules = SentenceModules(
        pooling=("cls", "max"), after=(Normalize(),), prompts=prompts, default_prompt="query", max_length=64
    )
    write_modules(tmp_path, modules, width=8)
    assert read_modules(tmp_path) == modules

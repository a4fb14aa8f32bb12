"""What a folder of sentence-transformers says, read and written."""

from __future__ import annotations

import json

import pytest

from bertkit.errors import ModelError
from bertkit.modeling.sentence.modules import Normalize, SentenceModules, read_modules, write_modules


def test_a_plain_model_folder_pools_the_mean(tmp_path):
    assert read_modules(tmp_path) == SentenceModules()


def test_what_is_written_is_read(tmp_path):
    prompts = {"query": "query: ", "document": ""}
    modules = SentenceModules(
        pooling=("cls", "max"), after=(Normalize(),), prompts=prompts, default_prompt="query", max_length=64
    )
    write_modules(tmp_path, modules, width=8)
    assert read_modules(tmp_path) == modules


def test_old_folders_switch_pooling_modes_on_one_by_one(tmp_path):
    write_modules(tmp_path, SentenceModules(), width=8)
    config = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False, "word_embedding_dimension": 8}
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(config))
    assert read_modules(tmp_path).pooling == ("cls",)


@pytest.mark.parametrize("content", ["{", "[1]", '[{"type": "a.Transformer", "path": ""}]'])
def test_a_damaged_list_of_modules_is_refused(content, tmp_path):
    (tmp_path / "modules.json").write_text(content)
    with pytest.raises(ModelError):
        read_modules(tmp_path)

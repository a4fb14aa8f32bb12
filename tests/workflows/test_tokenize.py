"""Texts and files of texts are tokenized without torch."""

from __future__ import annotations

import pytest

from bertkit.errors import DataError, UsageError
from bertkit.recipe import DataConfig
from bertkit.workflows.tokenize import is_file, measure_file, tokenize_text
from tests.kills import HEAVY


def test_what_is_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "README").write_text("a")
    assert not is_file("a long text " * 100)
    assert [is_file(source) for source in ("-", "README", "rows.csv", "folder", "a text", "see rows.csv")] == [
        *(True, True, True),
        *(False, False, False),
    ]


def test_a_file_has_texts_or_lists_of_words(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"tokens": ["An", "apple"]}\n{"tokens": ["No"]}\n')
    data = DataConfig(columns={"text": "tokens"})
    assert measure_file(str(tmp_path / "a.jsonl"), ["demo"], data=data)[0].words == 3
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(DataError):
        measure_file(str(tmp_path / "a.txt"), ["demo"])
    with pytest.raises(UsageError, match="named twice"):
        tokenize_text("a", ["demo", "demo"])


def test_torch_is_not_imported(tmp_path, light_zygote):
    imported = light_zygote.imports(tmp_path, ["tokenize", "Bank is located", "--model", "demo"])
    assert HEAVY & imported <= {"numpy"}

"""Attention of a text, and of the rows of a file."""

from __future__ import annotations

from bertkit.recipe import DataConfig
from bertkit.workflows.attention import measure, show
from tests.conftest import write_jsonl


def test_a_page_begins_with_a_head(tmp_path, tiny_model):
    show("a film", str(tiny_model), first_head=(1, 1), output=tmp_path / "text.html")
    assert '"layer":1,"head":1}' in (tmp_path / "text.html").read_text()


def test_a_file_is_read_up_to_its_limit(tmp_path, tiny_model):
    rows = [{"tokens": ["a", "film"], "head": ["2", "0"], "deprel": ["det", "root"]}] * 3
    file = write_jsonl(tmp_path / "rows.jsonl", rows)
    assert measure(str(file), str(tiny_model)).rows == 3
    assert measure(str(file), str(tiny_model), data=DataConfig(limit=2)).rows == 2

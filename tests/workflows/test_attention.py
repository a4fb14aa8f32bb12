"""Attention of a text, and of a file, a folder and its splits; pages overwrite nothing that is read."""

from __future__ import annotations

import pytest

from bertkit.errors import DataError, ModelError, UsageError
from bertkit.recipe import Data
from bertkit.workflows.attention import check_output, measure, show
from tests.conftest import write_jsonl


def test_a_page_begins_with_a_head(tmp_path, tiny_model):
    show("a film", str(tiny_model), at=(1, 1), output=tmp_path / "text.html")
    assert '"layer":1,"head":1}' in (tmp_path / "text.html").read_text()
    with pytest.raises(UsageError, match="the model has 2 layers of 2 heads"):
        show("a film", str(tiny_model), at=(2, 0))
    with pytest.raises(ModelError, match="no such directory"):
        show("a", "./none")


def test_a_file_of_the_model_is_not_overwritten(tmp_path):
    (tmp_path / "readme.html").write_text("kept")
    with pytest.raises(UsageError, match="--output is a file of the model folder"):
        check_output(tmp_path / "readme.html", str(tmp_path), {})


def test_a_file_a_folder_and_its_splits(tmp_path, tiny_model):
    rows = [{"tokens": ["a", "film"], "head": ["2", "0"], "deprel": ["det", "root"]}] * 3
    write_jsonl(tmp_path / "data" / "validation.jsonl", rows)
    write_jsonl(tmp_path / "data" / "test.jsonl", rows[:1])
    model = str(tiny_model)
    assert measure(str(tmp_path / "data"), model).rows == 3
    assert measure(str(tmp_path / "data"), model, split="test").rows == 1
    assert measure(str(tmp_path / "data" / "validation.jsonl"), model, data=Data(limit=2)).rows == 2
    with pytest.raises(DataError, match="no split 'dev'"):
        measure(str(tmp_path / "data"), model, split="dev")
    with pytest.raises(UsageError, match="--split test of a single file"):
        measure(str(tmp_path / "data" / "test.jsonl"), model, split="test")


def test_pages_are_written_and_nothing_that_is_read_is_overwritten(tmp_path, tiny_model):
    (tmp_path / "rows.html").write_text("a film\n")
    data = Data(format="txt")
    for output, message in (("page.txt", "the page is HTML"), ("rows.html", "--output is the file that is measur")):
        with pytest.raises(UsageError, match=message):
            measure(str(tmp_path / "rows.html"), str(tiny_model), data=data, output=tmp_path / output)
    assert (tmp_path / "rows.html").read_text() == "a film\n"
    measure(str(tmp_path / "rows.html"), str(tiny_model), data=data, output=tmp_path / "page.html")
    assert "Heads of" in (tmp_path / "page.html").read_text()


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("\n")
    with pytest.raises(DataError):
        measure(str(tmp_path / "a.txt"), "demo")

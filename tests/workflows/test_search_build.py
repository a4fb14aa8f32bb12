"""An index built of a file, added to, deleted from; killed, and gone on with."""

from __future__ import annotations

import json

import pytest

from bertkit.errors import DataError, ResourceError, UsageError
from bertkit.storage.outputs import lock_output_folder
from bertkit.vectors.embedder import Embedder
from bertkit.vectors.search.index import Index
from bertkit.vectors.search.rows import TextRows
from bertkit.workflows.search import add, build, delete
from tests.conftest import toy_rows, write_csv


@pytest.fixture
def embedder(tiny_model):
    return Embedder(str(tiny_model), precision="fp32")


@pytest.fixture
def rows(here):
    write_csv(here / "rows.csv", toy_rows(40, seed=1))
    return TextRows.open("rows.csv")


def test_what_is_built_added_and_deleted(rows, embedder, here):
    report = build(rows, embedder, "index")
    assert (report.changed, report.rows, report.dimension, report.similarity) == (40, 40, 32, "cosine")
    write_csv(here / "more.csv", [{"text": "the superb song"}, {"text": "a dull book"}])
    assert add("index", TextRows.open("more.csv")).rows == 42
    report = delete("index", ["0", "41"])
    assert (report.changed, report.rows) == (2, 40)
    index = Index.open(here / "index", verify=True)
    (row,) = index.search(embedder.encode(["the superb song"]), 1)[1]
    assert index.rows(row) == [{"id": 40, "text": "the superb song"}]


def test_rows_that_were_added_are_not_added_again(rows, embedder, here, caplog):
    caplog.set_level("INFO", logger="bertkit")
    build(rows, embedder, "index")
    write_csv(here / "more.csv", [{"text": "the superb song"}, {"text": "a dull book"}])
    more = TextRows.open("more.csv")
    assert (add("index", more).changed, add("index", more).changed, add("index", rows).changed) == (2, 0, 0)
    assert "the index already has the rows of more.csv; nothing is added" in caplog.text
    assert len(Index.open(here / "index", verify=True)) == 42
    delete("index", ["41"])
    assert (add("index", more).changed, len(Index.open(here / "index"))) == (2, 43)


def test_with_one_wrong_id_nothing_is_deleted(rows, embedder, here):
    build(rows, embedder, "index")
    with pytest.raises(DataError, match=r"no row has the id 'x' \(and 1 more\).*nothing was deleted"):
        delete("index", ["1", "x", "y"])
    assert len(Index.open(here / "index")) == 40


def test_a_second_writer_is_refused(rows, embedder, here):
    build(rows, embedder, "index")
    for write in (lambda: delete("index", ["1"]), lambda: add("index", rows), lambda: build(rows, embedder, "new")):
        refused = pytest.raises(ResourceError, match="is writing this output")
        with lock_output_folder(here / "index"), lock_output_folder(here / "new"), refused:
            write()
    assert not (here / "new").exists()


def test_an_index_that_exists_is_refused_at_once(rows, here):
    (here / "index").mkdir()
    with pytest.raises(UsageError, match="the index exists"):
        build(rows, Embedder("no/such/model/folder"), "index")


def test_a_file_that_changes_meanwhile_is_refused(rows, embedder, here, monkeypatch):
    monkeypatch.setattr(TextRows, "fingerprint", lambda self: write_csv(here / "rows.csv", toy_rows(7, seed=1)) and {})
    with pytest.raises(DataError, match="changed while it was read"):
        build(rows, embedder, "index")
    assert [entry.name for entry in here.iterdir()] == ["rows.csv"]


@pytest.mark.slow
def test_a_killed_build_ends_as_an_unbroken_one(tmp_path, tiny_model, zygote):
    command = ["search", "build", "rows.csv", "--model", str(tiny_model), "--output", "index", "--precision", "fp32"]
    folders = [tmp_path / "whole", tmp_path / "broken"]
    for folder in folders:
        folder.mkdir()
        write_csv(folder / "rows.csv", toy_rows(40, seed=1))
    assert zygote.run(folders[0], command)[0] == 0
    assert zygote.run(folders[1], command, {"function": "bertkit.vectors.search.index.Index._write_words"})[0] == -9
    code, text = zygote.run(folders[1], command)
    assert code == 0, text
    assert "resuming: 40 of 40 rows are already indexed" in text
    manifests = [json.loads((folder / "index" / "manifest.json").read_text()) for folder in folders]
    assert manifests[0] == manifests[1]
    assert {entry.name for entry in folders[1].iterdir()} <= {"rows.csv", "index", "out.txt", ".index.lock"}


@pytest.mark.slow
@pytest.mark.parametrize("function", ["_append_rows", "_write_words", "delete_old_words"])
def test_a_killed_addition_adds_its_rows_once(function, rows, embedder, here, zygote):
    build(rows, embedder, "index")
    write_csv(here / "more.csv", [{"text": "the superb song"}, {"text": "a dull book"}])
    command = ["search", "add", "index", "more.csv"]
    assert zygote.run(here, command, {"function": f"bertkit.vectors.search.index.Index.{function}"})[0] == -9
    code, text = zygote.run(here, command)
    assert code == 0, text
    assert len(Index.open(here / "index", verify=True)) == 42
    assert {entry.name for entry in (here / "index").iterdir()} == {
        *(".gitignore", "manifest.json", "vectors.f32", "rows.jsonl", "row_offsets.i64", "bm25")
    }
    assert [entry.name for entry in (here / "index" / "bm25").iterdir()] == ["2"]

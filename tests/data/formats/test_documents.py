"""Documents as rows: folders of text, Markdown and HTML, what of a page is read, and files that are not text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from bertkit.data.files import read_records
from bertkit.data.formats.text import visible_text
from bertkit.errors import DataError, UsageError
from bertkit.recipe import DataConfig

PAGE = """<!DOCTYPE html><html><head><title>Dogs &amp; cats</title><style>p { color: red }</style>
<script>if (1 < 2) { document.write("<p>no</p>") }</script></head>
<body><h1>Caf\u00e9s</h1><p>An <b>old</b> dog
slept.<br>It w<i>ok</i>e.</p><ul><li>one<li>two</ul><noscript>no</noscript><!-- no --></body></html>"""


def rows(source):
    return [(row["id"], row["text"]) for _, row in read_records(source, DataConfig())]


def test_a_folder_of_documents(here, caplog):
    caplog.set_level("INFO", "bertkit")
    for name, content in {"b.txt": "one\r\ntwo\n\nthree", "sub/a.md": "# é", "C.HTML": PAGE, "e.txt": " \n"}.items():
        (here / "docs" / name).parent.mkdir(parents=True, exist_ok=True)
        (here / "docs" / name).write_bytes(content.encode())
    (here / "docs/.hidden.txt").write_text("no")
    page = "Dogs & cats\nCaf\u00e9s\nAn old dog slept.\nIt woke.\none\ntwo"
    assert rows("docs") == [("C.HTML", page), ("b.txt", "one\ntwo\n\nthree"), ("sub/a.md", "# é")]
    assert "files of docs without text, left out: 1 (e.txt)" in caplog.text
    assert rows("docs/sub/a.md") == [("a.md", "# é")]
    (here / "docs/x.csv").write_text("text\nx\n")
    with pytest.raises(UsageError, match=r"a folder, not a file \(docs\)"):
        rows("docs")


def test_a_file_that_is_no_text_is_named(here):
    Path("docs").mkdir()
    Path("docs/a.txt").write_text("fine")
    Path("docs/b.html").write_bytes("caf\u00e9".encode("cp1252"))
    with pytest.raises(
        DataError, match=r"byte 0xe9 at offset 3 is not valid utf-8 \(docs/b.html:1\) - if the file is cp1252"
    ):
        rows("docs")
    Path("docs/b.html").write_text("a\0b")
    with pytest.raises(DataError, match=r"a NUL character \(docs/b.html:1\)"):
        rows("docs")
    Path("a.md").write_text(" \n")
    with pytest.raises(DataError, match=r"the file is empty \(a.md\)"):
        rows("a.md")


@given(st.text())
def test_any_page_has_a_text(page):
    lines = visible_text(page).splitlines()
    assert all(line.strip() for line in lines)


@pytest.fixture
def library(here):
    """Forty documents, each with a word of its own."""
    for number in range(40):
        name = f"docs/{'ab'[number % 2]}/{number:02}{['.txt', '.md', '.html'][number % 3]}"
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        body = f"The film number{number} was so fine. " * 4
        Path(name).write_text(f"<script>bad</script><p>{body}</p>" if name.endswith("html") else body)
    return here / "docs"


def test_forty_documents_are_embedded_searched_and_split(run, library, still_model):
    ended = run("search", "build", "docs", "--model", still_model, "--output", "index")
    assert ended.code == 0, ended.err
    ended = run("search", "query", "index", "number7", "--rank-by", "words", "--top", 1)
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["id"] == "b/07.md"
    ended = run("search", "passages", "docs", "--model", still_model, "--passage-tokens", 16, "--output", "p.jsonl")
    assert ended.code == 0, ended.err
    passages = [json.loads(line) for line in Path("p.jsonl").read_text().splitlines()]
    assert len({passage["document"] for passage in passages}) == 40
    texts = dict(rows("docs"))
    assert all(one["text"] == texts[one["document"]][one["start"] : one["end"]] for one in passages)
    assert not any("bad" in passage["text"] for passage in passages)
    ended = run("embed", "docs", "--model", still_model, "--output", "v.parquet")
    assert ended.code == 0, ended.err
    assert parquet.read_table("v.parquet")["id"].to_pylist() == list(texts)

"""What `bertkit search passages` prints; the passages are tested in tests/workflows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def test_passages_are_json_lines_with_their_characters(run, tiny_model):
    text = "The film was good.\nA book is so dull.\nThis song was lovely and fine.\n"
    Path("book.txt").write_text(text)
    ended = run("search", "passages", "book.txt", "--model", tiny_model, "--passage-tokens", 13, "--overlap", 6)
    assert ended.code == 0
    passages = [json.loads(line) for line in ended.out.splitlines()]
    assert [passage["id"] for passage in passages] == ["book.txt#1", "book.txt#2"]
    assert [text[passage["start"] : passage["end"]] for passage in passages] == [p["text"] for p in passages]
    assert ended.last == "passages: 2, of texts: 1; 100% of the text reaches the model"


def test_passages_never_overwrite_their_documents(run, tiny_model):
    Path("films.jsonl").write_text('{"id": "a", "title": "Films", "text": "The film was good."}\n')
    command = ("search", "passages", "films.jsonl", "--model", tiny_model, "--output")
    assert "--output is the file of the documents" in run(*command, "films.jsonl").last
    assert run(*command, "passages.csv").out == "passages.csv: 1 row\n"
    assert Path("passages.csv").read_text().startswith("id,text,document,file,start,end,title\na#1,")


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--passage-tokens", 400], "the model reads at most 64"), (["--output", "a.pdf"], "unknown ending '.pdf'")],
)
def test_impossible_options_are_refused(options, message, run, tiny_model):
    Path("book.txt").write_text("A film.\n")
    ended = run("search", "passages", "book.txt", "--model", tiny_model, *options)
    assert ended.code == 2
    assert message in ended.last

"""What `bertkit attention heads` prints."""

from __future__ import annotations

import json

from tests.conftest import write_jsonl


def test_a_file_is_a_table_of_heads_and_one_of_relations(run, tmp_path, tiny_model):
    row = {"tokens": ["a", "film", "is", "good"], "head": [2, 4, 4, 0], "deprel": ["det", "nsubj", "cop", "root"]}
    file = write_jsonl(tmp_path / "rows.jsonl", [row] * 64)
    ended = run("attention", "heads", file, "--model", tiny_model)
    assert ended.code == 0, ended.err
    lines = [line.split() for line in ended.out.splitlines()]
    assert "over 64 rows of" in ended.out and "(256 tokens)" in ended.out
    assert [line[0] for line in lines[3:8]] == ["0.0", "0.1", "1.0", "1.1", "uniform"]
    assert [line[0] for line in lines[10:14]] == ["all", "cop", "det", "nsubj"]
    assert ended.out.splitlines()[-1].startswith("Attention says what heads read, and is no explanation")
    found = json.loads(run("attention", "heads", file, "--model", tiny_model, "--json", "--limit", 2).out)
    assert (found["rows"], found["relations"], len(found["measured"])) == (2, [], 4)


def test_mistakes_are_answered_in_one_line(run, tmp_path, tiny_model):
    file = write_jsonl(tmp_path / "rows.jsonl", [{"tokens": ["a"], "head": ["5"], "deprel": ["x"]}])
    for arguments, code, message in (
        (("none.csv",), 3, "error: no such file or folder (none.csv)"),
        ((file,), 3, "error: ['5'] are not the heads of 1 words"),
        ((file, "--column", "body"), 3, "error: no column 'body'"),
        ((file, "--output", "page.txt"), 2, "error: the page is HTML (page.txt)"),
    ):
        ended = run("attention", "heads", *arguments, "--model", tiny_model)
        assert (ended.code, ended.last[: len(message)]) == (code, message)

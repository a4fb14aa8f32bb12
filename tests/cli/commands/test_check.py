"""What `bertkit check` prints, and how it ends."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.conftest import toy_rows, write_csv
from tests.junit import read_junit


def test_findings_are_printed_and_the_exit_code_tells(run, tiny_model, toy_data, tmp_path):
    arguments = ["check", "classify", "--model", tiny_model, "--data", toy_data]
    train = toy_rows(96, seed=1)
    train[4]["text"] = ""
    write_csv(toy_data / "train.csv", [*train, train[7] | {"label": "bad" if train[7]["label"] == "good" else "good"}])
    ended = run(*arguments, "--fix", tmp_path / "copy")
    assert ended.code == 3
    assert "Rows\n  fail  1 row: no text (column 'text') - fill it in, or --set" in ended.out
    assert "\n        train.csv:6\n" in ended.out
    assert "\n  left out: 1 rows with an empty text\n" in ended.out
    assert "\n        train.csv:98, train.csv:9\n" in ended.out
    assert ended.out.splitlines()[-1].startswith("1 fail, ")
    cleaned = run("check", "classify", "--model", tiny_model, "--data", tmp_path / "copy", "--json")
    assert cleaned.code == 0
    result = json.loads(cleaned.out)
    assert result["counts"]["fail"] == 0
    assert result["counts"]["warn"] > 0
    assert set(result["findings"][0]) == {"level", "group", "name", "text", "places", "count"}
    assert run("check", "classify", "--model", tiny_model, "--data", tmp_path / "copy", "--strict").code == 3


def test_mistakes(run, tiny_model, toy_data):
    ended = run("check", "classify", "--model", tiny_model, "--data", toy_data, "--fix", toy_data)
    assert ended.code == 2
    assert "exists already, and bertkit does not replace it" in ended.last


def test_a_file_that_cannot_be_parsed_is_a_finding_with_its_lines(run):
    Path("rows.csv").write_text("text,label\ngood,a\nbad\nfine,b\nodd\nx,y,a\n")
    ended = run("check", "classify", "--data", "rows.csv")
    assert ended.code == 3
    assert "1 field instead of 2: 'bad'" in ended.out
    assert "rows.csv:3" in ended.out
    assert "every row can be read" not in ended.out


def test_what_is_asked_for_and_cannot_be_done_is_no_success(run, monkeypatch, tiny_model, toy_data):
    monkeypatch.setitem(sys.modules, "cleanlab.filter", None)
    write_csv(toy_data / "train.csv", toy_rows(200, seed=3))
    write_csv(toy_data / "validation.csv", toy_rows(200, seed=4))
    command = ["check", "classify", "--data", toy_data, "--model"]
    for asked in ("--label-errors", "--strict"):
        ended = run(*command, tiny_model, "--label-errors", asked, "--report", "check.xml")
        assert "they need the package cleanlab" in Path("check.xml").read_text()
        assert read_junit("check.xml")
        assert "left out: label errors: they need the package cleanlab" in ended.out
        assert ended.code == (3 if asked == "--strict" and " 0 warn" not in ended.out else 5)

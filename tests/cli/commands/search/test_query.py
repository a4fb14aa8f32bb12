"""What `bertkit search query` takes and prints."""

from __future__ import annotations

import json
from pathlib import Path

from bertkit.cli.output import json_output, print_records

RESULT = {"query": "a film", "rank": 1, "score": 0.5, "id": 3, "text": "The film."}


def test_results_are_json_lines_or_one_object(capsys):
    print_records("results", [RESULT])
    assert json.loads(capsys.readouterr().out) == RESULT
    with json_output():
        print_records("results", [RESULT])
    assert json.loads(capsys.readouterr().out)["results"] == [RESULT]


def test_results_go_to_a_file_that_is_none_of_those_that_are_read(run, tiny_model):
    Path("films.csv").write_text("text\nThe film.\nA song.\n")
    assert run("search", "build", "films.csv", "--model", tiny_model, "--output", "index").code == 0
    Path("queries.csv").write_text("text\na film\n")
    command = ("search", "query", "index", "--file", "queries.csv", "-k", 1, "--output")
    assert run(*command, "found.jsonl").out == "found.jsonl: 1 row\n"
    assert json.loads(Path("found.jsonl").read_text())["rank"] == 1
    for output, message in [
        ("queries.csv", "--output is the file of queries"),
        ("index/shard-00000/rows.jsonl", "--output is a file of the index"),
        ("found.npy", "unknown ending"),
    ]:
        ended = run(*command, output)
        assert (ended.code, message in ended.last) == (2, True)


def test_one_source_of_queries(run):
    assert "no query" in run("search", "query", "index").last
    assert "queries and a --file" in run("search", "query", "index", "a film", "--file", "queries.csv").last

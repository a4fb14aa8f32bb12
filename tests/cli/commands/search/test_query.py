"""What `bertkit search query` takes and prints."""

from __future__ import annotations

import json

from bertkit.cli.output import json_output, print_records

RESULT = {"query": "a film", "rank": 1, "score": 0.5, "id": 3, "text": "The film."}


def test_results_are_json_lines_or_one_object(capsys):
    print_records("results", [RESULT])
    assert json.loads(capsys.readouterr().out) == RESULT
    with json_output():
        print_records("results", [RESULT])
    assert json.loads(capsys.readouterr().out)["results"] == [RESULT]


def test_one_source_of_queries(run):
    assert "no query" in run("search", "query", "index").last
    assert "queries and a --file" in run("search", "query", "index", "a film", "--file", "queries.csv").last

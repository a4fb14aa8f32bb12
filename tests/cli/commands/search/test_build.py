"""What the commands that change an index print."""

from __future__ import annotations

import json
from pathlib import Path

from bertkit.cli.commands.search.build import end_change, print_index
from bertkit.cli.output import json_output
from bertkit.vectors.search.passages import Coverage
from bertkit.workflows.search import IndexReport
from tests.conftest import toy_rows, write_csv

REPORT = IndexReport(Path("index"), 1, 1200, 384, "cosine", "demo", Coverage(10, 0, 50, 50), None, 64, True, 2_000_000)


def test_what_is_printed(capsys):
    print_index(REPORT, "added")
    assert capsys.readouterr().out.splitlines() == [
        "index: 1 row added; 1,200 rows with vectors of 384 (cosine), 2.0 MB",
        "  100% of the text reaches the model",
    ]
    with json_output():
        end_change(REPORT, "deleted")
    printed = json.loads(capsys.readouterr().out)
    assert (printed["index"], printed["deleted"], printed["rows"]) == ("index", 1, 1200)


def test_an_index_from_first_to_last(run, tiny_model, tmp_path):
    write_csv(tmp_path / "work" / "rows.csv", toy_rows(30, seed=1))
    (tmp_path / "work" / "more.txt").write_text("so good a song\n")
    ended = run("search", "build", "rows.csv", "--model", tiny_model, "--output", "index", "--set", "labels=[a]")
    assert (ended.code, ended.last[:20]) == (2, "error: --set labels:"), ended.err
    ended = run("search", "build", "rows.csv", "--model", tiny_model, "--output", "index", "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["added"] == 30
    assert run("search", "add", "index", "more.txt").out.startswith("index: 1 row added; 31 rows")
    ended = run("search", "query", "index", "so good a song", "-k", "2", "--verify")
    first, second = map(json.loads, ended.out.splitlines())
    assert (first["id"], first["text"], first["rank"], second["rank"]) == (30, "so good a song", 1, 2)
    assert run("search", "delete", "index", "--id", "30").out.startswith("index: 1 row deleted; 30 rows")
    ended = run("search", "query", "index", "--file", "more.txt", "-k", "1", "--json")
    assert json.loads(ended.out)["results"][0]["id"] != 30
    ended = run("search", "query", "index", "--file", "more.txt", "--output", "found.csv", "-k", "3")
    assert ended.out == "found.csv: 3 rows\n"

"""What commands share to print."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from bertkit.cli.output import print_file, print_json, print_line, print_pairs, print_table


def test_json_is_strict_and_one_line(capsys):
    print_json({"loss": math.nan, "scores": {"f1": [math.inf, 0.5]}, "word": "é"})
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert "é" in out
    printed = json.loads(out, parse_constant=pytest.fail)
    assert printed == {
        "schema_version": 2,
        "status": "done",
        "loss": None,
        "scores": {"f1": [None, 0.5]},
        "word": "é",
    }


def test_only_the_first_process_prints(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    print_line("twice")
    print_json({})
    assert capsys.readouterr().out == ""


def test_a_table_aligns_its_columns_and_counts_what_it_leaves_out(capsys):
    rows = [{"name": "a" * n, "score": 10.0**n, "rows": 1000 * n} for n in range(1, 5)]
    print_table("title", rows, max_rows=2)
    assert capsys.readouterr().out.splitlines() == [
        "  title",
        "    name    score   rows",
        "    a     10.0000  1,000",
        "    aa    100.000  2,000",
        "    ... 2 more with --json",
    ]


def test_a_table_without_rows_is_not_printed(capsys):
    print_table("title", [])
    assert capsys.readouterr().out == ""


def test_long_values_are_wrapped_beside_their_names(capsys):
    print_pairs("recipes", {"a": "word " * 30, "long-name": ""}, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("a          word word")
    assert lines[1].startswith("           word")
    assert lines[-1] == "long-name"
    assert max(map(len, lines)) <= 80


def test_a_file_is_printed_with_its_rows_or_the_next_command(capsys):
    print_file(Path("p.csv"), 1, as_json=False)
    print_file(Path("p.csv"), 2000, as_json=False)
    print_file(Path("m.yaml"), 1, as_json=False, next_command="bertkit finetune m.yaml")
    print_file(Path("p.csv"), 3, as_json=True)
    *lines, last = capsys.readouterr().out.splitlines()
    assert lines == ["p.csv: 1 row", "p.csv: 2,000 rows", "m.yaml: written", "", "Next:", "  bertkit finetune m.yaml"]
    assert json.loads(last) == {"schema_version": 2, "status": "done", "file": "p.csv", "rows": 3}


@pytest.mark.parametrize("mark", ["\x1b", "\x07", "\r", "\x7f", "\x85", "\x9b", "\u2028", "\u202e", "\u2066", "\udcff"])
def test_nothing_that_a_terminal_obeys_is_printed(capsys, mark):
    print_line(f"a{mark}é\tb")
    print_json({"text": f"a{mark}é"})
    line, printed = capsys.readouterr().out.splitlines()
    assert mark not in line + printed
    assert line == "a" + mark.encode("unicode_escape").decode() + "é\tb"
    assert json.loads(printed)["text"] == f"a{mark}é"

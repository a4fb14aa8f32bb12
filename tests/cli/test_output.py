"""What commands share to print."""

from __future__ import annotations

import io
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from bertkit.cli.output import (
    print_file,
    print_json,
    print_line,
    print_pairs,
    print_plan,
    print_result,
    print_table,
    print_text,
)
from bertkit.cli.terminal import json_output
from bertkit.errors import ResourceError, UsageError
from bertkit.storage.outputs import PAGE_MARK, lock_output


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


@dataclass
class Scores:
    scores: list[Score]
    folder: Path


@dataclass
class Score:
    value: float


def test_a_result_is_one_json_object_or_lines_and_its_page(capsys):
    result = Scores([Score(0.5)], Path("runs"))
    for printed in (result, vars(result)):
        with json_output():
            print_result(printed, pytest.fail, page=Path("a.html"))
        fields = {"scores": [{"value": 0.5}], "folder": "runs", "file": "a.html"}
        assert json.loads(capsys.readouterr().out) == {"schema_version": 2, "status": "done", **fields}
    print_result(result, lambda shown: print_line(f"in {shown.folder}"), page=Path("a.html"))
    assert capsys.readouterr().out == "in runs\na.html: written\n\nNext:\n  open a.html\n"


def test_only_a_page_of_its_own_is_overwritten(tmp_path, capsys):
    page, lock = tmp_path / "a.html", tmp_path / ".a.html.lock"

    def write(file: Path, result: object) -> None:
        file.write_text(f"{PAGE_MARK} {result}")

    print_result({"a": 1}, print, page=page, write=write)
    before = page.read_bytes()
    lock.write_text("")  # left by a process that was killed when it had written the page
    print_result({"a": 1}, print, page=page, write=write)
    assert page.read_bytes() == before
    assert not lock.exists()
    page.write_text("mine")
    with pytest.raises(UsageError, match="the file exists already, and bertkit did not write it"):
        print_result({"a": 1}, print, page=page, write=write)
    assert page.read_text() == "mine"
    with lock_output(page), pytest.raises(ResourceError, match="is writing this output"):
        print_result({"a": 1}, print, page=page, write=write)


def test_a_table_has_the_columns_that_any_row_fills(capsys):
    print_table("scores", [{"model": "a", "p": "", "score": None}, {"model": "b", "95% CI": (0.25, 1)}])
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["scores"],
        ["model", "score", "95%", "CI"],
        ["a", "n/a"],
        ["b", "0.2500", "to", "1.0000"],
    ]


def test_a_plan_has_a_line_for_each_value(capsys):
    print_plan({"rows": "train 5", "labels": "", "disk": "1 MB"})
    assert capsys.readouterr().out == "rows     train 5\ndisk     1 MB\n"


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


def test_wide_characters_align(capsys):
    print_table("title", [{"word": "日本語", "rows": 1}, {"word": "a", "rows": 23}])
    print_pairs({"日本": "Japan", "é": "[red]letter"})
    assert capsys.readouterr().out.splitlines() == [
        "  title",
        "    word    rows",
        "    日本語     1",
        "    a         23",
        "日本  Japan",
        "é     [red]letter",
    ]


def test_a_table_without_rows_is_not_printed(capsys):
    print_table("title", [])
    print_pairs({})
    assert capsys.readouterr().out == ""


@pytest.fixture
def terminal(monkeypatch):
    """Make stdout a terminal of some columns, and return what was printed there, line by line."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def open_terminal(columns: int) -> Terminal:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(sys, "stdout", Terminal())
        return sys.stdout

    return open_terminal


def test_long_values_are_wrapped_beside_their_names_in_a_terminal(terminal):
    out = terminal(80)
    print_pairs({"a": "word " * 30, "long-name": ""})
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("a          word word")
    assert lines[1].startswith("           word")
    assert lines[-1] == "long-name"
    assert max(map(len, lines)) <= 80


def test_in_a_pipe_each_value_stays_in_one_line(capsys):
    print_pairs({"a": "word " * 30, "long-name": ""})
    print_text("word " * 30)
    assert [len(line.split()) for line in capsys.readouterr().out.splitlines()] == [31, 1, 30]


def test_a_text_of_several_lines_is_printed_in_one(capsys):
    print_text("    7: the strap broke\n  after a day\r\nerror: no row")
    assert capsys.readouterr().out == "    7: the strap broke after a day error: no row\n"
    print_table("slices", [{"slice": "team: support\n(night)", "rows": 3}])
    assert [line.split() for line in capsys.readouterr().out.splitlines()[2:]] == [["team:", "support", "(night)", "3"]]


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 120])
def test_a_terminal_breaks_no_number(terminal, columns):
    score = {"score": "0.9370 (0.9036 to 0.9670)", "difference": "-0.4370 (-0.5036 to -0.3670)"}
    rows = [{"model": f"{role} runs/a-rather-long-name", "rows": 123456, **score} for role in ("teacher", "student")]
    out = terminal(columns)
    print_table("scores", rows)
    print_text("  accuracy  0.9720  95% CI 0.9560 to 0.9860    baseline  0.6720")
    text = out.getvalue()
    for number in ("123,456", "0.9370", "(0.9036", "0.9670)", "-0.4370", "(-0.5036", "-0.3670)"):
        assert text.count(number) == 2, number
    for number in ("0.9720", "0.9560", "0.9860", "0.6720"):
        assert text.split().count(number) == 1
    assert max(map(len, text.splitlines())) <= max(columns, len("    teacher runs/a-rather-long-name"))


def test_the_first_column_of_a_table_wraps_before_the_table_becomes_a_list(terminal):
    rows = [{"model": "a name of [several] words", "score": 0.5, "rows": 10}]
    out = terminal(36)
    print_table("scores", rows)
    assert out.getvalue().splitlines() == [
        "  scores",
        "    model                score  rows",
        "    a name of           0.5000    10",
        "    [several] words",
    ]
    out = terminal(30)
    print_table("scores", rows)
    assert out.getvalue().splitlines() == [
        "  scores",
        "    a name of [several] words",
        "      score: 0.5000",
        "      rows: 10",
    ]


def test_a_file_is_printed_with_its_rows_or_the_next_command(capsys):
    print_file(Path("p.csv"), 1)
    print_file(Path("p.csv"), 2000)
    print_file(Path("m.yaml"), 1, next_command="bertkit finetune m.yaml")
    with json_output():
        print_file(Path("p.csv"), 3)
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

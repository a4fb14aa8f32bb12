"""What `bertkit runs table` prints and writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.workflows.test_table import make


@pytest.fixture
def two(tmp_path):
    for name, wrong in (("a", 60), ("b", 20)):
        make(tmp_path / "work" / "runs" / name, f"org/{name}", wrong)


@pytest.mark.usefixtures("two")
def test_the_table_its_marks_and_its_numbers_are_printed(run):
    lines = [line.split() for line in run("runs", "table", "runs").out.splitlines()]
    assert lines[1:4] == [
        ["model", "mine", "accuracy"],
        ["a", "0.7000", "(0.1000", "to", "0.9000)"],
        ["b", "0.9000*", "(0.1000", "to", "0.9000)"],
    ]
    assert lines[-1][:5] == ["One", "seed", "per", "model:", "p"]
    assert lines[-2][:5] == ["*:", "differs", "from", "a", "at"]
    printed = json.loads(run("runs", "table", "runs/b", "runs/a", "--json").out)
    assert printed["rows"] == ["b", "a"] and [cell["is_best"] for cell in printed["cells"]] == [True, False]
    assert printed["cells"][1]["p"] < 0.05 and printed["cells"][1]["difference"]["difference"] == pytest.approx(-0.2)
    assert run("runs", "table", "runs", "--format", "csv").out.startswith("model,task,metric,score,")


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize(
    ("name", "begin"), [("a.md", "| model |"), ("a.tex", "% In parentheses"), ("a.csv", "model,task,")]
)
def test_a_file_is_written_in_the_format_of_its_ending(run, name, begin):
    ended = run("runs", "table", "runs", "--output", name)
    assert ended.code == 0, ended.err
    assert Path(name).read_text().startswith(begin)


@pytest.mark.usefixtures("two")
def test_other_files_and_folders_are_refused(run):
    named = run("runs", "table", "runs", "-o", "a.txt")
    assert (named.code, named.last) == (
        2,
        "error: a table is written as Markdown, LaTeX or CSV (a.txt) - name it .md, .tex or .csv",
    )
    assert run("runs", "table", "runs", "-o", "none/a.md").code == 6
    assert run("runs", "table", "nowhere").code == 2
    assert not Path("a.txt").exists()

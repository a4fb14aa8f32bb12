"""What the commands of `bertkit runs` print and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bertkit.cli.commands.runs import remove_runs
from tests.evaluation.stored_runs import make_run
from tests.workflows.test_table import make


def test_runs_are_a_table_and_json(run, tmp_path):
    work = tmp_path / "work"
    make_run(work / "runs" / "low", [], scores={"accuracy": 0.5})
    make_run(work / "runs" / "high", [], scores={"accuracy": 0.75})
    for seed, score in ((1, 0.25), (2, 0.5)):
        make_run(work / "runs" / "spread" / f"seed-{seed}", [], scores={"accuracy": score})
    (work / "runs" / "bad").mkdir()
    (work / "runs" / "bad" / "run.json").write_text("{")
    ended = run("runs", "list", "--sort", "score")
    assert ended.code == 0, ended.err
    rows = [line.split() for line in ended.out.splitlines()[2:6]]
    assert [row[0] for row in rows] == ["high", "low", "spread", "bad"]
    assert rows[0][1:6] == ["finished", "mine", "tiny", "accuracy", "0.7500"]
    assert rows[2][4:7] == ["mean", "accuracy", "0.3750"]
    assert ended.out.splitlines()[6].startswith("  runs/bad: ")
    found = json.loads(run("runs", "list", "--json").out)
    assert [each["folder"] for each in found["runs"]] == ["runs/bad", "runs/high", "runs/low", "runs/spread"]
    assert found["runs"][1]["seconds"] == 90


def test_a_folder_without_runs_is_said(run, tmp_path):
    (tmp_path / "work" / "runs").mkdir(parents=True)
    assert run("runs", "list").out == "runs: no runs\n"
    ended = run("runs", "list", "nowhere")
    assert (ended.code, ended.last) == (2, "error: no such folder (nowhere) - name the folder that holds the runs")


def test_a_run_is_told_in_words_and_json(run, tmp_path):
    training = {"seed": 7, "epochs": 9.0}
    make_run(tmp_path / "work" / "a", [], scores={"accuracy": 0.75}, name="cola", training=training)
    ended = run("runs", "show", "a")
    assert ended.code == 0, ended.err
    lines = [line.split() for line in ended.out.splitlines()]
    assert ["state", "finished"] in lines
    assert ["score", "accuracy", "0.7500"] in lines
    assert ["validation", "accuracy", "0.7500", "n/a"] in lines
    assert ["training.epochs", "3.0", "9.0"] in lines
    found = json.loads(run("runs", "show", "a", "--json").out)
    assert found["scores"] == [{"split": "validation", "metric": "accuracy", "score": 0.75, "95% CI": None}]
    assert {"setting": "training.seed", "recipe": "42", "run": "7"} in found["settings"]


def test_a_damaged_run_is_shown_and_any_other_folder_refused(run, tmp_path):
    (tmp_path / "work" / "a").mkdir(parents=True)
    ended = run("runs", "show", "a")
    assert (ended.code, ended.last) == (2, "error: not a run folder (a) - `bertkit runs list` shows the runs")
    (tmp_path / "work" / "a" / "run.json").write_text("{")
    ended = run("runs", "show", "a")
    assert ended.code == 0
    assert "damaged" in ended.out


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


def test_runs_are_deleted_with_yes_only(run, tmp_path):
    folders = [make_run(tmp_path / "work" / name, []) for name in ("a", "b")]
    ended = run("runs", "rm", "a", "b")
    assert (ended.code, ended.last) == (2, "error: the deletion cannot be confirmed without a terminal - add --yes")
    assert all(folder.exists() for folder in folders)
    assert run("runs", "rm", "a", "b", "a", "--yes").out == "a: deleted\nb: deleted\n"
    assert not any(folder.exists() for folder in folders)
    make_run(folders[0], [])
    assert json.loads(run("runs", "rm", "a", "--yes", "--json").out)["removed"] == ["a"]


def test_nothing_is_deleted_where_one_folder_is_no_run(run, tmp_path):
    folder = make_run(tmp_path / "work" / "a", [])
    (tmp_path / "work" / "notes").mkdir()
    ended = run("runs", "rm", "a", "notes", "--yes")
    assert ended.code == 2
    assert "not a run folder, so it is not deleted (notes)" in ended.last
    assert folder.exists()


def test_a_terminal_is_asked(run, tmp_path, monkeypatch, capsys):
    class Terminal:
        def __init__(self, answer):
            self.answer = answer

        def isatty(self):
            return True

        def readline(self):
            return self.answer

    folder = make_run(tmp_path / "a", [])
    for answer, is_there in (("\n", True), ("no\n", True), ("y\n", False)):
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        remove_runs([folder])
        assert folder.exists() is is_there
    assert f"Delete {folder}? This cannot be undone. [y/N] " in capsys.readouterr().err

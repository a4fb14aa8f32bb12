"""What `bertkit runs rm` deletes, and what it refuses."""

from __future__ import annotations

import json

from bertkit.cli.commands.runs import rm
from tests.evaluation.stored_runs import make_run


def test_runs_are_deleted_with_yes_only(run, tmp_path):
    folders = [make_run(tmp_path / "work" / name, []) for name in ("a", "b")]
    ended = run("runs", "rm", "a", "b")
    assert (ended.code, ended.last) == (2, "error: nobody can be asked whether to delete - add --yes")
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
        rm.command([folder])
        assert folder.exists() is is_there
    assert f"Delete {folder}? This cannot be undone. [y/N] " in capsys.readouterr().err

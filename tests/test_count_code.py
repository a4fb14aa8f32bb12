"""`tools/count_code.py` on a file that was counted by hand."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parent.parent / "tools" / "count_code.py"
COUNTED = '''"""A docstring
of two lines."""

from x import (  # a comment
    y,
)

# a comment of its own


class Record:
    """Of one line."""

    field: int = 1  # why
    """What it is."""


def function(a):
    """Docstring.

    More.
    """
    import os

    text = """not

a docstring"""
    return call(
        a,
        # why
        text,
    )
'''
# class, field, def, two lines of the string, and four of the call
CODE = ["class Record:", "    field: int = 1  # why", "def function(a):", '    text = """not', 'a docstring"""']
CODE += ["    return call(", "        a,", "        text,", "    )"]


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("count_code", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_code_is_what_is_no_blank_line_comment_docstring_or_import(tool):
    counted = tool.count(COUNTED)
    assert counted == {"files": 1, "lines": 9, "characters": sum(map(len, CODE)), "comments": 4}


def test_rooms_add_up(tool, tmp_path):
    (tmp_path / "room" / "inner").mkdir(parents=True)
    for name in ("loose.py", "room/a.py", "room/inner/b.py"):
        (tmp_path / name).write_text(COUNTED)
    counts = tool.count_rooms(tmp_path)
    assert [(name, each["files"], each["lines"]) for name, each in counts.items()] == [
        (tmp_path.name, 1, 9),
        ("room", 2, 18),
        ("in all", 3, 27),
    ]


def run(*arguments):
    return subprocess.run([sys.executable, str(TOOL), *arguments], capture_output=True, text=True)


def test_the_total_fails_above_the_budget_only(tmp_path, tool):
    budget = tool.BUDGET
    written = 'a = """' + "\n1" * (budget - 2) + '\n"""\n'  # each line of a statement counts
    (tmp_path / "a.py").write_text(written)
    fine = run(str(tmp_path), "--total")
    assert (fine.returncode, fine.stdout) == (0, f"{budget:,} lines of code, 1.0 wide, 0.0 comments per 100 lines\n")
    assert json.loads(run(str(tmp_path), "--json").stdout)["in all"]["lines"] == budget
    (tmp_path / "a.py").write_text(written + "b = 1\n")
    assert run(str(tmp_path), "--total").returncode == 1

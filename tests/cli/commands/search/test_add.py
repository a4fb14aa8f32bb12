"""What `bertkit search add` refuses before anything is loaded."""

from __future__ import annotations


def test_no_index_and_no_file(run):
    ended = run("search", "add", "index", "rows.csv")
    assert (ended.code, ended.last) == (
        2,
        "error: no such index (index) - build it with `bertkit search build`",
    )
    assert "standard input only once" in run("search", "add", "index", "-").last

"""What `bertkit search delete` needs."""

from __future__ import annotations


def test_an_id_is_needed(run):
    ended = run("search", "delete", "index")
    assert ended.code == 2
    assert "--id" in ended.last

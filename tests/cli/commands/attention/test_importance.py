"""What `bertkit attention importance` prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.mark.slow
def test_heads_are_listed_from_the_one_that_is_missed_most(run, trained):
    ended = run("attention", "importance", trained, "--rows", 8)
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    assert "f1_macro" in lines[0] and lines[0].endswith("on 8 rows of validation, with all heads")
    rows = [line.split() for line in lines[3:7]]
    assert {row[0] for row in rows} == {"0.0", "0.1", "1.0", "1.1"}
    assert [float(row[2]) for row in rows] == sorted(float(row[2]) for row in rows)
    found = json.loads(run("attention", "importance", trained, "--rows", 4, "--json", "--output", "heads.html").out)
    assert len(found["heads"]) == 4 and (found["rows"], found["file"]) == (4, "heads.html")
    assert Path("heads.html").read_text().count('style="--share:') == 4


def test_a_page_never_replaces_a_file_of_the_run(run, trained):
    ended = run("attention", "importance", trained, "--output", trained / "report.html")
    assert (ended.code, ended.last.split(" (")[0]) == (2, "error: --output is a file of the model folder")


def test_a_plain_encoder_is_refused_in_one_line(run, tiny_model):
    ended = run("attention", "importance", tiny_model)
    assert (ended.code, ended.last[:40]) == (2, "error: no recipe.yaml beside the model, ")

"""What `bertkit similar` takes and prints."""

from __future__ import annotations

import json

import pytest


def test_two_texts_have_one_number(run, tiny_model):
    ended = run("similar", "the film", "the film", "--model", tiny_model)
    assert (ended.code, ended.out) == (0, "1.0000\n")


def test_a_file_has_one_per_row(run, tiny_model, tmp_path):
    (tmp_path / "work" / "pairs.csv").write_text("text,text_pair\na,a\nb,b\n")
    ended = run("similar", "pairs.csv", "--model", tiny_model)
    assert [json.loads(line)["text"] for line in ended.out.splitlines()] == ["a", "b"]
    assert len(json.loads(run("similar", "pairs.csv", "--model", tiny_model, "--json").out)["pairs"]) == 2


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("a", "b", "c"), "3 texts"),
        (("a", " "), "an empty text"),
        (("a", "b", "-o", "c.csv"), "--output with two texts"),
    ],
)
def test_what_it_does_not_take(arguments, message, run):
    ended = run("similar", *arguments, "--model", "demo")
    assert ended.code == 2
    assert message in ended.last

"""`bertkit recipes copy`."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertkit.recipe import find_recipe


@pytest.mark.parametrize(("recipe", "command"), [("cola", "finetune"), ("bert", "pretrain")])
def test_a_copy_is_the_file_itself_and_names_the_next_command(run, recipe, command):
    ended = run("recipes", "copy", recipe, "mine.yaml")
    assert ended.out.splitlines()[-1] == f"  bertkit {command} mine.yaml"
    assert Path("mine.yaml").read_bytes() == find_recipe(recipe).read_bytes()


def test_a_file_that_exists_is_never_overwritten(run):
    Path("mine.yaml").write_text("mine")
    ended = run("recipes", "copy", "cola", "mine.yaml")
    expected = "error: mine.yaml exists already - nothing was written; choose another name"
    assert (ended.code, ended.last) == (2, expected)
    assert Path("mine.yaml").read_text() == "mine"

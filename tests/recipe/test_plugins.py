"""Modules that a recipe names: bertkit's own by their name, yours by their import path."""

from __future__ import annotations

import sys

import pytest

from bertkit.errors import RecipeError
from bertkit.recipe.plugins import load_module, module_names

PACKAGE = "bertkit.data.formats"


def load(name, *required):
    return load_module("format", name, PACKAGE, required, "docs/own-data.md")


@pytest.fixture
def mypackage(tmp_path, monkeypatch):
    (tmp_path / "mypackage").mkdir()
    (tmp_path / "mypackage" / "__init__.py").touch()
    (tmp_path / "mypackage" / "mine.py").write_text("def read(): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "mypackage"]:
        del sys.modules[name]


def test_a_module_of_the_package_is_found_by_its_name():
    assert {"csv", "parquet"} <= set(module_names(PACKAGE))
    assert load("csv").__name__ == "bertkit.data.formats.csv"


def test_a_module_of_your_own_must_have_what_is_required(mypackage):
    assert load("mypackage.mine", "read").__name__ == "mypackage.mine"
    with pytest.raises(RecipeError, match=r"the format mypackage.mine lacks ENDINGS, write - see docs/own-data.md"):
        load("mypackage.mine", "read", "ENDINGS", "write")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cvs", "no format is called 'cvs' - did you mean csv"),
        ("unheard", "no format is called 'unheard' - there are: "),
        ("mypackage.yours", "no format is called 'mypackage.yours' - there are: "),
        ("nopackage.mine", "no format is called 'nopackage.mine' - there are: "),
    ],
)
def test_a_name_that_is_neither_is_refused(mypackage, name, message):
    with pytest.raises(RecipeError) as raised:
        load(name)
    assert str(raised.value).startswith(message)
    assert ("must be importable" in str(raised.value)) == ("." in name)

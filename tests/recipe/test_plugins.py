"""Modules that a recipe names: bertkit's own by their name, yours by their import path."""

from __future__ import annotations

import sys

import pytest

from bertkit.errors import RecipeError
from bertkit.recipe.plugins import fault_of_own_module, load_module, module_names, own_modules

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


@pytest.mark.parametrize("name", [".x", "..x", "x.", "a..b", "../x", "a b.c", "/tmp/x.y"])
def test_a_name_that_no_module_can_have_is_refused(name):
    with pytest.raises(RecipeError, match="no format is called"):
        load(name)


@pytest.mark.parametrize(
    ("code", "line", "fault"),
    [
        ("\nread = 1 / 0\n", 2, "ZeroDivisionError: division by zero"),
        ("def read(:\n", 1, "SyntaxError: invalid syntax"),
        ("\n\nimport nowhere\n", 3, "ModuleNotFoundError: No module named 'nowhere'"),
        ("raise SystemExit\n", 1, "SystemExit"),
    ],
)
def test_a_module_of_your_own_that_cannot_be_imported_names_its_line(mypackage, tmp_path, code, line, fault):
    (tmp_path / "mypackage" / "broken.py").write_text(code)
    with pytest.raises(RecipeError) as raised:
        load("mypackage.broken", "read")
    file = tmp_path / "mypackage" / "broken.py"
    assert str(raised.value).startswith(f"the format mypackage.broken failed: {fault} ({file}:{line}) - correct it")


def test_an_error_in_a_function_of_your_own_names_its_line(mypackage, tmp_path):
    file = tmp_path / "mypackage" / "late.py"
    file.write_text("def read():\n    return json_of('x')\n\n\ndef json_of(text):\n    return text['a']\n")
    module = load("mypackage.late", "read")
    with pytest.raises(TypeError) as raised:
        module.read()
    fault = fault_of_own_module(raised.value)
    assert str(fault).startswith("the format mypackage.late failed: TypeError: string indices must be integers")
    assert (fault.file, fault.row, fault.exit_code) == (str(file), 6, 2)
    with pytest.raises(ZeroDivisionError) as raised:
        1 / 0  # noqa: B018
    assert fault_of_own_module(raised.value) is None
    assert "the format mypackage.late" in own_modules()

"""Errors: one line each, their exit codes, and suggested names."""

from __future__ import annotations

import inspect
import json
import pickle
from types import SimpleNamespace

import pytest

from bertkit import errors
from bertkit.errors import BertkitError, DataError, StoppedError, did_you_mean, install_command


def test_the_table_lists_every_class_with_its_exit_code():
    lines = [line.strip("├└─│ ").split() for line in errors.__doc__.splitlines() if "Error " in line]
    classes = {name: cls for name, cls in vars(errors).items() if name.endswith("Error") and inspect.isclass(cls)}
    assert {line[0] for line in lines} == set(classes)
    for name, code, *_ in lines:
        assert name == "StoppedError" or classes[name].exit_code == int(code)


@pytest.mark.parametrize(
    ("where", "line"),
    [
        ({}, "no label - fill it in"),
        ({"file": "a.csv"}, "no label (a.csv) - fill it in"),
        ({"file": "a.csv", "row": 3}, "no label (a.csv:3) - fill it in"),
        ({"row": 3}, "no label (3) - fill it in"),
        ({"column": "label"}, "no label (column 'label') - fill it in"),
    ],
)
def test_an_error_is_one_line(where, line):
    assert str(DataError("no\n  label", "fill it in", **where)) == line
    assert str(DataError("no label", **where)) == line.removesuffix(" - fill it in")


def test_json_has_every_field():
    error = DataError("no label", "fill it in", file="a.csv", row=3, column="label")
    assert error.as_dict() == {
        "code": 3,
        "message": "no label",
        "file": "a.csv",
        "row": 3,
        "record": None,
        "column": "label",
        "hint": "fill it in",
    }


@pytest.mark.parametrize(("signal", "code"), [(2, 130), (15, 143)])
def test_a_signal_makes_the_exit_code(signal, code):
    assert StoppedError("stopped", signal=signal).exit_code == code
    assert BertkitError.exit_code == 1


@pytest.mark.parametrize("error", [StoppedError("stopped", signal=15), DataError("no label", "fill it in", row=3)])
def test_an_error_reaches_another_process_whole_and_gets_a_name(error):
    sent = pickle.loads(pickle.dumps(error))
    assert (type(sent), str(sent), sent.exit_code) == (type(error), str(error), error.exit_code)
    named = error.with_prefix("cola")
    assert (str(named), named.exit_code, str(error)) == (f"cola: {sent}", error.exit_code, str(sent))


def test_close_names_are_suggested_and_others_listed():
    assert did_you_mean("epoch", ["epochs", "seed"]) == "did you mean epochs?"
    assert did_you_mean("label", (name for name in ("label_a", "label_b"))) == "did you mean label_b or label_a?"
    assert did_you_mean("x", ["epochs", "seed"]) == "there are: epochs, seed"


def test_a_value_of_thousands_of_characters_leaves_a_line_that_can_be_read():
    line = str(DataError(f"label {'9' * 5000} is unknown", "x" * 5000, file="a.csv", row=3))
    assert len(line) < 1300
    assert "9...9" in line
    assert "is unknown (a.csv:3) - x" in line


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'bertkit[map]'"),
        ({"url": "file:///a%20b/c", "dir_info": {}}, "pip install '/a b/c[map]'"),
        ({"url": "file:///clone", "dir_info": {"editable": True}}, "pip install --editable '/clone[map]'"),
        ({"url": "file:///w/b-1-py3-none-any.whl", "archive_info": {}}, "pip install '/w/b-1-py3-none-any.whl[map]'"),
        ({"url": "https://host/b", "vcs_info": {"vcs": "git"}}, "pip install 'bertkit[map] @ git+https://host/b'"),
    ],
)
def test_an_extra_is_installed_from_where_bertkit_came(monkeypatch, origin, command):
    text = None if origin is None else json.dumps(origin)
    monkeypatch.setattr("importlib.metadata.distribution", lambda name: SimpleNamespace(read_text=lambda file: text))
    assert install_command("map") == command

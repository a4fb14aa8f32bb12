"""How a file of texts is read, from options."""

from __future__ import annotations

import pytest

from bertkit.cli.options import read_data_options
from bertkit.errors import RecipeError


def test_options_say_how_a_file_is_read():
    data = read_data_options("body", ["data.delimiter=;", "data.columns.id=key"])
    assert (data.delimiter, data.columns["text"], data.columns["id"]) == (";", "body", "key")
    assert read_data_options("text", ["data.columns.text=body"]).columns["text"] == "body"


def test_unknown_keys_are_refused():
    with pytest.raises(RecipeError, match="did you mean limit"):
        read_data_options("text", ["data.limt=3"])


@pytest.mark.parametrize(
    "command",
    [
        ["search", "build", "rows.csv", "--model", "demo", "--output", "index"],
        ["cluster", "rows.csv", "--model", "demo"],
        ["dedup", "rows.csv"],
        ["embed", "rows.csv", "--model", "demo", "--output", "vectors.npy"],
        ["tokenize", "rows.csv", "--model", "demo"],
        ["attention", "heads", "rows.csv", "--model", "demo"],
    ],
    ids=" ".join,
)
def test_keys_that_a_command_ignores_are_refused(run, command):
    for key in ("training.epochs", "labels"):
        ended = run(*command, "--set", f"{key}=3")
        assert ended.code == 2 and ended.last.startswith(
            f"error: --set {key}: not read by this command - it reads data"
        )

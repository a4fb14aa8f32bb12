"""How a file of texts is read, from options."""

from __future__ import annotations

import pytest

from bertkit.cli.options import read_data_options
from bertkit.errors import RecipeError


def test_options_say_how_a_file_is_read():
    data = read_data_options("body", ["data.delimiter=;", "data.columns.id=key"], "data.columns.*")
    assert (data.delimiter, data.columns["text"], data.columns["id"]) == (";", "body", "key")
    assert read_data_options("text", ["data.columns.text=body"], "data.columns.*").columns["text"] == "body"
    with pytest.raises(
        RecipeError, match=r"this command does not read data\.columns\.id - leave it out: it reads data"
    ):
        read_data_options("body", ["data.columns.id=key"])


@pytest.mark.parametrize(
    ("key", "remedy"), [("training.epochs", "only the keys of data"), ("data.limt", "did you mean limit")]
)
def test_other_keys_are_refused(key, remedy):
    with pytest.raises(RecipeError, match=remedy):
        read_data_options("text", [f"{key}=3"])

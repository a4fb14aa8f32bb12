"""How `bertkit embed` reads its options and prints; its vectors are in tests/workflows."""

from __future__ import annotations

import json

import pytest

from bertkit.cli.commands.embed import print_vectors, read_data_options
from bertkit.errors import RecipeError
from tests.kills import HEAVY, slow_unless


def test_options_say_how_a_file_is_read():
    data = read_data_options("body", ["data.delimiter=;", "data.columns.id=key"])
    assert (data.delimiter, data.columns["text"], data.columns["id"]) == (";", "body", "key")
    assert read_data_options("text", ["data.columns.text=body"]).columns["text"] == "body"


@pytest.mark.parametrize(
    ("key", "remedy"), [("training.epochs", "only the keys of data"), ("data.limt", "did you mean limit")]
)
def test_other_keys_are_refused(key, remedy):
    with pytest.raises(RecipeError, match=remedy):
        read_data_options("text", [f"{key}=3"])


def test_vectors_are_json_lines_or_one_object(capsys):
    records = [{"id": "é", "embedding": [0.5]}]
    print_vectors(iter(records), as_json=False)
    assert capsys.readouterr().out == '{"id": "é", "embedding": [0.5]}\n'
    print_vectors(iter(records), as_json=True)
    assert json.loads(capsys.readouterr().out)["vectors"] == records


@pytest.mark.parametrize(
    "arguments",
    slow_unless(
        [("rows.csv", "--model", "demo", "--column", "txt")],
        [
            ("rows.csv", "--model", "demo", "--column", "txt"),
            ("rows.csv", "--model", "demo", "-o", "out.csv"),
            ("rows.csv", "--model", "demo", "--prompt", "query"),
        ],
    ),
    ids=" ".join,
)
def test_mistakes_are_answered_before_torch_is_imported(arguments, tmp_path, light_zygote):
    (tmp_path / "rows.csv").write_text("text\nfine\n")
    assert HEAVY & light_zygote.imports(tmp_path, ["embed", *arguments]) <= {"numpy", "pyarrow"}

"""What `bertkit embed` and `bertkit similar` print and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bertkit.cli.output import print_records
from bertkit.cli.terminal import json_output
from tests.kills import HEAVY, slow_unless


def test_vectors_are_json_lines_or_one_object(capsys):
    records = [{"id": "é", "embedding": [0.5]}]
    print_records("vectors", iter(records))
    assert capsys.readouterr().out == '{"id": "é", "embedding": [0.5]}\n'
    with json_output():
        print_records("vectors", iter(records))
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


def test_two_texts_have_one_number(run, tiny_model):
    ended = run("similar", "the film", "the film", "--model", tiny_model)
    assert (ended.code, ended.out) == (0, "1.0000\n")


def test_a_file_has_one_per_row(run, tiny_model, tmp_path):
    (tmp_path / "work" / "pairs.csv").write_text("text,text_pair\na,a\nb,b\n")
    ended = run("similar", "pairs.csv", "--model", tiny_model)
    assert [json.loads(line)["text"] for line in ended.out.splitlines()] == ["a", "b"]
    assert len(json.loads(run("similar", "pairs.csv", "--model", tiny_model, "--json").out)["pairs"]) == 2


def test_a_file_becomes_a_file_and_never_itself(run, tiny_model):
    Path("pairs.csv").write_text("a,b,label\nthe film,a film,1\n")
    command = ("similar", "pairs.csv", "--column", "a", "--pair-column", "b", "--model", tiny_model, "--output")
    assert run(*command, "out.csv").out == "out.csv: 1 row\n"
    assert Path("out.csv").read_text().startswith("a,b,label,cosine\nthe film,a film,1,0.")
    ended = run(*command, "pairs.csv")
    assert (ended.code, "--output is the file of pairs" in ended.last) == (2, True)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("a", "b", "c"), "3 texts"),
        (("a", " "), "one of the texts is empty"),
        (("a", "b", "-o", "c.csv"), "--output with two texts"),
    ],
)
def test_what_it_does_not_take(arguments, message, run):
    ended = run("similar", *arguments, "--model", "demo")
    assert ended.code == 2
    assert message in ended.last

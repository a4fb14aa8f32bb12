"""What the commands of `bertkit attention` print and refuse."""

from __future__ import annotations

import json

import pytest

from tests.conftest import write_jsonl
from tests.kills import HEAVY


def test_a_text_is_a_table_of_its_tokens(run, tiny_model):
    ended = run("attention", "show", "a film is good", "--pair", "so great", "--model", tiny_model)
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    assert lines[0].endswith("2 layers of 2 heads, 9 tokens")
    assert lines[1] == "  layer 1, the mean of all heads" and len(lines) == 3 + 9 + 1
    assert lines[-1].endswith("for that, see `bertkit explain`.")
    ended = run("attention", "show", "a film", "--model", tiny_model, "--layer", 1, "--head", 0)
    assert ended.out.splitlines()[1] == "  layer 1, head 0"
    assert [line.split()[0] for line in ended.out.splitlines()[3:7]] == ["[CLS]", "a", "film", "[SEP]"]


def test_json_has_all_weights(run, tiny_model):
    found = json.loads(run("attention", "show", "a film", "--model", tiny_model, "--json", "--layer", 1).out)
    assert (found["layers"], found["heads"], len(found["weights"][0])) == ([1], [0, 1], 2)
    assert sum(found["weights"][0][1][2]) == pytest.approx(1, abs=1e-5)
    assert sum(found["rollout"][0][2]) == pytest.approx(1, abs=1e-5)
    assert [token["text"] for token in found["tokens"]] == ["[CLS]", "a", "film", "[SEP]"]


def test_mistakes_are_answered_in_one_line(run, tiny_model):
    for arguments, message in (
        (("a", "--head", 1), "--head without --layer - add --layer N"),
        (("a", "--layer", 2), "the model has 2 layers of 2 heads - count them from 0"),
        ((" ",), "a text without tokens - write something in it"),
        (("a", "-o", "page.txt"), "the page is HTML (page.txt) - name it page.html"),
        (("a film is so good", "--max-length", 5), "7 tokens, more than --max-length 5 - give a shorter text"),
    ):
        ended = run("attention", "show", *arguments, "--model", tiny_model)
        assert (ended.code, ended.last[: len(message) + 7]) == (2, f"error: {message}")
    assert run("attention", "show", "a", "--model", "./none").code == 4


@pytest.mark.parametrize(
    "arguments", [pytest.param("show a --model ./none", marks=pytest.mark.slow), "heads none.csv --model demo"]
)
def test_mistakes_are_answered_before_torch_is_imported(arguments, tmp_path, light_zygote):
    assert HEAVY & light_zygote.imports(tmp_path, ["attention", *arguments.split()]) <= {"numpy"}


def test_a_file_is_a_table_of_heads_and_one_of_relations(run, tmp_path, tiny_model):
    row = {"tokens": ["a", "film", "is", "good"], "head": [2, 4, 4, 0], "deprel": ["det", "nsubj", "cop", "root"]}
    file = write_jsonl(tmp_path / "rows.jsonl", [row] * 64)
    ended = run("attention", "heads", file, "--model", tiny_model)
    assert ended.code == 0, ended.err
    lines = [line.split() for line in ended.out.splitlines()]
    assert "over 64 rows of" in ended.out and "(256 tokens)" in ended.out
    assert [line[0] for line in lines[3:8]] == ["0.0", "0.1", "1.0", "1.1", "uniform"]
    assert [line[0] for line in lines[10:14]] == ["all", "cop", "det", "nsubj"]
    assert ended.out.splitlines()[-1].startswith("Attention shows what heads read. It does not explain")
    found = json.loads(run("attention", "heads", file, "--model", tiny_model, "--json", "--limit", 2).out)
    assert (found["rows"], found["relations"], len(found["measured"])) == (2, [], 4)


def test_mistakes_about_rows_are_answered_in_one_line(run, tmp_path, tiny_model):
    file = write_jsonl(tmp_path / "rows.jsonl", [{"tokens": ["a"], "head": ["5"], "deprel": ["x"]}])
    for arguments, code, message in (
        (("none.csv",), 3, "error: no such file or folder (none.csv)"),
        ((file,), 3, "error: ['5'] are not the heads of 1 words"),
        ((file, "--column", "body"), 3, "error: no column 'body'"),
        ((file, "--output", "page.txt"), 2, "error: the page is HTML (page.txt)"),
    ):
        ended = run("attention", "heads", *arguments, "--model", tiny_model)
        assert (ended.code, ended.last[: len(message)]) == (code, message)

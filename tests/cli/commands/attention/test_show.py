"""What `bertkit attention show` prints."""

from __future__ import annotations

import json

import pytest

from tests.kills import HEAVY


def test_a_text_is_a_table_of_layers(run, tiny_model):
    ended = run("attention", "show", "a film is good", "--pair", "so great", "--model", tiny_model)
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    assert lines[0].endswith("2 layers of 2 heads, 9 tokens")
    assert [line.split()[0] for line in lines[3:5]] == ["0", "1"]
    assert lines[-1].endswith("is no explanation of an answer: for that, see `bertkit explain`.")
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
        (("a", "--head", 1), "--head without --layer - name the layer too"),
        (("a", "--layer", 2), "the model has 2 layers of 2 heads - count them from 0"),
        ((" ",), "a text without tokens - write something in it"),
        (("a", "-o", "page.txt"), "the page is HTML (page.txt) - name it page.txt.html"),
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

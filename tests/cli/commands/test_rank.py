"""What `bertkit rank` prints and writes."""

from __future__ import annotations

import json
import re

import pytest

from bertkit.cli.commands.rank import describe_order
from tests.kills import HEAVY
from tests.reports.insight.test_rank import make_ranking

SMALL = ["--data", "demo", "--rows", 40, "--set", "training.precision=fp32", "--limit", 60]


def test_encoders_are_tables_a_page_and_json(run, tiny_model, timed_once):
    ended = run("rank", "cola", "--models", "demo", tiny_model, *SMALL, "--output", "page.html")
    assert ended.code == 0, ended.err
    assert ended.out.startswith("cola, train: 40 texts, 2 classes; LogME of the mean of layers\n  scores\n")
    assert re.search(r"    encoder +LogME +95% CI +shuffled +gain +H-score +kNN +linear probe\n", ended.out)
    assert re.search(r"      demo +0\.9M +[\d,]+ +0% +\S+( MB)? +128 +unknown +unknown\n", ended.out)
    assert "  * no other is both as good and as fast: " in ended.out
    assert ended.out.endswith("page.html: written\n\nNext:\n  open page.html\n")
    again = run("rank", "cola", "--models", "demo", "--models", tiny_model, *SMALL, "--json")
    found = json.loads(again.out)
    assert {one["model"] for one in found["encoders"]} == {"demo", str(tiny_model)}
    shown = re.search(r"[* ] demo +(\S+) ", ended.out)[1]
    own = next(one for one in found["encoders"] if one["model"] == "demo")
    assert f"{own['scores']['logme']:.4f}" == shown


def test_mistakes_are_answered_in_one_line(run, tmp_path):
    for arguments, code, message in (
        (("cola",), 2, "no encoders to rank - name two or more: --models A B"),
        (("cola", "--models", "demo"), 2, "demo alone cannot be ranked - name two or more"),
        (("cola", "--models", "demo", "demo"), 2, "demo twice - name each encoder once"),
        (("cola", "--models", "demo", "./none"), 4, "no such directory: ./none"),
        (("cola", "--models", "demo", "demo", "-o", "page.pdf"), 2, "the page is HTML (page.pdf)"),
        (("none", "--models", "demo", "demo"), 2, "no recipe is called 'none'"),
        (("cola", "--models", "demo", "--by", "size"), 2, ""),
    ):
        ended = run("rank", *arguments)
        assert (ended.code, ended.last[: len(message) + 7]) == (code, f"error: {message}")


def test_it_says_which_encoders_cannot_be_told_apart():
    assert describe_order(make_ranking()) == [
        "* no other is both as good and as fast: org/<b>large</b>, small",
        "org/<b>large</b> comes first, but cannot be told apart from middle",
        "neighbors that cannot be told apart either: middle and small",
        "no better than with shuffled gold values: small; read more rows",
    ]
    lines = describe_order(make_ranking(alike=False))
    assert lines[1:2] == ["each can be told apart from the next (95% intervals of the differences)"]


@pytest.mark.slow
def test_torch_is_not_imported_for_help_or_a_wrong_model(tmp_path, light_zygote):
    for arguments in (["rank", "--help"], ["rank", "cola", "--models", "demo", "./none"]):
        assert "torch" not in HEAVY & light_zygote.imports(tmp_path, arguments)

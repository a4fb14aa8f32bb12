"""What `bertkit probe` prints."""

from __future__ import annotations

import json

import pytest

from bertkit.cli.commands import probe
from tests.reports.test_probe import make_result


def test_layers_are_a_table(capsys):
    probe.print_probe(make_result(task="relations"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "relations in m: a & b"
    assert lines[1] == (
        "  each probe is trained on 900 pairs of words of 100 rows, and scored on 400 pairs of words of 50 others"
    )
    assert lines[6].split() == ["*", "2", "0.7000", "0.4000", "to", "0.8000", "0.3000", "+0.2000"]
    assert "  most frequent label: 0.2500" in lines
    assert "  best layer: 2; center of gravity: 1.30" in lines
    assert lines[-1].startswith("  note: ")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["pso", "--model", "demo"], 2, "'pso' is neither a recipe nor a task of `bertkit probe` - did you mean pos?"),
        (["length", "--model", "demo"], 3, "the recipe names no data - add --data FILE"),
        (["length", "--model", "no/such/model", "--data", "demo"], 4, "no such directory: no/such/model"),
        (["squad", "--model", "demo", "--data", "demo"], 2, "squad belongs to the family question_answering"),
        (["depth", "--model", "demo", "--data", "demo"], 3, "no column 'head'"),
        (["pos", "--model", "demo", "--data", "demo", "--metric", "f1"], 2, "--metric f1 does not apply to this task"),
        (["pos", "--model", "demo", "-o", "a.txt"], 2, "the page is HTML (a.txt)"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line(run, arguments, code, message):
    ended = run("probe", *arguments)
    assert ended.code == code and message in ended.err
    assert len(ended.err.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("task", ["length", "shift", "pos", "wsd", "mrpc", "stsb"])
def test_tasks_are_probed_on_the_demo_rows(run, task, here):
    ended = run("probe", task, "--model", "demo", "--data", "demo", "--limit", 60, "--json", "-o", "a.html")
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    assert len(found["probed"]["layers"]) == 5 and found["file"] == "a.html"
    assert 0 <= found["probed"]["center_of_gravity"] <= 4
    assert "<svg" in (here / "a.html").read_text()

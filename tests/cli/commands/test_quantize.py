"""`bertkit quantize`: a refusal comes with the table, and with its exit code."""

from __future__ import annotations

import json

import pytest

from bertkit.workflows import quantize as workflow
from tests.cli.commands.test_export import PARITY


@pytest.fixture
def refused(monkeypatch):
    def refuse(*_, **__):
        raise workflow.MarginError("accuracy may lose 0.0200", "nothing was written", PARITY)

    monkeypatch.setattr(workflow, "quantize", refuse)


def test_a_refusal_has_the_table_and_its_exit_code(run, refused):
    ended = run("quantize", "runs/cola", "-o", "out")
    assert (ended.code, ended.last) == (4, "error: accuracy may lose 0.0200 - nothing was written")
    assert "validation, 872 rows" in ended.out
    ended = run("quantize", "runs/cola", "-o", "out", "--json")
    printed = json.loads(ended.out)
    assert (ended.code, printed["status"], printed["parity"]["rows"]) == (4, "error", 872)

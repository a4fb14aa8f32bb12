"""What `bertkit export`, `bertkit quantize` and `bertkit package` print and refuse."""

from __future__ import annotations

import json

import pytest

from bertkit.cli.commands.export import print_package, print_parity
from bertkit.evaluation.parity import Parity
from bertkit.workflows import export as workflow
from bertkit.workflows.package import PackageResult

PARITY = Parity(
    largest=1.23e-7,
    least_cosine=0.99999,
    latency=[
        {"texts": 1, "tokens": 16, "torch": 9.0, "exported": 4.5, "spread": 0.05, "times_as_fast": 2.0},
        {"texts": 8, "tokens": 16, "torch": 97.6, "exported": 4.0, "spread": 0.31, "times_as_fast": None},
    ],
    split="validation",
    rows=872,
    scores={
        "accuracy": {"before": 0.9, "after": 0.89, "difference": -0.01, "interval": [-0.02, 0.0]},
        "f1": {"before": 0.5, "after": float("nan"), "difference": float("nan"), "interval": None},
    },
    flips={"model": 3, "alone": 0},
    notes=["A note."],
)


FLIPS = (
    "labels that differ from the original model: 3 of 872 rows",
    "labels that differ if a row is alone in its batch: 0 of 872 rows",
)


def test_the_tables_have_outputs_speed_and_scores(capsys):
    print_parity(PARITY, "onnx")
    printed = capsys.readouterr().out
    for part in (
        "outputs: 1.2e-07",
        "cosine of vectors: 0.999990",
        "1 x 16",
        "validation, 872 rows",
        "A note.",
        *FLIPS,
    ):
        assert part in printed
    lines = [line.split() for line in printed.splitlines()]
    assert ["1", "x", "16", "9.0", "4.5", "2.00", "5%"] in lines and [
        "8",
        "x",
        "16",
        "97.6",
        "4.0",
        "n/a",
        "31%",
    ] in lines
    assert "  timing varies by up to 31% between rounds" in printed
    by_metric = {line[0]: line for line in lines if line[:1] in (["accuracy"], ["f1"])}
    assert "-0.0100" in by_metric["accuracy"] and "n/a" in by_metric["f1"]


def test_what_does_not_exist_ends_in_one_line(run):
    ended = run("export", "nowhere/run", "-o", "out")
    assert (ended.code, ended.last.startswith("error: ")) == (5, True) or ended.code == 4, ended.last
    assert run("export", "demo", "--to", "tflite", "-o", "out").code == 2
    ended = run("export", "demo", "-o", "out")
    assert (ended.code, "name a run folder, or add --recipe RECIPE" in ended.last) == (2, True), ended.last


@pytest.fixture
def refused(monkeypatch):
    def refuse(*_, **__):
        raise workflow.MarginError("accuracy may lose 0.0200", "nothing was written", PARITY)

    monkeypatch.setattr(workflow, "export", refuse)


def test_a_refusal_has_the_table_and_its_exit_code(run, refused):
    ended = run("quantize", "runs/cola", "-o", "out")
    assert (ended.code, ended.last) == (4, "error: accuracy may lose 0.0200 - nothing was written")
    assert "validation, 872 rows" in ended.out
    ended = run("quantize", "runs/cola", "-o", "out", "--json")
    printed = json.loads(ended.out)
    assert (ended.code, printed["status"], printed["parity"]["rows"]) == (4, "error", 872)


RESULT = PackageResult(
    model="runs/a",
    folder="packages/a",
    name="a",
    recipe="cola",
    backend="onnx",
    precision="int8",
    bytes=24_000_000,
    requirements=("numpy==2.4.6", "onnxruntime==1.32.0"),
    parity=None,
)


def test_size_requirements_and_the_next_command_are_printed(capsys):
    print_package(RESULT)
    assert capsys.readouterr().out.splitlines() == [
        "runs/a, cola: onnx, int8, 24.0 MB",
        "  requires 2 packages (requirements.txt), without torch",
        "",
        "Next:",
        "  cd packages/a && pip install -r requirements.txt && python -m bertkit predict model FILE",
    ]
    print_package(RESULT, serves=True)
    assert "docker build --tag a packages/a && docker run" in capsys.readouterr().out

"""What `bertkit distill` prints and refuses; its trainings are in tests/workflows."""

from __future__ import annotations

import pytest

from bertkit.cli.commands.distill import print_distilled
from bertkit.evaluation.scoring import EvalResult
from bertkit.workflows.distill import ComparedModel, DistillResult

TEACHER = ComparedModel(
    role="teacher",
    model="runs/cola",
    parameters=690_050,
    disk_bytes=2_800_000,
    row_seconds=0.00246,
    rows_per_second=5593.0,
    scores={"accuracy": 0.9},
    intervals={"accuracy": (0.85, 0.95)},
    difference={"accuracy": -0.01},
    difference_intervals={"accuracy": (-0.02, 0.005)},
    spread=0.42,
)
STUDENT = ComparedModel(
    "student", "runs/s", 293_506, 1_200_000, 0.001, 21525.0, {"accuracy": 0.89}, {"accuracy": (0.8, 0.9)}
)


def test_teachers_and_student_are_compared_within_80_columns(capsys):
    result = EvalResult(
        "cola", "m", "validation", {}, 100, 1.0, baselines={"most frequent label": {"accuracy": 0.6}}, folder=""
    )
    print_distilled(DistillResult([result], [TEACHER, STUDENT], "accuracy"))
    _, *lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "  size and speed on this machine",
        "    model              parameters   MB  ms/row  rows/s",
        "    teacher runs/cola     690,050  2.8    2.46   5,593",
        "    student runs/s        293,506  1.2    1.00  21,525",
        "  timing varies by up to 42% between rounds: close other programs and repeat",
        "  accuracy with 95% CI (of differences: bootstrap)",
        "    model                                  score            student - teacher",
        "    teacher runs/cola  0.9000 (0.8500 to 0.9500)  -0.0100 (-0.0200 to 0.0050)",
        "    student runs/s     0.8900 (0.8000 to 0.9000)",
        "    baseline                              0.6000",
    ]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["cola", "--model", "demo", "--student-layers", "1"], "--model and --student-layers are both given"),
        (["distilbert", "--soft-weight", "1"], "distilbert is a pretraining recipe"),
        (["distilbert", "--teacher", "a", "--teacher", "b"], "distilbert is a pretraining recipe"),
    ],
)
def test_options_that_exclude_each_other_are_refused(run, options, message):
    ended = run("distill", *options)
    assert ended.code == 2
    assert ended.last.startswith(f"error: {message}")

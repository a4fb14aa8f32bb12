"""What `bertkit eval` prints and refuses; its scores are in tests/workflows."""

from __future__ import annotations

import json
import math

from bertkit.cli.commands.evaluate import print_results
from bertkit.evaluation.scoring import Result

RESULT = Result(
    recipe="cola",
    model="runs/cola",
    split="validation",
    scores={"matthews_correlation": -0.1, "accuracy": 0.65, "f1": math.nan},
    rows=1043,
    seconds=1.5,
    intervals={"matthews_correlation": (-0.1654, 0.0), "accuracy": (0.55, 0.74)},
    baseline={"accuracy": 0.67},
    source="demo",
    warnings=["Look at the rows."],
    tables={"by label": [{"label": "yes", "f1": 0.5}]},
)


def test_scores_stand_beside_their_interval_and_baseline(capsys):
    print_results([RESULT], as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "cola, validation: 1,043 rows (demo), runs/cola",
        "  matthews_correlation -0.1000  95% CI -0.1654 to 0.0000",
        "  accuracy              0.6500  95% CI 0.5500 to 0.7400    baseline  0.6700",
        "  f1                       n/a",
        "  by label",
        "    label      f1",
        "    yes    0.5000",
        "  Look at the rows.",
    ]
    assert max(map(len, lines)) <= 80


def test_json_has_every_field(capsys):
    print_results([RESULT], as_json=True)
    (printed,) = json.loads(capsys.readouterr().out)["results"]
    assert printed["scores"] == {"matthews_correlation": -0.1, "accuracy": 0.65, "f1": None}
    assert printed["intervals"]["accuracy"] == [0.55, 0.74]


def test_a_checkpoint_must_be_named(run):
    ended = run("eval", "cola")
    assert (ended.code, ended.last) == (2, "error: Missing option '--model' - see `bertkit eval --help`")

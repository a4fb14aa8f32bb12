"""What `bertkit eval` prints and refuses; its scores are in tests/workflows."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from bertkit.cli.commands.evaluate import print_languages, print_results
from bertkit.cli.output import print_result
from bertkit.cli.terminal import json_output
from bertkit.evaluation.scoring import EvalResult
from bertkit.workflows.evaluate import average_languages

RESULT = EvalResult(
    recipe="cola",
    model="runs/cola",
    split="validation",
    scores={"matthews_correlation": -0.1, "accuracy": 0.65, "f1": math.nan},
    rows=1043,
    seconds=1.5,
    intervals={"matthews_correlation": (-0.1654, 0.0), "accuracy": (0.55, 0.74)},
    interval_methods={"matthews_correlation": "bootstrap", "accuracy": "Wilson"},
    baselines={"most frequent label": {"accuracy": 0.67}},
    source="demo",
    warnings=["Look at the rows."],
    tables={"by label": [{"label": "yes", "f1": 0.5}]},
)


def test_scores_stand_beside_their_interval_and_baseline(capsys):
    print_results([RESULT])
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "cola, validation: 1,043 rows (demo), runs/cola",
        "  matthews_correlation -0.1000  95% CI -0.1654 to 0.0000",
        "  accuracy              0.6500  95% CI 0.5500 to 0.7400    baseline  0.6700",
        "  f1                       n/a",
        "  95% CI: bootstrap for matthews_correlation; Wilson for accuracy",
        "  by label",
        "    label      f1",
        "    yes    0.5000",
        "  Look at the rows.",
    ]
    assert max(map(len, lines)) <= 80


def test_training_rows_are_marked_above_the_scores(capsys):
    print_results([replace(RESULT, training_rows=50)])
    assert capsys.readouterr().out.splitlines()[1] == "  training rows: 50 of 1,043 (4.8%). New rows may score lower."


def test_a_number_that_is_undefined_says_why(capsys):
    one, same = "one row cannot be resampled", "all predictions are the same"
    result = replace(
        RESULT,
        rows=1,
        scores={"spearmanr": None, "r2": 0.5},
        intervals={"spearmanr": None, "r2": None},
        interval_methods={},
        baselines={"mean": {"spearmanr": None, "r2": None}},
        undefined={
            "scores": {"spearmanr": "one row has no correlation"},
            "intervals": {"spearmanr": one, "r2": one},
            "baselines": {"spearmanr": same, "r2": same},
        },
        tables={},
    )
    print_results([result])
    assert capsys.readouterr().out.splitlines() == [
        "cola, validation: 1 row (demo), runs/cola",
        "  spearmanr     n/a  95% CI n/a                 baseline     n/a",
        "  r2         0.5000  95% CI n/a                 baseline     n/a",
        "  n/a: spearmanr (one row has no correlation)",
        "  n/a: interval of r2 (one row cannot be resampled)",
        "  n/a: baseline of r2 (all predictions are the same)",
        "  Look at the rows.",
    ]


def test_the_strongest_baseline_stands_beside_the_score_and_all_below(capsys):
    baselines = {
        "most frequent label": {"accuracy": 0.5, "f1": 0.0},
        "text alone": {"accuracy": 0.4, "f1": None},
    }
    result = replace(RESULT, scores={"accuracy": 0.6}, interval_methods={}, baselines=baselines, tables={})
    print_results([result])
    assert capsys.readouterr().out.splitlines()[1:] == [
        "  accuracy  0.6000  95% CI 0.5500 to 0.7400    baseline  0.5000",
        "  baselines",
        "    baseline             accuracy      f1",
        "    most frequent label    0.5000  0.0000",
        "    text alone             0.4000     n/a",
        "  Look at the rows.",
    ]


@pytest.mark.parametrize(
    ("difference", "interval", "said"),
    [
        (0.25, (0.1, 0.4), "better than words by 0.2500 (95% CI 0.1000 to 0.4000)"),
        (-0.25, (-0.4, 0.1), "worse than words by 0.2500 (95% CI -0.1000 to 0.4000), not significant"),
        (-0.00001, None, "as good as words"),
    ],
)
def test_the_difference_from_the_strongest_baseline_is_said(capsys, difference, interval, said):
    lead = {"metric": "f1", "baseline": "words", "difference": difference, "interval": interval}
    print_results([replace(RESULT, lead={**lead, "score_interval": None, "is_clear": True}, tables={})])
    assert f"  f1: {said}" in capsys.readouterr().out.splitlines()


def test_json_has_every_field(capsys):
    with json_output():
        print_result({"results": [RESULT]}, pytest.fail)
    (printed,) = json.loads(capsys.readouterr().out)["results"]
    assert printed["scores"] == {"matthews_correlation": -0.1, "accuracy": 0.65, "f1": None}
    assert printed["intervals"]["accuracy"] == [0.55, 0.74]
    assert printed["interval_methods"]["accuracy"] == "Wilson"


def test_languages_stand_in_one_table_with_their_mean(capsys):
    scores = {"en": (0.8, (0.7, 0.9), 10), "de": (0.6, (0.5, 0.7), 0), "sw": (0.5, (0.4, 0.6), 0)}
    results = {
        language: [
            replace(
                RESULT,
                scores={"accuracy": score},
                intervals={"accuracy": ends},
                training_rows=seen,
                warnings=["Odd."][seen:],
            )
        ]
        for language, (score, ends, seen) in scores.items()
    }
    print_languages(results, average_languages(results, "accuracy"))
    printed = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert printed[3:7] == [
        "en validation 1,043 0.8000 0.7000 to 0.9000 0.6700",
        "de validation 1,043 0.6000 0.5000 to 0.7000 0.6700",
        "sw validation 1,043 0.5000 0.4000 to 0.6000 0.6700",
        "mean 0.6333 0.5756 to 0.6911",
    ]
    assert printed[8:] == ["en: 10 of 1,043 rows are training rows", "de: Odd.", "sw: Odd."]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--languages", "en,,de"],
            "--languages 'en,,de' has an empty name - separate names with one comma, e.g. en,de,fr",
        ),
        (
            ["--languages", "en", "--set", "data.language=de"],
            "--languages and --set data.language are both given - leave one of them out",
        ),
        (["--languages", "en", "--data", "demo"], "no {language} in demo, so data.language=en has no effect"),
    ],
)
def test_languages_that_go_nowhere_are_refused(run, options, message):
    ended = run("eval", "xnli", "--model", "runs/xnli", *options)
    assert ended.code == 2 and ended.last.startswith(f"error: {message}")


def test_a_checkpoint_must_be_named(run):
    ended = run("eval", "cola")
    expected = "error: cola is a recipe, which has no checkpoint - give a run, or add --model RUN"
    assert (ended.code, ended.last) == (2, expected)


def test_eval_without_a_run_says_how_to_name_one(run):
    ended = run("eval", "--model", "demo")
    assert ended.code == 2 and ended.last.startswith("error: no run is named - write e.g. `bertkit eval runs/cola")

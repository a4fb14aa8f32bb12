"""`bertkit sweep`: what is printed of the trials, and what is refused."""

from __future__ import annotations

import pytest

from bertkit.cli.commands.sweep import print_sweep, print_sweep_plan, short_names
from bertkit.evaluation.run_sets import SetRun
from bertkit.evaluation.scoring import EvalResult
from bertkit.evaluation.sweeps import CurvePoint, SweepSummary
from bertkit.metrics.seeds import Selection

RATE, SIZE = "training.learning_rate", "training.batch_size"


def summary_of(scores, **changes):
    results = [EvalResult("cola", "demo", "validation", {"f1": score}, 40, 3.0) for score in scores]
    trials = [
        SetRun(f"trial-{number:04}", "finished", {RATE: number * 1e-5, SIZE: 16}, [result], 3.0, steps=12)
        for number, result in enumerate(results, 1)
    ]
    facts = {
        "trials": trials,
        "best": "trial-0001" if trials else None,
        "selection": Selection(0.65, [0.5] * len(trials)),
        "importance": {RATE: 0.25, SIZE: None},
    }
    where = {"recipe": "cola", "model": "demo", "folder": "runs/x y", "search": "random", "split": "validation"}
    space = {RATE: "log:1e-5..1e-3", SIZE: "16,32"}
    return SweepSummary(**{**where, "space": space, "best_metric": "f1", "rows": 40, **facts, **changes})


def test_the_table_the_best_and_its_luck_are_printed(capsys):
    lost = SetRun("trial-0003", "diverged", {RATE: 1e-3, SIZE: 32}, failure="the loss is nan")
    trials = [*summary_of([0.7, 0.6]).trials, lost]
    print_sweep(summary_of([0.7, 0.6], trials=trials, expected_best=[0.65, 0.7]))
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "cola, validation: 40 rows, 3 trials, demo"
    assert lines[2].split() == ["trial", "learning_rate", "batch_size", "f1", "time"]
    assert lines[3].split() == ["0001", "1e-05", "16", "0.7000", "3.0", "s"]
    assert lines[5].split() == ["0003", "0.001", "32", "n/a", "0.0", "s", "diverged"]
    assert lines[6:12] == [
        "diverged: trial-0003. the loss is nan",
        "explained variance of f1: learning_rate 25%",
        "best of 2: f1 0.7000 (trial-0001), selected on the scored rows",
        "expected on other rows: 0.6500 (50% of 200 resamples select the same trial)",
        "expected best f1 of k random trials: 1: 0.6500, 2: 0.7000",
        "",
    ]
    assert lines[13:] == [
        "open 'runs/x y'/report.html",
        "bertkit eval 'runs/x y'/trial-0001",
    ]


def test_scores_by_training_rows_have_a_table_of_their_own(capsys):
    space = {"data.train_limit": "100,1000", SIZE: "16,32"}
    points = [CurvePoint({SIZE: 16}, 100, 3, 0.5, (0.4, 0.6)), CurvePoint({SIZE: 16}, 1000, 1, 0.7, None)]
    print_sweep(summary_of([], space=space, trials=[], curve=points, importance={}))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["f1", "by", "training", "rows,", "95%", "intervals"] in lines
    assert lines[lines.index(["train_limit", "batch_size", "seeds", "f1", "95%", "CI"]) + 1 :][:2] == [
        ["100", "16", "3", "0.5000", "0.4000", "to", "0.6000"],
        ["1,000", "16", "1", "0.7000", "n/a"],
    ]


def test_what_is_not_known_is_said(capsys):
    print_sweep(summary_of([0.7, 0.6], selection=None, no_selection="too few rows", unfinished=2))
    out = capsys.readouterr().out
    assert "expected on other rows: n/a (too few rows)" in out
    assert "2 more not finished: other processes train them" in out and "Next:" not in out


def test_keys_that_end_alike_keep_their_whole_names():
    assert short_names({"training.seed": "1,2", "other.seed": "1,2", RATE: ""}) == {
        "training.seed": "training.seed",
        "other.seed": "other.seed",
        RATE: "learning_rate",
    }


def test_a_plan_lists_its_trials(capsys):
    plan = {"folder": "runs/a", "trials": 2, "settings": [{SIZE: 16}, {SIZE: 32}]}
    plan |= {"rows": {"train": 400, "validation": 40}, "disk_bytes": 3_000_000}
    print_sweep_plan(plan)
    out = capsys.readouterr().out
    assert "2 trials" in out and "rows     train 400, validation 40" in out and "disk     3 MB in runs/a" in out
    print_sweep_plan({**plan, "settings": []})
    assert "each one depends on the scores of the previous ones" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--restart", "--worker"], "--restart and --worker are both given"),
        (["--space", "training.epochs=2"], "has one value"),
        (["--search", "bayes"], "--search bayes"),
        (["--space", "training.rate=1,2"], "--space: unknown key 'training.rate'"),
        (["--epochs", "2"], "training.epochs is both set and searched"),
        (["--worker"], "there are no runs to join"),
        (["--jobs", "0"], "--jobs 0"),
    ],
)
def test_options_that_cannot_be_are_refused_in_one_line(run, options, what):
    ended = run("sweep", "classify", "--model", "demo", "--data", "demo", *options)
    assert (ended.code, what in ended.last) == (2, True)

"""The trials of a sweep: their order, the best, its score on other rows, and what settings explain."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from bertkit.data.rows import Split
from bertkit.errors import DataError, UsageError
from bertkit.evaluation.run_sets import INSUFFICIENT, SetRun, StoredRuns, describe_run, sort_runs
from bertkit.evaluation.scoring import EvalResult
from bertkit.evaluation.sweeps import (
    CurvePoint,
    check_scored_rows,
    estimate_best_scores,
    find_curve,
    find_importance,
    find_selection,
)
from bertkit.metrics.seeds import estimate_selection
from bertkit.recipe import load_recipe
from bertkit.recipe.space import parse_sweep_space
from bertkit.tasks import load_task
from bertkit.tokens.features import TaskContext
from bertkit.workflows.finetune_data import read_labeled
from tests.conftest import write_csv

GOLD = ["bad", "good"] * 20


@pytest.fixture(scope="module")
def recipe():
    return load_recipe("classify", {"labels": ["bad", "good"], "metrics": ["accuracy"]})


@pytest.fixture
def split():
    rows = [{"text": "a film", "label": label} for label in GOLD]
    return Split("validation", "made up", rows, list(range(len(rows))))


def trial_of(number, score=None, **settings):
    results = [] if score is None else [EvalResult("r", "m", "validation", {"accuracy": score}, 40, 1.0)]
    return SetRun(f"trial-{number:04}", "finished" if results else "diverged", settings, results)


@pytest.fixture
def data(tmp_path):
    rows = [{"text": f"row {n}", "title": f"title {n}", "label": "ab"[n % 2], "stars": n % 3} for n in range(20)]
    write_csv(tmp_path / "train.csv", rows)
    write_csv(tmp_path / "validation.csv", rows[:10])
    return tmp_path


def check_rows(data, *space):
    def read(point):
        return read_labeled(load_recipe("classify", {"data.source": str(data), **point}))[1]["validation"]

    check_scored_rows(parse_sweep_space("grid", space, None), read, "label")


@pytest.mark.parametrize(
    ("space", "what"),
    [
        ("data.limit=5,20", "5 and 20 are scored on different rows (5 and 10), whose scores cannot be ranked"),
        ("data.columns.label=label,stars", "label and stars are scored on different rows (10 and 10)"),
    ],
)
def test_values_that_score_other_rows_or_other_labels_are_refused(data, space, what):
    with pytest.raises(UsageError) as refused:
        check_rows(data, space)
    assert str(refused.value).startswith(f"--space {space.partition('=')[0]}: {what}")


def test_the_same_rows_may_be_read_in_other_ways(data):
    check_rows(data, "data.columns.text=text,title", "data.train_limit=9,20", "training.epochs=1,2")


def test_more_rows_than_there_are_are_refused_wherever_they_are_named(data):
    with pytest.raises(DataError, match=r"data\.train_limit is 21, but there are 20 training rows"):
        check_rows(data, "data.train_limit=9,21,8")


def test_a_record_tells_what_came_of_a_trial(tmp_path):
    settings, trial = {"training.epochs": 2}, tmp_path / "trial-0012"
    assert describe_run(trial, None, settings).status == "waiting"
    lost = describe_run(trial, {"status": "diverged", "error": "the loss is nan", "seconds": 2}, settings)
    assert (lost.status, lost.failure, lost.scores) == ("diverged", "the loss is nan", {})
    result = dataclasses.replace(trial_of(12, 0.5).results[0], folder=str(trial))
    record = {"status": "finished", "steps": 7, "seconds": 3.5, "results": [dataclasses.asdict(result)]}
    assert describe_run(trial, record, settings) == SetRun("trial-0012", "finished", settings, [result], 3.5, None, 7)


def test_the_best_comes_first_and_what_has_no_score_last():
    trials = [trial_of(1), trial_of(2, 0.5), trial_of(3, 0.7), trial_of(4, 0.7)]
    assert [trial.name[-1] for trial in sort_runs(trials, "accuracy")] == ["3", "4", "2", "1"]


def write_trials(folder, shares, **settings):
    """Store the predictions of trials that are right on a share of the rows; return trials and who is right where."""
    rng, trials, correct = np.random.default_rng(2), [], []
    for number, share in enumerate(shares, 1):
        right = rng.random(len(GOLD)) < share
        said = [label if ok else {"bad": "good", "good": "bad"}[label] for label, ok in zip(GOLD, right, strict=True)]
        (folder / f"trial-{number:04}").mkdir()
        lines = [json.dumps({"id": row, "prediction": label}) for row, label in enumerate(said)]
        (folder / f"trial-{number:04}" / "predictions.jsonl").write_text("\n".join(lines) + "\n")
        correct.append(right)
        trials.append(trial_of(number, float(right.mean()), **{key: of[number - 1] for key, of in settings.items()}))
    return trials, correct


def test_the_choice_is_scored_on_rows_that_did_not_choose(tmp_path, recipe, split):
    trials, correct = write_trials(tmp_path, [0.7] * 4)
    trials = sort_runs(trials, "accuracy")
    record = {"identity": {"data": {"validation": split.fingerprint()}}, "results": []}
    names = [trial.name for trial in trials]
    records, contexts = dict.fromkeys(names, record), dict.fromkeys(names, TaskContext(recipe, None, ("bad", "good")))
    stored = StoredRuns(tmp_path, records, contexts, load_task(recipe), split)
    found, reason = find_selection(trials, stored, "accuracy")
    assert reason is None
    rights = np.array([correct[int(trial.name[-1]) - 1] for trial in trials], dtype=float)
    expected = estimate_selection(lambda model, rows: float(rights[model, rows].mean()), 4, len(GOLD))
    assert found == expected
    other = [trial_of(int(trial.name[-1]), trial.scores["accuracy"] / 2) for trial in trials]
    other_rows = {**records, "trial-0002": {**record, "identity": {"data": {"validation": "of other rows"}}}}
    reasons = [
        find_selection(trials[:1], stored, "accuracy")[1],
        find_selection(other, stored, "accuracy")[1],
        find_selection(trials, dataclasses.replace(stored, records=other_rows), "accuracy")[1],
    ]
    assert reasons == [
        "there is only one trial",
        INSUFFICIENT,
        "the trials are scored on different rows",
    ]


def test_a_curve_has_the_mean_over_seeds_for_each_number_of_rows(tmp_path, recipe, split):
    limits, seeds, rates = [100, 100, 30, 30, 30], [1, 2, 1, 2, 1], [0.1, 0.1, 0.1, 0.1, 0.2]
    settings = {"data.train_limit": limits, "training.seed": seeds, "training.learning_rate": rates}
    trials, correct = write_trials(tmp_path, [0.9, 0.9, 0.7, 0.7, 0.5], **settings)
    result = dataclasses.replace(trials[4].results[0], intervals={"accuracy": (0.3, 0.7)})
    trials[4] = dataclasses.replace(trials[4], results=[result])
    names = [trial.name for trial in trials]
    kept = [dict.fromkeys(names, value) for value in ({}, TaskContext(recipe, None, ("bad", "good")))]
    stored = StoredRuns(tmp_path, *kept, load_task(recipe), split)
    low, high, alone = find_curve(sort_runs(trials, "accuracy"), stored, "accuracy")
    means = [np.mean([correct[n].mean() for n in pair]) for pair in ((2, 3), (0, 1))]
    assert [low.score, high.score] == pytest.approx(means)
    assert [(point.limit, point.seeds, point.settings) for point in (low, high)] == [
        (30, 2, {"training.learning_rate": 0.1}),
        (100, 2, {"training.learning_rate": 0.1}),
    ]
    for point in (low, high):
        assert point.interval[0] < point.score < point.interval[1]
    last = float(correct[4].mean())
    assert alone == CurvePoint({"training.learning_rate": 0.2}, 30, 1, last, (0.3, 0.7))
    assert find_curve([trial_of(1, 0.5, **{"training.seed": 1})], stored, "accuracy") == []


def test_keys_are_weighed_by_their_values_and_ranges_by_thirds():
    search = parse_sweep_space("random", ["a=16,32", "b=float:0..1"], None)
    trials = [trial_of(n, 0.5 + 0.1 * (n >= 6), a=16 if n % 2 else 32, b=n / 12) for n in range(12)]
    shares = find_importance(trials, search, "accuracy")
    assert shares["a"] == 0 and 0.5 < shares["b"] < 1
    assert estimate_best_scores(trials, search, "accuracy")[0] == pytest.approx(0.55)
    grid = parse_sweep_space("grid", ["a=16,32"], None)
    assert estimate_best_scores(trials, grid, "accuracy") is None

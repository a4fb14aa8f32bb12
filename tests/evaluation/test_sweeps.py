"""The trials of a sweep: their order, the best, its score on other rows, and what settings explain."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bertkit.data.rows import Split
from bertkit.evaluation.sweeps import (
    Trial,
    describe_trial,
    find_expected_best,
    find_importance,
    find_selection,
    sort_trials,
)
from bertkit.recipe import load_recipe
from bertkit.recipe.space import make_search
from bertkit.tasks import load_task
from bertkit.tokens.features import Setup

GOLD = ["bad", "good"] * 20


@pytest.fixture(scope="module")
def recipe():
    return load_recipe("classify", {"labels": ["bad", "good"], "metrics": ["accuracy"]})


@pytest.fixture
def split():
    rows = [{"text": "a film", "label": label} for label in GOLD]
    return Split("validation", "made up", rows, list(range(len(rows))))


def trial_of(number, score=None, **settings):
    scores = {} if score is None else {"accuracy": score}
    return Trial(number, f"trial-{number:04}", settings, "finished" if scores else "diverged", scores)


def test_a_record_tells_what_came_of_a_trial(tmp_path):
    settings = {"training.epochs": 2}
    assert describe_trial(1, tmp_path, settings, None).status == "waiting"
    lost = describe_trial(1, tmp_path, settings, {"status": "diverged", "error": "the loss is nan", "seconds": 2})
    assert (lost.status, lost.failure, lost.scores) == ("diverged", "the loss is nan", {})
    record = {"status": "finished", "steps": 7, "seconds": 3.5, "results": [{"scores": {"accuracy": 0.5}}, {}]}
    done = describe_trial(12, tmp_path, settings, record)
    assert done == Trial(12, "trial-0012", settings, "finished", {"accuracy": 0.5}, 7, 3.5)


def test_the_best_comes_first_and_what_has_no_score_last():
    trials = [trial_of(1), trial_of(2, 0.5), trial_of(3, 0.7), trial_of(4, 0.7)]
    assert [trial.number for trial in sort_trials(trials, "accuracy")] == [3, 4, 2, 1]
    errors = [Trial(n, "", {}, "finished", {"mean_squared_error": score}) for n, score in enumerate((0.5, 0.2))]
    assert [trial.number for trial in sort_trials(errors, "mean_squared_error")] == [1, 0]


def test_the_choice_is_scored_on_rows_that_did_not_choose(tmp_path, recipe, split):
    rng, trials, correct = np.random.default_rng(2), [], []
    for number in range(1, 5):
        right = rng.random(len(GOLD)) < 0.7
        said = [label if ok else {"bad": "good", "good": "bad"}[label] for label, ok in zip(GOLD, right, strict=True)]
        (tmp_path / f"trial-{number:04}").mkdir()
        lines = [json.dumps({"id": row, "prediction": label}) for row, label in enumerate(said)]
        (tmp_path / f"trial-{number:04}" / "predictions.jsonl").write_text("\n".join(lines) + "\n")
        correct.append(right)
        trials.append(trial_of(number, float(right.mean())))
    trials = sort_trials(trials, "accuracy")
    record = {"identity": {"data": {"validation": split.fingerprint()}}, "results": []}
    records, setups = (
        dict.fromkeys(range(1, 5), record),
        dict.fromkeys(range(1, 5), Setup(recipe, None, ("bad", "good"))),
    )
    found, reason = find_selection(trials, records, setups, load_task(recipe), split, tmp_path)
    assert reason is None
    rng, expected = np.random.default_rng(0), []
    for _ in range(200):  # a plain loop over the same draws
        inside = rng.integers(0, 40, size=40)
        outside = [row for row in range(40) if row not in inside]
        best = max(range(4), key=lambda place: correct[trials[place].number - 1][inside].mean())
        expected.append(correct[trials[best].number - 1][outside].mean())
    assert found.estimate == pytest.approx(np.mean(expected))
    other = [trial_of(trial.number, trial.scores["accuracy"] / 2) for trial in trials]
    reasons = [
        find_selection(trials[:1], records, setups, load_task(recipe), split, tmp_path)[1],
        find_selection(other, records, setups, load_task(recipe), split, tmp_path)[1],
        find_selection(
            trials,
            {**records, 2: {**record, "identity": {"data": {"validation": "of other rows"}}}},
            setups,
            load_task(recipe),
            split,
            tmp_path,
        )[1],
    ]
    assert reasons == [
        "one trial was not chosen among others",
        "the stored predictions do not suffice",
        "the trials are scored on different rows",
    ]


def test_keys_are_weighed_by_their_values_and_ranges_by_thirds():
    search = make_search("random", ["a=16,32", "b=float:0..1"], None)
    trials = [trial_of(n, 0.5 + 0.1 * (n >= 6), a=16 if n % 2 else 32, b=n / 12) for n in range(12)]
    shares = find_importance(trials, search, "accuracy")
    assert shares["a"] == 0 and 0.5 < shares["b"] < 1
    assert find_expected_best(trials, search, "accuracy")[0] == pytest.approx(0.55)
    grid = make_search("grid", ["a=16,32"], None)
    assert find_expected_best(trials, grid, "accuracy") is None

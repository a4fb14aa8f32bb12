"""Runs that differ in their seed: which failed, which is best, and the interval from their stored predictions."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bertkit.data.rows import Split
from bertkit.evaluation.run_sets import (
    INSUFFICIENT,
    SeedsOfSplit,
    SetRun,
    StoredRuns,
    describe_run,
    find_failure,
    sort_runs,
    summarize_split,
    warn_if_unclear,
)
from bertkit.evaluation.scoring import EvalResult
from bertkit.metrics.seeds import compute_spread
from bertkit.recipe import load_recipe
from bertkit.tasks import load_task
from bertkit.tokens.features import TaskContext


@pytest.fixture(scope="module")
def recipe():
    return load_recipe("classify", {"labels": ["bad", "good"], "metrics": ["accuracy", "f1"]})


def split_of(gold):
    rows = [{"text": "a film", "label": label} for label in gold]
    return Split("validation", "made up", rows, list(range(len(rows))))


def write_run(folder, predicted):
    folder.mkdir(parents=True)
    lines = [json.dumps({"id": number, "prediction": label}) for number, label in enumerate(predicted)]
    (folder / "predictions.jsonl").write_text("\n".join(lines) + "\n")


def record_of(accuracy, baseline=0.5):
    result = {
        "recipe": "mine",
        "model": "tiny",
        "split": "validation",
        "rows": 2,
        "seconds": 2.0,
        "scores": {"accuracy": accuracy, "f1": None},
        "baselines": {"most frequent label": {"accuracy": baseline}, "one text alone": {"accuracy": 0.99}},
    }
    return {"status": "finished", "seconds": 2.0, "results": [result]}


@pytest.mark.parametrize(
    ("predicted", "record", "failure"),
    [
        (["bad", "good"], record_of(0.7), None),  # a baseline that reads a part of the input may be better
        (["bad", "bad"], record_of(0.7), "It gives every row the same answer."),
        (["bad", "good"], record_of(0.5), "The accuracy of 0.5000 is no better than the 0.5000 of a baseline (most fr"),
        (["bad", "good"], record_of(None), "Its accuracy is undefined."),
        (["bad", "good"], {"status": "diverged", "error": "the loss is nan"}, "the loss is nan"),
    ],
)
def test_a_run_fails_where_it_learns_nothing(tmp_path, recipe, predicted, record, failure):
    write_run(tmp_path / "seed-4", predicted)
    stored = StoredRuns(tmp_path, {"seed-4": record}, {}, load_task(recipe), split_of(["bad", "good"]))
    run = describe_run(tmp_path / "seed-4", record)
    text = find_failure(run, stored, "accuracy")
    assert (text or "").startswith(failure or "") and bool(text) == bool(failure)
    assert run.name == "seed-4" and bool(run.results) == (record["status"] == "finished")


def run_of(name, metric, score):
    return SetRun(name, "finished", results=[EvalResult("r", "m", "v", {metric: score}, 9, 1.0)])


def test_the_best_run_is_the_first_of_the_best_scores():
    runs = [run_of(str(n), "f1", score) for n, score in [(1, 0.5), (2, 0.7), (3, 0.7), (4, None)]]
    assert [run.name for run in sort_runs([SetRun("5", "diverged"), *runs], "f1")] == ["2", "3", "1", "5", "4"]
    error = [run_of(str(n), "mean_squared_error", float(n)) for n in (3, 1, 2)]
    assert sort_runs(error, "mean_squared_error")[0].name == "1"


def test_stored_predictions_give_the_spread_and_the_interval(tmp_path, recipe):
    rng = np.random.default_rng(0)
    gold = rng.choice(["bad", "good"], size=60).tolist()
    task, split = load_task(recipe), split_of(gold)
    context = TaskContext(recipe, None, ("bad", "good"))
    described, records, right = [], {}, []
    for seed in (1, 2, 3):
        predicted = [g if rng.random() < 0.8 else {"bad": "good", "good": "bad"}[g] for g in gold]
        write_run(tmp_path / f"seed-{seed}", predicted)
        records[f"seed-{seed}"] = record_of(None)
        scores = task.score(task.compare([{"prediction": label} for label in predicted], split.rows, context), context)
        records[f"seed-{seed}"]["results"][0]["scores"] = {name: float(value) for name, value in scores.items()}
        described.append(describe_run(tmp_path / f"seed-{seed}", records[f"seed-{seed}"]))
        right.append(np.mean([g == p for g, p in zip(gold, predicted, strict=True)]))
    stored = StoredRuns(tmp_path, records, dict.fromkeys(records, context), task, split)
    found = summarize_split(described, stored)
    assert found.spreads["accuracy"].mean == pytest.approx(np.mean(right))
    low, high = found.spreads["accuracy"].interval
    assert low < np.mean(right) < high
    assert found.baseline == {"accuracy": 0.5}
    # predictions that do not give back the score of the record say so
    records["seed-2"]["results"][0]["scores"]["f1"] = 0.123
    described[1] = describe_run(tmp_path / "seed-2", records["seed-2"])
    changed = summarize_split(described, stored).spreads
    assert changed["f1"].interval is None
    assert changed["f1"].no_interval == INSUFFICIENT
    assert changed["accuracy"].interval == (low, high)


@pytest.mark.parametrize(
    ("metric", "interval", "least", "is_told"),
    [
        ("f1", (0.320, 0.377), 0.341, True),
        ("f1", (0.345, 0.377), 0.341, False),
        ("mean_squared_error", (0.320, 0.377), 0.341, True),
        ("mean_squared_error", (0.320, 0.330), 0.341, False),
        ("f1", None, 0.341, False),
    ],
)
def test_a_mean_that_its_baseline_explains_is_told(metric, interval, least, is_told):
    spread = compute_spread([0.34, 0.35], interval=interval)
    lines = warn_if_unclear(SeedsOfSplit("validation", 9, {metric: spread}, {}), metric, {"words": {metric: least}})
    assert [f"is not significantly better than the {least:.4f} of a baseline (words)" in line for line in lines] == (
        [True] if is_told else []
    )

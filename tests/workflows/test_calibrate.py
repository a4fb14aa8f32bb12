"""Calibrate a checkpoint; `eval` and `predict` then apply what was found, and say so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from bertkit.metrics import calibration as metrics
from bertkit.storage.seeds import write_seeds
from bertkit.workflows.calibrate import _compare_f1
from tests.conftest import toy_rows, write_csv


@pytest.fixture
def model(trained, tmp_path) -> Path:
    return shutil.copytree(trained, tmp_path / "model")


@pytest.fixture
def rows(tmp_path) -> Path:
    """Rows of which every sixth has the other label."""
    rows = toy_rows(240, seed=8)
    for row in rows[::6]:
        row["label"] = {"good": "bad", "bad": "good"}[row["label"]]
    return write_csv(tmp_path / "rows.csv", rows)


def test_a_calibration_is_applied_and_said(run, model, rows):
    command = ["--model", model, "--data", rows, "--split", "all", "--training-rows", "keep", "--json"]
    before = json.loads(run("predict", "classify", rows, "--model", model).out.splitlines()[0])
    ended = run("calibrate", "classify", *command)
    assert ended.code == 0, ended.err
    result = json.loads(ended.out)
    assert result["temperature"] > 1.5 and result["after"]["nll"]["value"] < result["before"]["nll"]["value"]
    assert [one["asked"] for one in result["abstention"]] == [0.9, 0.95, 0.99] and len(result["risk_coverage"]) == 20
    again = run("calibrate", *command[1:])  # a run brings its recipe
    assert json.loads(again.out) == result  # the temperature in force does not count
    evaluated = run("eval", "classify", *command)
    assert evaluated.code == 0
    line = f"calibrated on all (240 rows): temperature {result['temperature']:.4g}"
    assert line in evaluated.err
    asked = ["--precision", 0.7, "--coverage", 0.95]
    predicted = run("predict", "classify", rows, "--model", model, *asked)
    assert line in predicted.err and "precision 0.7, shown with 95% confidence" in predicted.err
    records = [json.loads(one) for one in predicted.out.splitlines()]
    first = np.array([list(before["probabilities"].values())])
    tempered = metrics.temper(first, result["temperature"])[0]
    assert list(records[0]["probabilities"].values()) == pytest.approx(tempered.tolist())
    assert records[0]["prediction"] == before["prediction"]
    holds = [row["label"] in record["prediction_set"] for row, record in zip(records, records, strict=True)]
    assert np.mean(holds) >= 0.94 and all("abstain" in record for record in records)


def test_what_cannot_be_calibrated_is_refused_in_a_line(run, model, rows):
    few = run("calibrate", "classify", "--model", model, "--data", rows, "--split", "all", "--limit", 5)
    assert (few.code, few.last) == (2, "error: 5 rows are too few to calibrate on - give at least 20")
    other = run("calibrate", "regress", "--model", model, "--data", rows)
    assert (other.code, other.last) == (2, "error: text_regression has no probabilities of labels to calibrate")
    none = run("predict", "classify", "--model", model, "--text", "good", "--precision", 0.9)
    assert none.code == 2
    assert none.last.endswith(f"need - bertkit calibrate classify --model {model}")
    share = run("calibrate", "classify", "--model", model, "--data", rows, "--coverage", 95)
    assert (share.code, share.last.split(" - ")[0]) == (2, "error: --coverage 95 is no share")
    words = run("predict", "tag", "--model", model, "--text", "good", "--precision", 0.9)
    assert words.last.startswith("error: --precision and --coverage are for one label per row, not for token_class")
    both = run("predict", "classify", "--model", model, "--text", "x", "--precision", 0.9, "--abstain-below", 0.5)
    assert (both.code, both.last) == (2, "error: --precision and --abstain-below - give one or the other")
    several = ["--set", "options.multi_label=true", "--abstain-below", 0.5]
    assert (
        "options.abstain_below is for one label per row"
        in run("predict", "classify", "--model", model, "--text", "x", *several).last
    )
    sets = run("calibrate", "classify", "--model", model, "--data", rows, *several[:2], "--coverage", 0.9)
    assert sets.code == 2 and "one label per row, not for several - leave them out" in sets.last
    assert not list(model.glob("calibration*"))


def test_an_ensemble_is_calibrated_as_its_mean(run, trained, rows, tmp_path):
    """Of copies of one run, whose mean is as sure as each; a calibration of one of them does not count."""
    seeds, command = tmp_path / "seeds", ["--data", rows, "--split", "all", "--training-rows", "keep", "--json"]
    for seed in (1, 2):
        shutil.copytree(trained, seeds / f"seed-{seed}", ignore=shutil.ignore_patterns("checkpoint-*"))
    entries = [{"folder": f"seed-{seed}", "status": "finished", "failure": None} for seed in (1, 2)]
    write_seeds(seeds, {"runs": entries})
    both = json.loads(run("calibrate", "classify", "--model", seeds, "--coverage", 0.9, *command).out)
    one = json.loads(run("calibrate", "classify", "--model", seeds / "seed-1", *command).out)
    assert both["temperature"] == pytest.approx(one["temperature"], rel=0.01)
    assert both["file"] == str(seeds / "calibration.json") and both["prediction_sets"][0]["held"] > 0.8
    assert "Prediction sets" in (seeds / "calibration.html").read_text()
    predicted = [
        run("predict", "classify", rows, "--model", model, "--precision", 0.7) for model in (seeds, one["model"])
    ]
    assert all("calibrated on all (240 rows): temperature" in one.err for one in predicted)
    first = [json.loads(one.out.splitlines()[0])["probabilities"]["good"] for one in predicted]
    assert first[0] == pytest.approx(first[1], abs=0.01)


def test_f1_of_tuned_thresholds_is_of_other_rows():
    random = np.random.default_rng(0)
    yes = random.uniform(size=(100, 2))
    gold = (random.uniform(size=(100, 2)) < yes**3).astype(int)
    found = _compare_f1(yes, gold)
    in_sample = [metrics.tune_threshold(yes[:, n], gold[:, n]) for n in range(2)]
    chosen = yes >= in_sample
    best = np.mean(2 * (chosen & (gold == 1)).sum(axis=0) / (chosen.sum(axis=0) + gold.sum(axis=0)))
    assert found["after"] < best and found["before"] < best
    assert _compare_f1(yes[:60], np.ones((60, 2), dtype=int))["after"] > 0.99

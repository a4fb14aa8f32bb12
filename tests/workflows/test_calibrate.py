"""Calibrate a checkpoint; `eval` and `predict` then apply what was found, and say so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from textwrap import wrap

import numpy as np
import pytest

from bertkit.metrics import calibration as metrics
from bertkit.storage.fingerprints import write_with_checksum
from bertkit.storage.run_sets import SEEDS, write_summary
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
    command = ["--model", model, "--data", rows, "--split", "all", "--on-overlap", "mark", "--json"]
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
    fitted = "The calibration in force (temperature) was fitted to 240 of 240 (100.0%) of these rows."
    assert any(one.startswith(fitted) for one in json.loads(evaluated.out)["results"][0]["warnings"])
    asked = ["--min-precision", 0.7, "--coverage", 0.95]
    predicted = run("predict", "classify", rows, "--model", model, *asked)
    assert line in predicted.err and "precision 0.7 with 95% confidence" in predicted.err
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
    none = run("predict", "classify", "--model", model, "--text", "good", "--min-precision", 0.9)
    assert none.code == 2
    assert none.last.endswith(f"need - bertkit calibrate classify --model {model}")
    share = run("calibrate", "classify", "--model", model, "--data", rows, "--coverage", 95)
    assert (share.code, share.last.split(" - ")[0]) == (2, "error: --coverage must be between 0 and 1, got 95")
    words = run("predict", "tag", "--model", model, "--text", "good", "--min-precision", 0.9)
    assert words.last.startswith("error: --min-precision and --coverage are for one label per row, not for token_class")
    both = run("predict", "classify", "--model", model, "--text", "x", "--min-precision", 0.9, "--abstain-below", 0.5)
    assert (both.code, both.last) == (
        2,
        "error: --min-precision and --abstain-below are both given - leave one of them out",
    )
    several = ["--set", "options.multi_label=true", "--abstain-below", 0.5]
    assert (
        "options.abstain_below is for one label per row"
        in run("predict", "classify", "--model", model, "--text", "x", *several).last
    )
    sets = run("calibrate", "classify", "--model", model, "--data", rows, *several[:2], "--coverage", 0.9)
    assert sets.code == 2 and "one label per row, not for several - leave them out" in sets.last
    assert not list(model.glob("calibration*"))


@pytest.mark.slow
def test_an_ensemble_is_calibrated_as_its_mean(run, trained, rows, tmp_path):
    """Of copies of one run, whose mean is as sure as each; a calibration of one of them does not count."""
    seeds, command = tmp_path / "seeds", ["--data", rows, "--split", "all", "--on-overlap", "mark", "--json"]
    for seed in (1, 2):
        shutil.copytree(trained, seeds / f"seed-{seed}", ignore=shutil.ignore_patterns("checkpoint-*"))
    entries = [{"folder": f"seed-{seed}", "status": "finished", "failure": None} for seed in (1, 2)]
    write_summary(seeds / SEEDS, {"runs": entries})
    both = json.loads(run("calibrate", "classify", "--model", seeds, "--coverage", 0.9, *command).out)
    one = json.loads(run("calibrate", "classify", "--model", seeds / "seed-1", *command).out)
    assert both["temperature"] == pytest.approx(one["temperature"], rel=0.01)
    assert both["file"] == str(seeds / "calibration.json") and both["prediction_sets"][0]["held"] > 0.8
    assert "Prediction sets" in (seeds / "calibration.html").read_text()
    predicted = [
        run("predict", "classify", rows, "--model", model, "--min-precision", 0.7) for model in (seeds, one["model"])
    ]
    assert all("calibrated on all (240 rows): temperature" in one.err for one in predicted)
    first = [json.loads(one.out.splitlines()[0])["probabilities"]["good"] for one in predicted]
    assert first[0] == pytest.approx(first[1], abs=0.01)


def test_rows_of_the_calibration_are_scored_by_what_was_fitted_to_others(run, model, tmp_path):
    """Several labels per row: the scores of `eval` are the cross-fitted ones that `calibrate` told."""
    config = model / "config.json"
    config.write_text(config.read_text().replace("single_label_classification", "multi_label_classification"))
    (model / "run.json").unlink()  # it has the checksum of the config
    random = np.random.default_rng(0)
    rows = toy_rows(150, seed=8)
    for row in rows:
        row["label"] = "|".join(name for name in ("good", "bad") if name == row["label"] or random.random() < 0.6)
    several = ["--model", model, "--split", "all", "--on-overlap", "mark", "--set", "options.multi_label=true"]
    several += ["--set", "metrics=[f1_macro,accuracy]", "--set", "best_metric=f1_macro", "--json", "--data"]
    data = write_csv(tmp_path / "several.csv", rows)
    result = json.loads(run("calibrate", "classify", *several, data).out)
    assert result["thresholds"] and result["f1_macro"]["after"] > result["f1_macro"]["before"]
    again = json.loads(run("eval", "classify", *several, data, "-o", "scored").out)["results"][0]
    assert again["scores"]["f1_macro"] == pytest.approx(result["f1_macro"]["after"], abs=1e-12)
    cross = "The calibration in force (temperature and thresholds) was fitted to 150 of 150 (100.0%) of these rows."
    assert any(line.startswith(cross) for line in again["warnings"])
    file = model / "calibration.json"
    saved = json.loads(file.read_text())
    assert sum(len(fold["rows"]) for fold in saved["folds"]) == 16 * len({row["text"] for row in rows})
    # in the order of the file or not, and among rows that it was not fitted to
    mixed = write_csv(tmp_path / "mixed.csv", toy_rows(150, seed=9) + rows[:30][::-1])
    part = run("eval", "classify", *several, mixed, "-o", "part")
    assert "fitted to 30 of 180 (16.7%) of these rows" in part.out
    files = [Path(folder, "predictions_all.jsonl").read_text().splitlines() for folder in ("scored", "part")]
    first, second = ([json.loads(line)["probabilities"]["good"] for line in lines] for lines in files)
    assert first[:30][::-1] == pytest.approx(second[150:], rel=1e-5)
    # every option by hand: nothing of the calibration is in force
    own = ["--set", "options.temperature=1", "--set", "options.thresholds={good: 0.5}"]
    assert "fitted to" not in run("eval", "classify", *several, data, *own).out
    # with thresholds of all rows, the score is too high; a calibration from the Hub does not know
    write_with_checksum(file, {**saved, "folds": []})
    old = json.loads(run("eval", "classify", *several, data).out)["results"][0]
    assert old["scores"]["f1_macro"] > again["scores"]["f1_macro"]
    assert any("does not name the rows that it was fitted to" in line for line in old["warnings"])


def test_rows_of_a_calibration_repeat_in_one_fold(run, model, tmp_path):
    """So that none is scored by what was fitted to its copy; and copies are no rows of their own."""
    rows = toy_rows(25, seed=8)
    command = ["--model", model, "--split", "all", "--on-overlap", "mark", "--data"]
    assert run("calibrate", "classify", *command, write_csv(tmp_path / "rows.csv", rows * 4)).code == 0
    folds = [set(wrap(fold["rows"], 16)) for fold in json.loads((model / "calibration.json").read_text())["folds"]]
    assert sum(map(len, folds)) == len(set.union(*folds)) == 25
    few = run("calibrate", "classify", *command, write_csv(tmp_path / "few.csv", rows[:10] * 4))
    assert few.last == "error: 10 different rows are too few to calibrate on - give at least 20"


def test_f1_of_tuned_thresholds_is_of_other_rows():
    random = np.random.default_rng(0)
    yes = random.uniform(size=(100, 2))
    gold = (random.uniform(size=(100, 2)) < yes**3).astype(int)

    def compare(yes, gold):
        rows = np.repeat(np.arange(len(gold)), 2)
        decisions = metrics.Decisions(metrics.as_pairs(yes.ravel()), gold.ravel(), rows, unit="label")
        fits = metrics.fit_folds(decisions, rows, 2)
        return _compare_f1(metrics.temper_folds(decisions, fits)[:, 1], gold.ravel(), fits)

    found = compare(yes, gold)
    in_sample = [metrics.tune_threshold(yes[:, n], gold[:, n]) for n in range(2)]
    chosen = yes >= in_sample
    best = np.mean(2 * (chosen & (gold == 1)).sum(axis=0) / (chosen.sum(axis=0) + gold.sum(axis=0)))
    assert found["after"] < best and found["before"] < best
    assert compare(yes[:60], np.ones((60, 2), dtype=int))["after"] > 0.99

"""The file of a calibration: written, read, refused where it is damaged or of other weights; thresholds from it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest

from bertkit.errors import DataError, ModelError, UsageError
from bertkit.evaluation.calibration import (
    CALIBRATION_FILE,
    SavedCalibration,
    choose_thresholds,
    fingerprint_all,
    read_calibration,
    write_calibration,
)
from bertkit.modeling.checkpoint import fingerprint
from bertkit.recipe import load_recipe

ONE = SavedCalibration(
    model="",
    task="text_classification",
    split="validation",
    source="rows.csv",
    rows=200,
    temperature=1.5,
    confidence="0.9 " * 150 + "0.6 " * 50,
    right="1 " * 150 + "0 " * 50,
    gold="0.9 " * 150 + "0.4 " * 50,
)


@pytest.fixture
def folder(tiny_model, tmp_path):
    copy = shutil.copytree(tiny_model, tmp_path / "model")
    write_calibration(copy, replace(ONE, model=fingerprint(copy)))
    return copy


def test_what_is_written_is_read(folder, tiny_model):
    assert read_calibration(folder, ONE.task) == replace(ONE, model=fingerprint(folder))
    assert read_calibration(folder, "multiple_choice") is None
    assert read_calibration(tiny_model, ONE.task) is None


def test_a_damaged_one_and_one_of_other_weights_are_refused(folder):
    file = folder / CALIBRATION_FILE
    written = json.loads(file.read_text())
    write_calibration(folder, replace(ONE, model="0"))
    with pytest.raises(ModelError, match="the calibration does not match the weights in this folder") as raised:
        read_calibration(folder, ONE.task)
    assert raised.value.remedy == "run `bertkit calibrate` again, or delete it"
    changed = json.dumps({**written, "temperature": 1.4})
    for content in ("{", '{"temperature": 1}', "[]", '"a"', "[" * 100_000, changed):
        file.write_text(content)
        with pytest.raises(ModelError, match="the calibration is damaged"):
            read_calibration(folder, ONE.task)


def test_what_is_in_force_is_said():
    assert ONE.options() == {"temperature": 1.5}
    assert ONE.describe() == "calibrated on validation (200 rows): temperature 1.5"
    several = replace(ONE, thresholds={"joy": 0.25, "fear": 0.5})
    assert several.describe().endswith("temperature 1.5; thresholds joy 0.25, fear 0.5")
    assert several.options() == {"temperature": 1.5, "thresholds": {"joy": 0.25, "fear": 0.5}}


@pytest.fixture
def log(caplog):
    caplog.set_level("INFO", "bertkit")
    return caplog


def test_a_precision_and_a_coverage_become_options(log):
    options = choose_thresholds(ONE, load_recipe("classify"), 0.95, 0.8)
    assert 0.6 < options["abstain_below"] <= 0.9 and options["set_above"] == 0.4
    assert "75.0% of the 200 rows remain, and 100.0% of these are correct" in log.messages[0]
    assert log.messages[1] == "coverage 0.8: prediction_set has each label of probability 0.4000 or more"


def test_each_type_of_question_has_a_promise_of_its_own(log):
    typed = replace(ONE, temperature={"choice": 1.5, "score": 2.0}, types=" ".join(["choice"] * 150 + ["score"] * 50))
    assert typed.describe().endswith("temperature choice 1.5, score 2")
    options = choose_thresholds(typed, load_recipe("decide"), 0.95, 0.8)
    assert options == {"abstain_below": {"choice": 0.0}, "set_above": {"choice": 0.9, "score": 0.4}}
    assert "100.0% of the 150 choice answers remain" in log.messages[0]
    assert log.messages[2] == "precision 0.95 of score is not reached: abstains from all 50 score answers"
    with pytest.raises(DataError, match=r"no threshold has shown a precision of 0.999"):
        choose_thresholds(typed, load_recipe("decide"), 0.999, None)


def test_what_cannot_be_promised_is_refused():
    recipe = load_recipe("classify", {"model": "runs/x"})
    with pytest.raises(UsageError, match="--min-precision must be between 0 and 1, got 95 - choose a fraction"):
        choose_thresholds(ONE, recipe, 95, None)
    with pytest.raises(DataError, match=r"no threshold has shown a precision of 0.999 on the 200 rows \(rows.csv\)"):
        choose_thresholds(ONE, recipe, 0.999, None)
    for missing in (None, replace(ONE, confidence=[])):
        with pytest.raises(
            UsageError, match=r"has no calibration of one label .* - bertkit calibrate classify --model r"
        ):
            choose_thresholds(missing, recipe, 0.9, None)


def test_an_ensemble_has_a_calibration_of_its_own(folder, tiny_model, tmp_path):
    seeds = tmp_path / "seeds"
    seeds.mkdir()
    members = [folder, tiny_model]
    write_calibration(seeds, replace(ONE, model=fingerprint_all(seeds, members)))
    assert read_calibration(seeds, ONE.task, members) is not None
    with pytest.raises(ModelError, match="the calibration does not match the weights of the runs in this folder"):
        read_calibration(seeds, ONE.task, [*members, folder])

"""Baselines of a run: fitted once, kept in its folder, and what is said of a model that does not beat them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bertkit.evaluation.baselines import (
    BASELINES_FILE,
    BaselineComparison,
    compare_with_baselines,
    describe_missing_labels,
    find_missing_labels,
    find_warnings,
    fit_and_score,
    read_baselines,
    write_baselines,
)
from bertkit.metrics.intervals import bootstrap_intervals
from bertkit.tasks import text_classification as task

ROWS = [{"text": "a", "label": "good"}, {"text": "b", "label": "bad"}, {"text": "c", "label": "good"}]
SETUP = SimpleNamespace(
    labels=("bad", "good"),
    label_ids={"bad": 0, "good": 1},
    recipe=SimpleNamespace(labels=None, metrics=["accuracy"], options={}, task=""),
)


def test_baselines_are_scored_on_each_split_as_a_model_is():
    scored = fit_and_score(task, ROWS, {"validation": ROWS, "test": ROWS[1:2]}, SETUP)
    assert scored.scores == {
        "validation": {"most frequent label": {"accuracy": pytest.approx(2 / 3)}},
        "test": {"most frequent label": {"accuracy": 0.0}},
    }
    # no word is in two rows
    assert scored.state == {"most frequent label": 1, "linear model over TF-IDF": None}


def saved(folder: Path, checksum: str | None = None, name: str = "text_classification") -> SimpleNamespace:
    record = {"baselines": checksum} if checksum else {}
    run_recipe = {"task": "text_classification"}
    return SimpleNamespace(folder=folder, record=record, run_recipe=run_recipe, recipe=SimpleNamespace(task=name))


def test_what_was_fitted_is_read_as_it_was_written_or_not_at_all(tmp_path, caplog):
    learned = {"most frequent label": 1, "text alone": {"intercept": [0.25]}}
    checksum = write_baselines(tmp_path, learned)
    assert read_baselines(saved(tmp_path, checksum)) == learned
    assert read_baselines(saved(tmp_path)) is None  # a plain checkpoint
    assert read_baselines(saved(tmp_path, checksum, "text_regression")) is None
    caplog.set_level("INFO", "bertkit")
    for content in (json.dumps({**learned, "most frequent label": 0}), "{"):
        (tmp_path / BASELINES_FILE).write_text(content)
        assert read_baselines(saved(tmp_path, checksum)) is None
        assert "is missing or changed, so baselines are not scored" in caplog.text
        caplog.clear()
    (tmp_path / BASELINES_FILE).unlink()  # An export has no such file.
    assert read_baselines(saved(tmp_path, checksum)) is None
    assert "baselines.json is missing or changed, so baselines are not scored" in caplog.text


@pytest.mark.parametrize(
    ("answers", "gold", "warns"), [("aa", "ab", True), ("aa", "aa", False), ("ab", "ab", False), ("a", "b", False)]
)
def test_one_answer_for_all_rows_is_said_where_they_differ(answers, gold, warns):
    scored = SimpleNamespace(predictions=[{"prediction": answer} for answer in answers], scores={"f1": 0.9})
    found = find_warnings(list(gold), scored, lead_of(0.4, (0.3, 0.5)))
    assert found == ["The model gives every row the same answer, 'a': it has learned nothing yet."] * warns


def lead_of(difference: float, interval: tuple[float, float] | None) -> BaselineComparison:
    return BaselineComparison(
        "text alone", "f1", 0.5, (0.4, 0.6), difference, interval, bool(interval and interval[0] > 0)
    )


def test_a_model_that_does_not_beat_its_baselines_beyond_chance_gets_a_remedy():
    scored = SimpleNamespace(predictions=[{"prediction": "a"}, {"prediction": "b"}], scores={"f1": 0.5})
    (found,) = find_warnings(["a", "b"], scored, lead_of(0, None), " Try more --epochs.")
    assert found == "The f1 of 0.5000 is no better than the 0.5000 of a baseline (text alone). Try more --epochs."
    scored.scores["f1"] = 0.52
    (found,) = find_warnings(["a", "b"], scored, lead_of(0.02, (-0.01, 0.05)), " Try more --epochs.")
    assert found == (
        "The f1 of 0.5200 is not significantly above the 0.5000 of a baseline (text alone): it is ahead by 0.0200, "
        "95% CI -0.0100 to 0.0500. Try more --epochs."
    )
    assert find_warnings(["a", "b"], scored, lead_of(0.02, (0.01, 0.05))) == []
    assert find_warnings(["a", "b"], scored, None) == []


@pytest.mark.parametrize("metric", ["accuracy", "mean_absolute_error"])
def test_the_lead_over_the_strongest_baseline_is_paired_row_by_row(metric, usual_resamples, monkeypatch):
    """The error of a mean of differences is that of the rows' differences, however hard the rows are."""
    usual = usual_resamples["intervals.bootstrap_intervals"]
    monkeypatch.setitem(bootstrap_intervals.__kwdefaults__, "samples", usual)
    rng = np.random.default_rng(0)
    hard = rng.random(400) < 0.5  # rows that both get wrong
    sign = 1 if metric == "accuracy" else -1
    model, baseline = (~hard | (rng.random(400) < share) for share in (0.3, 0.1))
    family = SimpleNamespace(score=lambda baseline_rows, _: {metric: float(sign * baseline_rows["right"].mean())})
    scored = SimpleNamespace(row_scores={"right": model}, scores={metric: sign * model.mean()}, context=None)
    baseline_rows = {"weak": {"right": baseline & False}, "strong": {"right": baseline}}
    lead = compare_with_baselines(family, scored, baseline_rows, metric)
    differences = model.astype(float) - baseline
    half = 1.96 * differences.std(ddof=1) / np.sqrt(400)
    assert (lead.baseline, lead.is_clear) == ("strong", True)
    assert lead.difference == pytest.approx(differences.mean())
    assert lead.interval == pytest.approx((lead.difference - half, lead.difference + half), abs=half / 4)
    alike = compare_with_baselines(
        family, SimpleNamespace(**{**vars(scored), "row_scores": baseline_rows["strong"]}), baseline_rows, metric
    )
    assert (alike.difference, alike.is_clear) == (0, False)
    assert compare_with_baselines(family, scored, {}, metric) is None


def test_labels_that_no_row_is_given_are_found():
    predictions = [{"prediction": "a"}, {"prediction": ["b", "a"]}]
    assert find_missing_labels(["c", ["a", "d"], ["b"]], predictions) == ["c", "d"]
    tags = [["B-PER", "I-PER", "O"], ["B-LOC", None, "B-ORG"]]
    assert find_missing_labels(tags, [{"prediction": ["B-PER", "O", "O"]}, {"prediction": ["B-ORG", "O", "O"]}]) == [
        "LOC"
    ]


@pytest.mark.parametrize(
    ("gold", "predicted", "text"),
    [
        ("aabbc", "aabbb", "1 of 3 labels (c)"),
        ([["B-PER", "B-LOC"], ["B-ORG", "O"]], [["B-PER", "O"], ["O", "O"]], "2 of 4 labels (LOC, ORG)"),
        ("aabb", "aaaa", ""),  # one answer for all rows, which is another warning
        ("aabb", "abab", ""),
    ],
)
def test_labels_and_entity_types_that_are_never_predicted_are_named(gold, predicted, text):
    found = describe_missing_labels(list(gold), [{"prediction": value} for value in predicted])
    assert found == ([f"Never predicted: {text}."] if text else [])

"""A model in fewer bits is written only if the interval of its loss is within the margin, and its vectors are alike."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from bertkit.errors import UsageError
from bertkit.evaluation.parity import Parity
from bertkit.metrics import squad
from bertkit.metrics.registry import CLASSIFICATION_METRICS
from bertkit.recipe import load_recipe
from bertkit.workflows.export import MarginError, check_loss, export
from tests.conftest import toy_rows, write_csv


def judge(interval, *, metric="accuracy", difference=0.0, cosine=None, margin=0.01, **task):
    found = {"before": 0.9, "after": 0.9 + difference, "difference": difference, "interval": interval}
    saved = SimpleNamespace(
        recipe=SimpleNamespace(best_metric=metric), task=SimpleNamespace(**{"METRICS": CLASSIFICATION_METRICS, **task})
    )
    check_loss(Parity(0.1, cosine, scores={metric: found}), info=saved, margin=margin)


def test_the_end_of_the_interval_counts_and_not_the_difference():
    judge([-0.009, 0.004])
    with pytest.raises(MarginError, match=r"accuracy may lose 0\.0200 .* margin is 0\.01 - nothing was written"):
        judge([-0.02, 0.004])
    with pytest.raises(MarginError):
        judge(None, difference=-0.05)
    with pytest.raises(MarginError):
        judge(None, difference=float("nan"))


def test_errors_grow_and_percentages_have_a_hundred():
    judge([-0.5, 0.009], metric="document_active_dims")
    with pytest.raises(MarginError, match="may lose"):
        judge([-0.5, 0.02], metric="document_active_dims")
    judge([-0.9, 0.4], metric="f1", METRICS=squad.METRICS)
    with pytest.raises(MarginError, match="the margin is 1 "):
        judge([-1.5, 0.4], metric="f1", METRICS=squad.METRICS)


def test_vectors_must_be_alike_even_where_the_score_is_kept():
    judge([0.0, 0.0], cosine=0.985)
    with pytest.raises(MarginError, match=r"lowest cosine of vectors is 0\.9287, below 0\.98"):
        judge([0.0, 0.0], cosine=0.9287)


def test_rows_must_get_the_same_label_alone_as_in_a_batch():
    scores = {"accuracy": {"before": 0.9, "after": 0.9, "difference": 0.0, "interval": [0.0, 0.0]}}
    saved = SimpleNamespace(
        recipe=SimpleNamespace(best_metric="accuracy"), task=SimpleNamespace(METRICS=CLASSIFICATION_METRICS)
    )
    check_loss(Parity(0.1, None, rows=200, scores=scores, flips={"alone": 2}), info=saved, margin=0.01)
    with pytest.raises(MarginError, match="3 of 200 rows get a different label alone than in a batch"):
        check_loss(Parity(0.1, None, rows=200, scores=scores, flips={"alone": 3}), info=saved, margin=0.01)


@pytest.mark.parametrize("options", [{"margin": 0}, {"margin": 1.5}, {"rows": 0}], ids=str)
def test_options_that_mean_nothing_are_refused(options, tmp_path):
    with pytest.raises(UsageError):
        export("demo", tmp_path / "out", to="openvino", precision="int8", **options)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["onnx-int8", "openvino-int8", "openvino-bf16"])
def test_a_quantized_run_keeps_its_score_or_leaves_nothing(trained, run, tmp_path, target):
    for name in ("train", "validation"):
        write_csv(tmp_path / "rows" / f"{name}.csv", toy_rows(60, seed=4))
    options = ["--data", tmp_path / "rows", "--limit", 70, "--sample", 8, "--json"]
    ended = run("quantize", trained, "--to", target, "-o", "out", "--margin", 0.2, *options)
    assert ended.code == 0, ended.err
    parity = json.loads(ended.out)["parity"]
    assert set(parity["flips"]) == ({"model", "alone"} if target.endswith("int8") else {"model"})
    assert not parity["flips"].get("alone")
    assert load_recipe("out/recipe.yaml").data.limit is None
    assert parity["rows"] == 60 and 0 < parity["largest"] < 0.5
    ended = run("eval", "classify", "--model", "out", "--data", tmp_path / "rows", "--on-overlap", "mark", "--json")
    assert json.loads(ended.out)["results"][0]["scores"]["accuracy"] == parity["scores"]["accuracy"]["after"]

"""Ways to deploy a run: scores and intervals are those of `eval`, times are plausible, nothing stays on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bertkit.errors import UsageError
from bertkit.reports.deploy import write_deployment
from bertkit.workflows.bench import deploy
from bertkit.workflows.bench.deployment import GRAPHS, Deployed, mark_best
from tests.conftest import toy_rows, write_csv
from tests.runtime.hand_made import write_exported


def make_way(way: str, milliseconds: float, score: float) -> Deployed:
    return Deployed("runs/a", way, 10, milliseconds, 1.0, score, 0.0, None)


def test_the_best_are_those_that_nothing_beats_in_time_and_score():
    ways = [make_way("a", 4.0, 0.9), make_way("b", 2.0, 0.9), make_way("c", 1.0, 0.7), make_way("d", 3.0, 0.95)]
    assert [way.way for way in mark_best(ways, lower_is_better=False) if way.is_best] == ["b", "c", "d"]
    assert [way.way for way in mark_best(ways, lower_is_better=True) if way.is_best] == ["c"]
    twins = [make_way("a", 1.0, 0.9), make_way("b", 1.0, 0.9)]
    assert all(way.is_best for way in mark_best(twins, lower_is_better=False))


@pytest.mark.slow
def test_exported_folders_are_measured_beside_each_other(tmp_path, run):
    pytest.importorskip("onnxruntime")
    for name in ("one", "two"):
        write_exported(tmp_path / name, ("bad", "good"))
        (tmp_path / name / "recipe.yaml").write_text("extends: classify\n")
    rows = write_csv(tmp_path / "rows.csv", toy_rows(40, seed=4))
    models = [str(tmp_path / name) for name in ("one", "two")]
    found = deploy(models, data=str(rows))
    assert [(Path(way.model).name, way.way) for way in found.ways] == [("one", "onnx"), ("two", "onnx")]
    assert (found.metric, found.rows) == ("f1_macro", 40)
    scores = json.loads(run("eval", "classify", "--model", models[0], "--data", rows, "--json").out)
    assert found.ways[0].score == found.ways[1].score == scores["results"][0]["scores"]["f1_macro"]
    assert {way.difference for way in found.ways} == {0.0}
    for way in found.ways:
        assert 0 < way.row_milliseconds < 1000 and way.rows_per_second > 1
        assert way.bytes == (Path(way.model) / "model.onnx").stat().st_size
    write_deployment(tmp_path / "deploy.html", found)
    page = (tmp_path / "deploy.html").read_text()
    assert "one, onnx" in page and "<script" not in page
    (tmp_path / "link.html").symlink_to(tmp_path / "one")
    refused = run("bench", *(f"--deploy={model}" for model in models), "--output", tmp_path / "link.html")
    assert (refused.code, "--output is the model" in refused.err) == (2, True)


def test_what_cannot_be_compared_is_refused(tmp_path, run):
    for name, labels in (("one", ("bad", "good")), ("other", ("bad", "good", "none"))):
        write_exported(tmp_path / name, labels)
        (tmp_path / name / "recipe.yaml").write_text("extends: classify\n")
    rows = str(write_csv(tmp_path / "rows.csv", toy_rows(4, seed=4)))
    one, other = (str(tmp_path / name) for name in ("one", "other"))
    with pytest.raises(UsageError, match="is named twice - name each model once"):
        deploy([one, f"{one}/../one"], data=rows)
    with pytest.raises(UsageError, match="text_classification, 3 labels - measure models of one task together"):
        deploy([one, other], data=rows)
    with pytest.raises(UsageError, match="nothing says what it was trained for"):
        deploy(["demo"], data=rows)
    for options in (["--output", "a.html"], ["--deploy", one, "--batch-size", 4], ["--deploy", one, "-o", "a.svg"]):
        assert run("bench", *options).code == 2


def test_exported_folders_are_measured_without_torch(tmp_path, light_zygote):
    pytest.importorskip("onnxruntime")
    write_exported(tmp_path / "one", ("bad", "good"))
    (tmp_path / "one" / "recipe.yaml").write_text("extends: classify\n")
    rows = write_csv(tmp_path / "rows.csv", toy_rows(4, seed=4))
    imported = light_zygote.imports(tmp_path, ["bench", "--deploy", "one", "--data", rows, "--output", "page.html"])
    assert "onnxruntime" in imported and not {"torch", "transformers"} & imported
    assert "onnx" in (tmp_path / "page.html").read_text()


@pytest.mark.slow
def test_a_run_is_measured_in_all_ways(trained, run, tmp_path):
    (tmp_path / "rows").mkdir()
    for name in ("train", "validation"):
        write_csv(tmp_path / "rows" / f"{name}.csv", toy_rows(60, seed=4))
    ended = run("bench", "--deploy", trained, "--data", tmp_path / "rows", "--output", "deploy.html", "--json")
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    assert [way["way"] for way in found["ways"]] == ["torch-fp32", "torch-bf16", *GRAPHS] and found["notes"] == []
    by_way = {way["way"]: way for way in found["ways"]}
    assert by_way["onnx"]["score"] == by_way["openvino"]["score"] == by_way["torch-fp32"]["score"]
    assert by_way["onnx-int8"]["bytes"] < by_way["onnx"]["bytes"]
    assert by_way["openvino-bf16"]["bytes"] == pytest.approx(by_way["openvino"]["bytes"], rel=0.01)
    assert "openvino-int8" in Path("deploy.html").read_text()
    assert [path.name for path in Path().iterdir() if path.suffix != ".html"] in ([], ["rows"])

"""What the folder of several tasks says of them; tests/workflows/finetune/test_several.py trains one."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from bertkit.evaluation.scoring import Result
from bertkit.hardware.precision import Machine
from bertkit.recipe import load_several
from bertkit.storage import runs
from bertkit.training.run import Run, RunPlan, untrained
from bertkit.workflows.finetune.several import publish_run


@pytest.mark.parametrize(("score", "mean"), [(0.5, 0.75), (None, float("nan"))])
def test_the_record_has_the_mean_and_the_recipes_inside_the_folder(here, score, mean):
    (here / "both.yaml").write_text("tasks: {topic: classify, words: tag}\ndata: {source: demo}\n")
    recipe = load_several("both.yaml").recipe
    plan = RunPlan(recipe, here / "run", {}, {}, "bert")
    plan.folder.mkdir()
    run = Run(plan, runs.new_record({}, tasks=["topic", "words"], machine=asdict(Machine("cpu", "fp32", 1, ""))), 0.0)
    result = Result("topic", "demo", "validation", {"f1_macro": 1.0, "accuracy": 0.25}, 3, 1.0, folder="x")
    results = {"topic": [result], "words": [replace(result, scores={"f1": score})]}
    publish_run(recipe, run, replace(untrained(), best_step=7), results, {"mean": mean, "topic": 1.0, "words": score})
    record = json.loads((plan.folder / "run.json").read_text())
    assert record["results"][0]["scores"] == {"mean": mean if score else None, "topic": 1.0, "words": score}
    assert record["results"][0]["rows"] == 6
    assert "folder" not in record["task_results"]["topic"][0]
    text = (plan.folder / "recipe.yaml").read_text()
    assert "topic/recipe.yaml" in text
    assert "demo" not in text

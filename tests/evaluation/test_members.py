"""Ensembles of the runs of a folder of seeds."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from scipy.special import softmax

from bertkit.errors import ModelError
from bertkit.evaluation.checkpoint import find_members
from bertkit.recipe import load_recipe
from bertkit.storage import runs
from bertkit.storage.run_sets import SEEDS, write_summary
from bertkit.tasks import load_task
from bertkit.tokens.features import TaskContext
from bertkit.workflows.evaluate import evaluate
from bertkit.workflows.predict import predict


@pytest.mark.parametrize("name", ["cola", "stsb", "ner", "squad", "swag"])
def test_families_with_probabilities_or_values_have_ensembles(name):
    assert load_task(load_recipe(name)).combine is not None


@pytest.mark.parametrize("name", ["similarity", "rerank", "wsd"])
def test_other_families_have_none(name):
    assert load_task(load_recipe(name)).combine is None


def test_choices_that_a_row_lacks_are_left_out():
    logits = np.random.default_rng(0).normal(size=(2, 4))
    recipe = load_recipe("swag")
    outputs = [{"logits": of_member} for of_member in logits]
    combined = load_task(recipe).combine(outputs, {"input_ids": [[1], [2], [3]]}, TaskContext(recipe, None, ()))
    expected = softmax(logits[:, :3], axis=1).mean(axis=0)
    np.testing.assert_allclose(softmax(combined["logits"]), expected)


def test_several_labels_have_the_mean_of_each():
    recipe = load_recipe("classify", {"options.multi_label": True})
    task, context = load_task(recipe), TaskContext(recipe, None, ("a", "b"))
    outputs = [{"logits": np.array([0.0, 4.0])}, {"logits": np.array([np.log(3), 4.0])}]
    combined = task.combine(outputs, {}, context)
    assert task.decode([combined], [{}], [{}], context)[0]["probabilities"]["a"] == pytest.approx(0.625)


def test_an_ensemble_is_scored_with_its_members_beside_it(tmp_path, trained):
    """Of copies of one run, in which the label of an extreme probability cannot change."""
    folder = tmp_path / "seeds"
    for seed in (1, 2):
        shutil.copytree(trained, folder / f"seed-{seed}", ignore=shutil.ignore_patterns("checkpoint-*"))
    recipe = load_recipe(str(trained / "recipe.yaml"), {"model": str(folder)})
    with pytest.raises(ModelError, match="the runs of these seeds are not finished"):
        find_members(recipe)
    entries = [{"folder": f"seed-{seed}", "status": "finished", "failure": None} for seed in (1, 2)]
    write_summary(folder / SEEDS, {"runs": [*entries, {"folder": "seed-3", "status": "diverged", "failure": "nan"}]})
    (result,) = evaluate(recipe)
    stored = runs.read_record(trained)["results"][0]["scores"]
    assert result.scores == stored and result.model == str(folder)
    assert result.tables["members of the ensemble"] == [{"run": f"seed-{seed}", **stored} for seed in (1, 2)]
    single = next(iter(predict(load_recipe("classify", {"model": str(trained)}), row={"text": "a good film"})))
    both = next(iter(predict(recipe, row={"text": "a good film"})))
    assert both["probabilities"] == pytest.approx(single["probabilities"])
    write_summary(folder / SEEDS, {"runs": entries[:1]})
    with pytest.raises(ModelError, match="at least two finished runs, got 1"):
        find_members(recipe)

"""Students: some layers of a teacher at first, a plain checkpoint in the end."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bertkit.compression.students import make_student_recipe
from bertkit.errors import UsageError
from bertkit.recipe import load_recipe
from tests.conftest import distill

pytestmark = pytest.mark.usefixtures("timed_once")


def test_the_student_of_some_layers_begins_with_them_and_ends_as_a_plain_checkpoint(run, trained, toy_data):
    from transformers import AutoModelForSequenceClassification

    ended = distill(run, trained, toy_data, "--student-layers", 1, "--epochs", 1, "--output", "student")
    assert ended.code == 0, ended.err
    assert "new head: " not in ended.err
    model = AutoModelForSequenceClassification.from_pretrained("student")
    assert model.config.num_hidden_layers == 1
    assert run("eval", "student/recipe.yaml", "--model", "student", "--data", toy_data).code == 0
    page = Path("student/report.html").read_text()
    assert f"1 layer of {trained.name}" in page
    assert str(trained.parent) not in page
    assert "teacher" in Path("student/recipe.yaml").read_text()
    again = run("finetune", "student/recipe.yaml", "--output", "again")
    assert again.code == 0, again.err
    ours, theirs = (load_file(f"{folder}/model.safetensors") for folder in ("student", "again"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_the_plan_names_the_student_and_nothing_is_written(run, trained, toy_data):
    ended = distill(run, trained, toy_data, "--student-layers", 1, "--dry-run")
    assert ended.code == 0, ended.err
    assert f"teachers: [{trained}]" in ended.out
    assert list(Path.cwd().iterdir()) == []


def test_only_a_student_of_some_layers_starts_from_its_first_teacher():
    teachers = {"distillation.teachers": ["a", "b"]}
    for changes, model in (({}, load_recipe("cola").model), ({"distillation.student_layers": 2}, "a")):
        recipe = load_recipe("cola", {**teachers, **changes})
        assert make_student_recipe(recipe, recipe.distillation).model == model
    recipe = load_recipe("cola", {"distillation.student_layers": 2})
    with pytest.raises(UsageError, match="no teacher to learn from"):
        make_student_recipe(recipe, recipe.distillation)

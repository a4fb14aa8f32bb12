"""What a model learns from: nothing of distillation is imported where a recipe names no teacher."""

from __future__ import annotations

import subprocess
import sys

from bertkit.compression.students import TeacherSupervision
from bertkit.recipe import load_recipe
from bertkit.workflows.finetune.supervision import GoldSupervision, make_supervision


def test_a_recipe_without_teachers_learns_from_gold_labels_alone():
    recipe = load_recipe("cola")
    supervision = make_supervision(recipe)
    assert isinstance(supervision, GoldSupervision)
    assert (supervision.recipe, supervision.identity) == (recipe, {})
    assert supervision.checked(None, (), None) is supervision


def test_a_recipe_with_teachers_learns_from_them_too():
    supervision = make_supervision(load_recipe("cola", {"distillation.teachers": ["a", "b"]}))
    assert isinstance(supervision, TeacherSupervision)
    assert supervision.recipe.model == load_recipe("cola").model


def test_a_student_of_some_layers_starts_from_its_first_teacher():
    changes = {"distillation.teachers": ["a", "b"], "distillation.student_layers": 2}
    assert make_supervision(load_recipe("cola", changes)).recipe.model == "a"


def test_plain_fine_tuning_imports_nothing_of_distillation():
    script = """
import sys
from bertkit.recipe import load_recipe
from bertkit.workflows.finetune.supervision import make_supervision
make_supervision(load_recipe("cola"))
print([name for name in sys.modules if name.startswith("bertkit.compression")])
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"

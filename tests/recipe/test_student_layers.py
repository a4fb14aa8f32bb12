"""Layers of a student, as a recipe or a command names them."""

from __future__ import annotations

import pytest

from bertkit.recipe import Distillation, read_layers


@pytest.mark.parametrize("value", ["0,2", [0, 2], [0, "2"]])
def test_layers_of_a_student_by_index(value):
    assert read_layers(value) == Distillation(student_layers=value).student_layers == [0, 2]


@pytest.mark.parametrize(
    "value", [0, -1, True, [], [2, 1], [1, 1], "a", "1,x", 2.5, 10**9, "9" * 400, "9" * 5000, ["9" * 5000]]
)
def test_other_layers_are_refused(value):
    with pytest.raises(ValueError, match="must be layers in ascending order"):
        read_layers(value)

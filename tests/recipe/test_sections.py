"""What the sections of a recipe are made of."""

from __future__ import annotations

import pytest
from pydantic import Field, ValidationError

from bertkit.recipe.sections import Finite, FolderName, Section


class Oven(Section):
    heat: Finite = 1.0
    name: FolderName = "oven"
    rows: int = Field(1, ge=1)


@pytest.mark.parametrize("values", [{"heat": "inf"}, {"name": "a/b"}, {"name": ".."}, {"cold": 1}])
def test_odd_values_and_unknown_keys_are_refused(values):
    with pytest.raises(ValidationError):
        Oven(**values)


def test_a_section_cannot_be_changed():
    with pytest.raises(ValidationError):
        Oven().rows = 2

"""Heads are ranked by the score of a run without them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertkit.recipe import load_recipe
from bertkit.workflows.attention import rank_by_importance


def test_heads_are_ranked_by_the_score_without_them(trained):
    found = rank_by_importance(load_recipe(str(trained / "recipe.yaml"), {"model": str(trained)}), rows=10)
    assert (found.metric, found.rows, found.split, len(found.heads)) == ("f1_macro", 10, "validation", 4)
    assert Path(found.run) == trained
    for one in found.heads:
        assert one.difference == pytest.approx(one.score - found.score)

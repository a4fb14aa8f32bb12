"""Texts read alone, as queries or as documents."""

from __future__ import annotations

import numpy as np

from bertkit.evaluation.checkpoint import find_checkpoint
from bertkit.modeling.sentence.formats import LATE
from bertkit.recipe import load_recipe
from bertkit.vectors.by_role import ROLES, read_texts
from tests.vectors.test_reranker import late_folder  # noqa: F401


def test_a_text_begins_with_the_prompt_of_its_role(late_folder):  # noqa: F811
    recipe = load_recipe("late-interaction", {"model": str(late_folder), "training.precision": "fp32"})
    checkpoint = find_checkpoint(recipe).load()
    as_query, as_document, written = (
        read_texts(checkpoint, [text], role, LATE)[0]["vectors"][0]
        for text, role in (("the cat", ROLES[0]), ("the cat", ROLES[1]), ("so the cat", ROLES[1]))
    )
    assert len(as_query) > len(as_document)
    np.testing.assert_allclose(as_query, written, atol=1e-6)

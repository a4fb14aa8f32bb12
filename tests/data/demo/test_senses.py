"""The target is a form of its word, and all senses occur in training and validation."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.data.demo.common import rows_of, sets_of

SETS = sets_of("word_sense")


@pytest.mark.parametrize("name", SETS)
def test_targets_are_forms_of_their_word(name):
    senses = Counter()
    for row in rows_of(name, "train"):
        assert row["tokens"][row["target"]].lower() in (row["word"], row["word"] + "s")
        assert row["sense"].startswith(row["word"] + "_")
        senses[row["sense"]] += 1
    assert len(senses) == 11
    assert min(senses.values()) > 0.04 * senses.total()
    assert {row["sense"] for row in rows_of(name, "validation")} == set(senses)

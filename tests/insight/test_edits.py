"""Small changes of texts and of lists of words."""

from __future__ import annotations

from random import Random

import pytest

from bertkit.insight.edits import EDITS, apply_edit, change_number

BY_NAME = {edit.name: edit for edit in EDITS}
TEXT = "Mary isn't late, and 12 people are here in Oslo."


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.name)
def test_a_change_changes_and_repeats_with_its_seed(edit):
    changed = {str(apply_edit(edit, TEXT, Random(3))) for _ in range(3)}
    assert len(changed) == 1
    assert changed != {TEXT}


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.name)
def test_words_keep_their_number_or_stay(edit):
    words = TEXT.split()
    changed = apply_edit(edit, words, Random(3))
    assert (changed is not None) == edit.keeps_words
    if changed is not None:
        assert len(changed) == len(words)
        assert all(" " not in word for word in changed)


@pytest.mark.parametrize(
    "edit",
    [edit for edit in EDITS if edit.name not in ("punctuation", "upper case")],
    ids=lambda edit: edit.name,
)
def test_what_has_nothing_to_change_is_none(edit):
    assert apply_edit(edit, "ж я", Random(0)) is None


def test_changes_are_small():
    assert sorted(apply_edit(BY_NAME["typo"], "wonderful", Random(1))) == sorted("wonderful")
    assert change_number("the 3.5 of v2 and 2024-01", Random(0)).startswith("the 3.5 of v2")

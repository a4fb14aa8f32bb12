"""Small changes of texts and of lists of words."""

from __future__ import annotations

from random import Random

import pytest

from bertkit.analysis.edits import EDITS, apply_edit, change_number

TEXT = "Mary isn't late, and 12 people are here in Oslo."


def edit(name, value, seed):
    return apply_edit(name, EDITS[name], value, Random(seed))


@pytest.mark.parametrize("name", EDITS)
def test_a_change_changes_and_repeats_with_its_seed(name):
    changed = {str(edit(name, TEXT, 3)) for _ in range(3)}
    assert len(changed) == 1
    assert changed != {TEXT}


@pytest.mark.parametrize("name", EDITS)
def test_words_keep_their_number_or_stay(name):
    words = TEXT.split()
    changed = edit(name, words, 3)
    assert (changed is None) == (name == "punctuation")
    if changed is not None:
        assert len(changed) == len(words)
        assert all(" " not in word for word in changed)


@pytest.mark.parametrize("name", [name for name in EDITS if name not in ("punctuation", "upper case")])
def test_what_has_nothing_to_change_is_none(name):
    assert edit(name, "ж я", 0) is None


def test_changes_are_small():
    assert sorted(edit("typo", "wonderful", 1)) == sorted("wonderful")
    assert change_number("the 3.5 of v2 and 2024-01", Random(0)).startswith("the 3.5 of v2")

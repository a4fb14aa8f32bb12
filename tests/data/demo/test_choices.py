"""One choice is right, and neither its position nor its length tells which."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.data.demo.common import rows_of, sets_of
from tests.kills import slow_unless

SETS = sets_of("multiple_choice")


@pytest.mark.parametrize("name", slow_unless(["swag"], SETS))
def test_labels_of_choices_are_balanced(name):
    rows = rows_of(name, "train", None)
    sizes = {len(row["choices"]) for row in rows}
    assert sizes == ({4} if name == "swag" else {2, 3, 4, 5})
    assert all(len(set(row["choices"])) == len(row["choices"]) for row in rows)
    for size in sizes:
        labels = Counter(row["label"] for row in rows if len(row["choices"]) == size)
        assert sorted(labels) == list(range(size))
        assert min(labels.values()) > 0.75 * labels.total() / size


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(
    "guess",
    [lambda choices: choices[0], lambda choices: max(choices, key=len), lambda choices: min(choices, key=len)],
    ids=["first", "longest", "shortest"],
)
def test_a_guess_at_a_choice_is_near_chance(name, guess):
    rows = rows_of(name, "train", None)
    chance = sum(1 / len(row["choices"]) for row in rows)
    right = sum(guess(row["choices"]) == row["choices"][row["label"]] for row in rows)
    assert abs(right - chance) / len(rows) < 0.06

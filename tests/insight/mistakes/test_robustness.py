"""Answers that flip when texts are changed, with a model that reads one letter."""

from __future__ import annotations

import pytest

from bertkit.data.columns import Columns
from bertkit.errors import RecipeError
from bertkit.insight.mistakes import behavior, robustness
from bertkit.insight.mistakes.robustness import measure_robustness
from bertkit.recipe import load_recipe


class Saved:
    """A checkpoint whose answer is whether a text ends in a period, or its length."""

    def __init__(self, columns, numbers=False):
        self.task, self.columns, self.numbers = self, columns, numbers
        self.COLUMNS, self.setup, self.recipe = columns, None, load_recipe("classify", {"model": "demo"})

    def load(self, *, inference):
        return self

    def encode(self, rows, setup):
        assert all("label" not in row for row in rows)
        return [{"row": number} for number in range(len(rows))]

    def decode(self, outputs, features, rows, setup):
        return [
            {"prediction": float(len(row["text"])) if self.numbers else "yn"[not row["text"].endswith(".")]}
            for row in rows
        ]


@pytest.fixture
def measure(monkeypatch):
    def run(rows, *, numbers=False, limit=500):
        columns = Columns(given=("text",), gold="label")
        monkeypatch.setattr(robustness, "find_checkpoint", lambda recipe: Saved(columns, numbers))
        monkeypatch.setattr(behavior, "run_model", lambda *_: ([], None))
        return measure_robustness(load_recipe("classify", {"model": "demo"}), rows, limit=limit)

    return run


def test_flips_are_counted_with_what_was_right(measure):
    rows = [{"text": "a good film.", "label": "y"}, {"text": "a bad film", "label": "y"}, {"text": "ok.", "label": "n"}]
    found = measure(rows)
    by_name = {one.name: one for one in found.edits}
    end = by_name["punctuation"]
    assert (end.rows, end.failed, end.share, end.lost, end.won) == (3, 3, 1.0, 1, 2)
    assert end.trials[0].after == "a good film" and (end.trials[0].answer, end.trials[0].new_answer) == ("y", "n")
    assert by_name["typo"].failed == 0
    assert by_name["typo"].interval[1] > 0
    assert set(found.left_out) == {"lower case", "contraction", "name", "place", "number", "negation"}
    assert measure(rows, limit=1).rows == 1


def test_a_number_flips_when_it_moves_far(measure):
    rows = [{"text": "a" * 50, "label": 1.0}, {"text": "It isn't", "label": 2.0}, {"text": "I am", "label": 0.0}]
    found = {one.name: one for one in measure(rows, numbers=True).edits}
    assert found["contraction"].failed == 0
    assert found["negation"].may_flip


def test_rows_without_text_have_nothing_to_change(measure):
    with pytest.raises(RecipeError, match="have no text"):
        measure([{"number": 1}])

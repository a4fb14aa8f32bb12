"""Slices by what texts are like."""

from __future__ import annotations

import numpy as np
import pytest

from bertkit.analysis.outcomes import find_outcomes
from bertkit.analysis.slices import collect_words, compare_groups, find_slices
from bertkit.data.columns import ColumnSpec
from bertkit.evaluation.stored_predictions import find_scorer, read_rows, read_system
from tests.evaluation.stored_runs import make_rows, make_run, predict

TEXTS = [
    "We saw Rome again in spring",
    "it is not good",
    "in 1984 it rained",
    "IT'S ALL CAPITALS",
    "they didn't see zyx",
    "fine",
]


def read(tmp_path, rows, wrong=(), **recipe):
    system = read_system(make_run(tmp_path / "run", predict(rows, set(wrong)), **recipe), None)
    scorer = find_scorer([system], None)
    rows = read_rows(system.runs[0], scorer.task)
    return scorer, system.runs[0], rows


def test_texts_are_grouped_by_what_they_have(tmp_path):
    scorer, _, rows = read(tmp_path, [{"text": text, "label": "good"} for text in TEXTS])
    known = collect_words([{"text": " ".join(TEXTS[:4])}], ColumnSpec(inputs=("text",), gold="label"))
    groups = find_slices(scorer, rows, [[n] for n in range(6)], known_words=known, extra={"source": list("aabbcc")})
    assert list(groups["negation"]["yes"]) == [1, 4]
    assert list(groups["names"]["yes"]) == [0]
    assert list(groups["numbers"]["yes"]) == [2]
    assert {name: list(units) for name, units in groups["new words"].items()} == {
        "0": [0, 1, 2, 3],
        "1": [5],
        "2 or more": [4],
    }
    assert list(groups["source"]["b"]) == [2, 3]
    assert "words that occur once" in find_slices(scorer, rows, [[n] for n in range(6)])


@pytest.mark.parametrize("planted", [True, False])
def test_a_planted_slice_comes_first(planted, tmp_path):
    rows = make_rows(300, 2)
    for row in rows[::5]:
        row["text"] += " never"
    draw = np.random.default_rng(1)
    wrong = np.flatnonzero(draw.random(300) < np.where((np.arange(300) % 5 == 0) & planted, 0.5, 0.15))
    scorer, run, rows = read(tmp_path, rows, wrong.tolist())
    outcomes = find_outcomes(scorer, run, rows)
    tested = compare_groups(outcomes, find_slices(scorer, rows, outcomes.units))
    assert tested[0].is_beyond_chance is planted
    if planted:
        assert (tested[0].by, tested[0].value, tested[0].units) == ("negation", "yes", 60)
        assert set(tested[0].ids) <= {str(number) for number in wrong}


def test_lists_of_labels_are_slices_by_what_they_hold(tmp_path):
    scorer, _, rows = read(tmp_path, [{"text": text, "label": "good"} for text in TEXTS])
    rows = [{**row, "label": ["B-PER", "I-PER", "O"] if number % 2 else ["O"]} for number, row in enumerate(rows)]
    groups = find_slices(scorer, rows, [[n] for n in range(6)])["label"]
    assert {name: list(units) for name, units in groups.items()} == {"PER": [1, 3, 5], "none": [0, 2, 4]}

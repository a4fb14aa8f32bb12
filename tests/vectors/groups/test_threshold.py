"""The threshold of labeled pairs, against scikit-learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import precision_score, recall_score

from bertkit.errors import DataError
from bertkit.vectors.groups.threshold import (
    LabeledPair,
    choose_threshold,
    draw_neighbors,
    draw_pairs,
    measure_steps,
    read_pairs,
    summarize,
)
from bertkit.vectors.vector_files import to_unit_length
from tests.conftest import write_csv

RANDOM = np.random.default_rng(0)
COSINES = RANDOM.uniform(0.4, 1, 200).astype(np.float32)
IS_DUPLICATE = COSINES + RANDOM.normal(0, 0.08, 200) > 0.75
PAIRS = [LabeledPair("a", "b", bool(label), 1.0 + number % 3) for number, label in enumerate(IS_DUPLICATE)]


def test_precision_and_recall_are_those_of_scikit_learn():
    weights = [pair.weight for pair in PAIRS]
    for step in measure_steps(COSINES, PAIRS):
        over = step.threshold <= COSINES
        assert step.precision == pytest.approx(precision_score(IS_DUPLICATE, over, sample_weight=weights))
        assert step.recall == pytest.approx(recall_score(IS_DUPLICATE, over, sample_weight=weights))
        assert step.low < step.precision or step.precision == 0


def test_the_lowest_threshold_is_chosen_that_is_precise():
    steps = measure_steps(COSINES, PAIRS)
    chosen = choose_threshold(steps, 0.9, Path("pairs.csv"))
    assert next(step.precision for step in steps if step.threshold == chosen) >= 0.9
    assert max(step.precision for step in steps if step.threshold < chosen) < 0.9
    with pytest.raises(DataError, match=r"no threshold has a precision of 0\.9"):
        choose_threshold(measure_steps(-COSINES + 1.4, PAIRS), 0.9, Path("pairs.csv"))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "a", "text_pair": "b", "label": "maybe"}, r"label 'maybe' .*pairs.csv:2.* 1 for duplicates"),
        ({"text": "a", "text_pair": "b", "label": "1"}, "not of both kinds"),
        ({"text": "a", "label": "1"}, "no column 'text_pair'"),
        ({"text": "a", "text_pair": "b", "label": "1", "weight": "x"}, "weight 'x'"),
    ],
)
def test_wrong_pairs_are_refused(row, message, tmp_path):
    with pytest.raises(DataError, match=message):
        read_pairs(write_csv(tmp_path / "pairs.csv", [row]))


def test_drawn_pairs_stand_for_all_and_can_be_labeled(tmp_path):
    vectors = to_unit_length(np.random.default_rng(1).standard_normal((300, 4)).astype(np.float32))
    neighbors = draw_neighbors(vectors)
    pairs = list(draw_pairs(neighbors))
    assert sum(pair.weight for pair in pairs) == pytest.approx((neighbors.cosines >= 0.5).sum())
    texts = {row: f"text {row}" for row in range(300)}
    records = [{**pair.as_record(texts), "label": n % 2} for n, pair in enumerate(pairs)]
    records[0]["label"] = ""
    read = read_pairs(write_csv(tmp_path / "pairs.csv", records))
    assert [pair.weight for pair in read] == [pair.weight for pair in pairs][1:]
    first = summarize(neighbors, pairs, texts)[0]
    assert first["share"] == pytest.approx((neighbors.cosines >= 0.95).mean())
    assert first["text"] in texts.values()

"""Models are timed on the same rows, one at a time and in batches."""

from __future__ import annotations

import pytest

from bertkit.evaluation.scoring import score_split
from bertkit.evaluation.turns import time_in_turns
from bertkit.progress import SILENT
from tests.pruning.measured import load_measured


@pytest.mark.usefixtures("timed_once")
def test_each_model_has_a_time_and_a_rate(trained):
    checkpoint, split, features = load_measured(trained, rows=3)
    scored = score_split(checkpoint, split, SILENT, features=features)
    single, batched = time_in_turns([(checkpoint, scored), (checkpoint, scored)], SILENT)
    assert len(single) == len(batched) == 2 and all(value > 0 for value in (*single, *batched))

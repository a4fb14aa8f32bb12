"""Forward passes of exported models: outputs are in the order of the features, whatever the batches are."""

from __future__ import annotations

import numpy as np

from bertkit.runtime.forward import forward_exported
from bertkit.tokens import features as module


def test_outputs_are_in_the_order_of_the_features(monkeypatch):
    monkeypatch.setattr(module, "TOKENS_AT_ONCE", 6)
    batches, ticks = [], []

    def run(batch):
        batches.append(batch)
        return {"logits": np.array([[float(number)] for number in batch])}

    features = [{"input_ids": [number] * length} for number, length in enumerate((1, 5, 2, 3))]
    found = forward_exported(
        run,
        features,
        [1, 5, 2, 3],
        lambda chosen: [one["input_ids"][0] for one in chosen],
        ticks.append,
    )
    assert [output["logits"].tolist() for output in found] == [[0.0], [1.0], [2.0], [3.0]]
    assert batches == [[1], [3, 2], [0]] and sum(ticks) == 4

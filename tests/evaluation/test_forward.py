"""Forward passes: batches of similar lengths, outputs in the order of the rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bertkit.evaluation.forward import forward, sorted_batches


def test_evaluation_batches_hold_every_row_once_within_the_budget():
    lengths = np.random.default_rng(0).integers(1, 100, 500).tolist()
    batches = sorted_batches(lengths, tokens=400)
    assert sorted(row for batch in batches for row in batch) == list(range(500))
    assert all(len(batch) * max(lengths[row] for row in batch) <= 400 for batch in batches)
    assert sorted_batches([500], tokens=400) == [[0]]


def test_outputs_come_in_the_order_of_the_rows_and_the_loss_is_the_mean_of_all_labels():
    class Model(torch.nn.Module):
        """Answers with the sum of a row; its loss is the mean of its labels."""

        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(()))

        def forward(self, input_ids, labels):
            return {"loss": labels.float().mean(), "logits": self.weight * input_ids.sum(dim=-1)}

    features = [{"input_ids": [1] * n, "labels": n % 3} for n in range(1, 3000, 17)]

    def collate(some):
        longest = max(len(feature["input_ids"]) for feature in some)
        ids = [feature["input_ids"] + [0] * (longest - len(feature["input_ids"])) for feature in some]
        return {"input_ids": torch.tensor(ids), "labels": torch.tensor([feature["labels"] for feature in some])}

    model, ticks = Model().train(), []
    outputs, loss = forward(model, features, collate, precision="fp32", tick=ticks.append)
    assert [float(output["logits"]) for output in outputs] == list(range(1, 3000, 17))
    assert loss == pytest.approx(np.mean([feature["labels"] for feature in features]))
    assert sum(ticks) == len(features)
    assert len(ticks) > 1
    assert model.training

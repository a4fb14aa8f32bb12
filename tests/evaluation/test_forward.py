"""Forward passes: batches of similar lengths, outputs in the order of the rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bertkit.evaluation.forward import forward, sorted_batches
from bertkit.hardware import threads


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


def test_threads_are_tried_on_a_batch_of_usual_length_before_the_first(monkeypatch):
    class Model(torch.nn.Linear):
        def forward(self, input_ids):
            seen.append(tuple(input_ids.shape))
            return {"logits": input_ids.sum(dim=-1)}

    def collate(some):
        longest = max(len(feature["input_ids"]) for feature in some)
        return {"input_ids": torch.tensor([row["input_ids"] + [0] * (longest - len(row["input_ids"])) for row in some])}

    def choose(step, rows, most, set_threads):
        step(rows)
        return threads.Threads(1, "")

    seen, ticks = [], []
    monkeypatch.setattr(threads, "_PROCESS", threads._Process(count=2, is_open=True))
    monkeypatch.setattr(threads, "choose_threads", choose)
    features = [{"input_ids": [1] * length} for length in (900, 5, 5, 5, 5)]
    assert forward(Model(1, 1), [], collate, precision="fp32") == ([], None)
    outputs, _ = forward(Model(1, 1), features, collate, precision="fp32", tick=ticks.append)
    assert [float(output["logits"]) for output in outputs] == [900, 5, 5, 5, 5]
    assert seen[0] == (3, 5)
    assert len(seen) == len(ticks) + 1 and not threads.is_open()

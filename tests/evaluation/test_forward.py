"""Forward passes: batches of similar lengths, outputs in the order of the rows."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from bertkit.evaluation.forward import forward, sorted_batches
from bertkit.hardware import process
from tests.kills import slow_unless


def test_evaluation_batches_hold_every_row_once_within_the_budget():
    lengths = np.random.default_rng(0).integers(1, 100, 500).tolist()
    batches = sorted_batches(lengths, max_tokens=400)
    assert sorted(row for batch in batches for row in batch) == list(range(500))
    assert all(len(batch) * max(lengths[row] for row in batch) <= 400 for batch in batches)
    assert sorted_batches([500], max_tokens=400) == [[0]]


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
    outputs, loss = forward(model, features, collate, precision="fp32", advance=ticks.append)
    assert [float(output["logits"]) for output in outputs] == list(range(1, 3000, 17))
    assert loss == pytest.approx(np.mean([feature["labels"] for feature in features]))
    assert sum(ticks) == len(features)
    assert len(ticks) > 1
    assert model.training


@pytest.mark.parametrize("labels", slow_unless(["classes", None], ["classes", "numbers", None]))
def test_a_device_that_compiles_a_graph_per_shape_gets_few(monkeypatch, labels):
    """Outputs and losses are those of other devices; the rows that fill a batch leave no trace."""
    from transformers import BertConfig, BertForSequenceClassification

    from bertkit.hardware.device import Device
    from bertkit.tokens.features import pad_features

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 16}
    problem = {"num_labels": 1, "problem_type": "regression"} if labels == "numbers" else {"num_labels": 3}
    model = BertForSequenceClassification(BertConfig(vocab_size=99, max_position_embeddings=64, **sizes, **problem))
    of_rows = {"classes": lambda n: n % 3, "numbers": lambda n: n / 7}.get(labels)
    random = np.random.default_rng(0)
    features = [{"input_ids": random.integers(1, 99, random.integers(3, 50)).tolist()} for _ in range(700)]
    for number, feature in enumerate(features if of_rows else ()):
        feature["labels"] = of_rows(number)
    shapes = set()

    def collate(some):
        batch = {name: torch.from_numpy(values) for name, values in pad_features(some, {"input_ids": 0}).items()}
        return batch | ({"labels": torch.tensor([feature["labels"] for feature in some])} if of_rows else {})

    def note(module, arguments, named):
        shapes.add(tuple(named["input_ids"].shape))

    expected, loss = forward(model, features, collate, precision="fp32")
    model.register_forward_pre_hook(note, with_kwargs=True)
    monkeypatch.setattr(Device, "shapes_may_change", False)
    monkeypatch.setattr(Device, "end_graph", lambda self: None)
    outputs, filled_loss = forward(model, features, collate, precision="fp32")
    assert len(shapes) <= 6
    assert len(outputs) == len(features)
    for one, other in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(one["logits"], other["logits"], atol=1e-5)
    assert filled_loss == (None if loss is None else pytest.approx(loss, rel=1e-5))


def test_no_features_have_no_outputs():
    assert forward(torch.nn.Linear(1, 1), [], stack, precision="fp32") == ([], None)


class Encoder(torch.nn.Module):
    is_reentrant = True


class InThreads(torch.nn.Module):
    """Answers with the sum of a row, once as many batches are computed as there are threads."""

    def __init__(self, parties=2):
        super().__init__()
        self.encoder, self.weight = Encoder(), torch.nn.Parameter(torch.ones(()))
        self.meeting, self.seen = threading.Barrier(parties, timeout=30), []

    def forward(self, input_ids):
        self.meeting.wait()
        modes = torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
        self.seen.append((threading.get_ident(), torch.get_num_threads(), *modes))
        if (input_ids == 7).any():
            raise ValueError("seven")
        return {"logits": self.weight * input_ids.sum(dim=-1)}


def stack(some):
    return {"input_ids": torch.tensor([feature["input_ids"] for feature in some])}


@pytest.fixture
def two_threads(monkeypatch):
    monkeypatch.setattr(process, "_PROCESS", process._Process(count=2))
    torch.set_num_threads(2)
    yield
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)


@pytest.mark.usefixtures("two_threads")
def test_batches_are_computed_by_as_many_threads_as_torch_has_each_with_its_own():
    model, ticks = InThreads(), []
    features = [{"input_ids": [number] * 1500} for number in range(10, 16)]  # two do not fit into a batch
    outputs, _ = forward(model, features, stack, precision="bf16", advance=ticks.append)
    assert [float(output["logits"]) for output in outputs] == [1500 * number for number in range(10, 16)]
    assert ticks == [1] * 6
    assert {tuple(seen[1:]) for seen in model.seen} == {(1, True, True)}
    assert len({ident for ident, *_ in model.seen}) == 2


@pytest.mark.usefixtures("two_threads")
def test_a_single_batch_has_all_threads_and_an_error_in_a_thread_is_raised():
    alone = InThreads(parties=1)
    forward(alone, [{"input_ids": [1, 2]}], stack, precision="fp32")
    assert alone.seen == [(threading.get_ident(), 2, True, False)]
    features = [{"input_ids": [number] * 1500} for number in (1, 7, 1, 1)]
    with pytest.raises(ValueError, match="seven"):
        forward(InThreads(), features, stack, precision="fp32")

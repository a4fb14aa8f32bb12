"""Weighted and smoothed losses beside the formulas written out."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import sklearn.utils
import torch
from torch.nn import functional

from bertkit.data.labels import compute_class_weights
from bertkit.errors import RecipeError
from bertkit.recipe import TrainingConfig
from bertkit.tokens.features import count_items
from bertkit.training.losses import RunningLoss, make_loss, task_terms
from tests.conftest import finetune
from tests.kills import read_lines


def test_no_wish_no_loss():
    assert make_loss(TrainingConfig(), ["a", "b"], ["a", "b"]) is None


def test_balanced_weights_are_those_of_scikit_learn():
    gold = ["a"] * 5 + ["b"] * 3 + ["c"]
    expected = sklearn.utils.class_weight.compute_class_weight("balanced", classes=np.array(["a", "b", "c"]), y=gold)
    assert compute_class_weights("balanced", ["a", "b", "c"], gold) == pytest.approx(expected.tolist())


def test_weighted_cross_entropy_is_a_weighted_sum():
    loss = make_loss(TrainingConfig(class_weights={"b": 3.0}), ["a", "b"], ["a", "b"])
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
    by_hand = -math.log(math.e**2 / (math.e**2 + 1)) - 3 * math.log(math.e / (math.e + 1)) + math.log(2)
    assert float(loss(logits, torch.tensor([0, 1, 0]))) == pytest.approx(by_hand, abs=1e-6)


def test_smoothing_mixes_in_the_uniform_answer():
    loss = make_loss(TrainingConfig(label_smoothing=0.2), ["a", "b"], ["a", "b"])
    right, wrong = math.log1p(math.exp(-2)), math.log1p(math.exp(2))
    assert float(loss(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))) == pytest.approx(0.9 * right + 0.1 * wrong)


def test_ignored_labels_weigh_nothing():
    loss = make_loss(TrainingConfig(class_weights="balanced"), ["a", "b"], ["a", "b"])
    logits = torch.randn(1, 4, 2)
    assert float(loss(logits, torch.tensor([[-100, 1, -100, -100]]))) == pytest.approx(
        float(loss(logits[:, 1:2], torch.tensor([[1]])))
    )


def test_several_labels_at_once_sum_over_rows():
    loss = make_loss(TrainingConfig(class_weights={"a": 2.0}), ["a", "b"], [["a"], ["a", "b"]])
    by_hand = (2 * math.log1p(math.exp(-1)) + math.log1p(math.exp(1))) / 2
    assert float(loss(torch.tensor([[1.0, 1.0]]), torch.tensor([[1.0, 0.0]]))) == pytest.approx(by_hand)


def test_unknown_labels_are_refused():
    with pytest.raises(RecipeError, match="class_weights: unknown label 'goood'"):
        make_loss(TrainingConfig(class_weights={"goood": 2.0}), ["good", "bad"], ["good"])


@pytest.mark.slow
def test_weights_and_smoothing_reach_the_loss(run, tiny_model, toy_data):
    options = ("--epochs", 1, "--set", "training.class_weights={good: 5}", "--set", "training.label_smoothing=0.1")
    assert finetune(run, tiny_model, toy_data, *options).code == 0
    plain = finetune(run, tiny_model, toy_data, "--epochs", 1, "--output", "plain")
    assert plain.code == 0
    assert (
        read_lines(Path("runs/classify/metrics.jsonl"))[0]["loss"] > read_lines(Path("plain/metrics.jsonl"))[0]["loss"]
    )


def test_several_processes_go_on_from_the_mean_of_their_sums():
    class OtherProcess:
        """Stands for a second process, whose sums are 3 and 5, and 8 for the loss."""

        num_processes, device = 2, "cpu"

        @staticmethod
        def reduce(sums: torch.Tensor, reduction: str) -> torch.Tensor:
            others = torch.tensor([3.0, 5.0] if sums.dim() else 8.0)
            return (sums + others) / 2 if reduction == "mean" else sums

    running = RunningLoss(["mlm", "nsp"], OtherProcess())
    running.add(torch.tensor(3.0))
    running.add_terms([torch.tensor(1.0), torch.tensor(2.0)])
    assert running.state() == {"loss": 5.5, "terms": [2.0, 3.5], "step": 0}
    assert (float(running.loss), running.terms.tolist()) == (3.0, [1.0, 2.0])
    assert running.take_means(2) == {"loss": 2.75, "loss_mlm": 1.0, "loss_nsp": 1.75}
    assert running.state()["step"] == 2 and float(running.loss) == 0


@pytest.mark.parametrize(
    "labels", [[[1, -100], [0, 2]], [[-100, -100], [-100, -100]], [1, 2], [[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]]]
)
def test_the_loss_of_a_micro_batch_is_a_sum_that_waits_for_no_gpu(labels, monkeypatch):
    torch.manual_seed(0)
    labels = torch.tensor(labels)
    logits = torch.randn(*labels.shape[: 1 if labels.is_floating_point() else None], 3, requires_grad=True)

    def model(labels):
        if labels.is_floating_point():
            loss = functional.binary_cross_entropy_with_logits(logits, labels)
        else:
            loss = functional.cross_entropy(logits.view(-1, 3), labels.view(-1))
        return {"logits": logits, "loss": loss}

    items = count_items({"labels": labels})
    expected = model(labels)["loss"] * items if items else torch.tensor(0.0)

    def waits(*_):
        raise AssertionError("the program waits for the GPU")

    with monkeypatch.context() as patch:
        for name in ("__bool__", "__int__", "__float__", "__index__", "item", "tolist"):
            patch.setattr(torch.Tensor, name, waits)
        loss = task_terms(None).sums(model, {"labels": labels})["gold"]
        loss.backward()
    assert torch.equal(loss, expected)
    assert logits.grad.isfinite().all()
    assert bool(logits.grad.any()) == bool(items)

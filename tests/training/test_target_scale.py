"""Targets far from the outputs of a new head: standardized for the head, in their own unit for everyone else."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from bertkit.metrics.linear import find_scale
from bertkit.modeling.info import LoadingInfo
from bertkit.recipe import load_recipe
from bertkit.training.losses import LossTerms, scale_learning_rate, scale_targets
from bertkit.workflows.finetune import finetune
from tests.conftest import toy_rows, write_csv

X = torch.from_numpy(np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32))


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.classifier = nn.Linear(4, 4), nn.Linear(4, 1)
        self.config = SimpleNamespace(problem_type="regression")
        nn.init.zeros_(self.classifier.bias)
        self.loading_info = LoadingInfo(head="new")

    def forward(self, values):
        return self.classifier(self.encoder(values).tanh())[:, 0]


def train(model, targets, scaled):
    terms = LossTerms({"gold": 1.0}, len, lambda model, batch: {"gold": (model(X) - batch["labels"]).square().sum()})
    terms = scale_targets(model, terms, targets.tolist()) if scaled else terms
    # as in the Trainer, no bias decays
    decay = [[each for each in model.parameters() if (each.dim() > 1) == decays] for decays in (True, False)]
    groups = [{"params": params, "weight_decay": rate} for params, rate in zip(decay, (0.1, 0.0), strict=True)]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    scale_learning_rate(optimizer, model)
    for _ in range(30):
        optimizer.zero_grad()
        (terms.sums(model, {"labels": targets})["gold"] / len(X)).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize(("shift", "factor"), [(400_000.0, 150_000.0), (1990.0, 12.0), (0.0, 1e-4)])
def test_a_head_learns_as_if_targets_were_standardized(shift, factor):
    targets = X.sum(dim=1) * factor + shift
    mean, scale = float(targets.double().mean()), float(targets.double().std(correction=0))
    expected = train(Regressor(), ((targets - mean) / scale), scaled=False)
    model = train(Regressor(), targets, scaled=True)
    with torch.no_grad():
        np.testing.assert_allclose((model(X) - mean) / scale, expected(X), atol=2e-3)
        np.testing.assert_allclose(model.classifier.weight / scale, expected.classifier.weight, rtol=0.02, atol=1e-3)


def test_usual_targets_and_other_heads_stay_as_they_are():
    assert find_scale([0.0, 2.5, 5.0]) == find_scale([1.0, 1.0]) == (0.0, 1.0)
    assert find_scale([1990.0, 1990.0]) == (1990.0, 1.0)
    terms, model = LossTerms({"gold": 1.0}, len, lambda *_: {}), Regressor()
    assert scale_targets(model, terms, [0.0, 5.0]) is terms
    model.config.problem_type = "multi_label_classification"
    assert scale_targets(model, terms, [1000.0, 5000.0]) is terms


def test_a_trained_head_is_kept_if_it_predicts_such_numbers():
    terms = LossTerms({"gold": 1.0}, len, lambda *_: {})
    for bias, started in ((3500.0, 3500.0), (0.0, 3000.0)):
        model = Regressor()
        model.loading_info = LoadingInfo()
        nn.init.constant_(model.classifier.bias, bias)
        scale_targets(model, terms, [1000.0, 5000.0])
        assert float(model.classifier.bias.detach()) == started


@pytest.fixture(scope="module")
def prices(tmp_path_factory, tiny_model):
    """A run on prices."""
    folder = tmp_path_factory.mktemp("prices")
    for name, count, seed in (("train", 96, 1), ("validation", 40, 2)):
        rows = toy_rows(count, seed=seed)
        write_csv(
            folder / f"{name}.csv", [{**row, "label": 300_000 + 200_000 * (row["label"] == "good")} for row in rows]
        )
    changes = {
        "model": str(tiny_model),
        "data.source": str(folder),
        "training.epochs": 5,
        "training.learning_rate": 2e-3,
    }
    finetune(load_recipe("regress", {**changes, "training.batch_size": 16}), output=folder / "run")
    return folder


def test_predictions_are_prices_in_every_program(prices, run):
    import transformers

    record = json.loads((prices / "run" / "run.json").read_text())["results"][0]
    baselines = record["baselines"]
    assert record["scores"]["mean_absolute_error"] < 1.5 * baselines["mean"]["mean_absolute_error"]
    assert all(np.isfinite(baselines["linear model over TF-IDF"][name]) for name in record["scores"])
    model = transformers.AutoModelForSequenceClassification.from_pretrained(prices / "run").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(prices / "run")
    with torch.no_grad():
        logit = float(model(**tokenizer("a good film", return_tensors="pt")).logits)
    predicted = run("predict", prices / "run", "--text", "a good film")
    assert logit == pytest.approx(json.loads(predicted.out)["prediction"], rel=0.02)  # in bf16, if that is faster
    assert 200_000 < logit < 600_000

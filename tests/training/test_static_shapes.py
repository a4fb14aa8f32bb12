"""Losses of batches of few shapes: those of any other batch, for each task family and objective."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from bertkit.evaluation.forward import few_shapes, sorted_batches
from bertkit.hardware.device import Device
from bertkit.progress import SILENT
from bertkit.recipe import Training, load_pretrain_recipe, load_recipe
from bertkit.tokens.features import ROW_MASK, TOKENS_AT_ONCE, pad_features
from bertkit.tokens.static_shapes import static_collator
from bertkit.training.batching import InMemoryBatches
from bertkit.training.micro_batches import split_batch
from bertkit.training.paths import fitting_collator
from tests.test_pretend import FAMILIES, FEW, OBJECTIVES, OWN, small_model  # noqa: F401

ROWS = 8
WAYS = {
    "multi_label": ("classify", {"options.multi_label": True, "data.columns.label": "label"}),
    "weights": ("cola", {"training.class_weights": "balanced", "training.label_smoothing": 0.1}),
    "windows": ("classify", {"options.long_text": "windows_mean", "training.max_length": 16}),
    "hierarchical": ("classify", {"options.long_text": "hierarchical", "training.max_length": 16}),
    "frozen": ("ner-features", {}),
    "cosine": ("similarity", {"options.loss": "cosine"}),
    "pairs_simcse": ("similarity", {"options.loss": "simcse"}),
    "shorter": ("similarity", {"options.dimensions": [8]}),
    "listwise": ("rerank", {"options.loss": "listwise"}),
    "documents": ("mlm", {"training.packing": "documents"}),
}
"""Name of a way to train -> its recipe, and what it changes."""


class Captured(Exception):
    """Carries what would be trained."""


@pytest.fixture
def capture(small_model, tmp_path, monkeypatch):  # noqa: F811
    """Return what a recipe trains, instead of training it."""

    def fit(trainee, *arguments, **named):
        raise Captured(trainee)

    def captured(name, changes):
        from bertkit.workflows.finetune import finetune
        from bertkit.workflows.pretrain import pretrain

        monkeypatch.setattr("bertkit.training.fit.fit", fit)
        monkeypatch.setattr("bertkit.workflows.finetune.scorer._score_baselines", lambda *_: None)
        changes = {"model": str(small_model), **FEW, **OWN.get(name, {}), **changes}
        if name in OBJECTIVES:
            changes = {"data.limit": 100, "training.max_length": 64, **changes}
            train, recipe = pretrain, load_pretrain_recipe(name, changes)
        else:
            train, recipe = finetune, load_recipe(name, {"data.limit": 40, **changes})
        with pytest.raises(Captured) as ended:
            train(recipe, output=tmp_path / "run", progress=SILENT)
        (trainee,) = ended.value.args
        for module in trainee.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
            if isinstance(module, nn.LSTM):
                module.dropout = 0.0
        return trainee

    return captured


def sums_and_gradients(trainee, batch):
    trainee.model.zero_grad()
    sums = trainee.terms.sums(trainee.model, batch)
    torch.stack(list(sums.values())).sum().backward()
    gradients = {name: weights.grad for name, weights in trainee.model.named_parameters() if weights.grad is not None}
    return {name: value.item() for name, value in sums.items()}, gradients


def same(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-5)


def check(trainee, name, monkeypatch):
    features = some(trainee)
    features = features[:: len(features) // 5][:5]
    plain, filled = (
        trainee.collate(features),
        static_collator(trainee.collate, lambda batch: ROWS, (16, 32, 80))(features),
    )
    assert len(filled["input_ids"]) == ROWS > len(plain["input_ids"]) == 5
    if name in OBJECTIVES:
        del filled[ROW_MASK]
    assert trainee.terms.count(filled) == trainee.terms.count(plain)
    trainee.model.train()
    expected, gradients = sums_and_gradients(trainee, plain)
    assert all(value > 0 for value in expected.values())
    monkeypatch.setattr(Device, "shapes_may_change", False)
    found, others = sums_and_gradients(trainee, filled)
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-4)
    same(others, gradients)


def some(trainee):
    if hasattr(trainee.batches, "features"):
        return list(trainee.batches.features)
    return [row for _ in range(2) for row in trainee.batches.longest()]


@pytest.mark.parametrize("name", [*FAMILIES, *OBJECTIVES])
def test_losses_are_those_of_other_batches(name, capture, monkeypatch):
    check(capture(name, {}), name, monkeypatch)


@pytest.mark.parametrize("way", WAYS)
def test_losses_of_other_ways(way, capture, monkeypatch):
    name, changes = WAYS[way]
    check(capture(name, changes), name, monkeypatch)


def texts_of(random, count, longest, tagger):
    lengths = random.integers(1, longest + 1, count) if random.random() < 0.5 else random.geometric(0.1, count)
    ids = [[1] * int(min(length, longest)) for length in lengths]
    return [{"input_ids": each, **({"labels": each} if tagger else {})} for each in ids]


@pytest.mark.parametrize(("tagger", "accumulation"), [(False, 1), (False, 2), (True, 1), (True, 2)])
def test_a_run_of_rows_of_any_lengths_compiles_at_most_twelve_graphs(monkeypatch, tagger, accumulation):
    """Each shape of a batch is one graph, or two where gradients add up; the others are counted in a test of XLA."""
    monkeypatch.setattr(Device, "shapes_may_change", False)
    random = np.random.default_rng(0)

    def collate(features):
        return {name: torch.from_numpy(each) for name, each in pad_features(features, {"input_ids": 0}, 300).items()}

    most = 0
    for _ in range(12):
        model, share = nn.Linear(1, 1), int(random.integers(2, 17))
        rows = texts_of(random, int(random.integers(50, 400)), int(random.integers(2, 301)), tagger)
        named = {"batch_size": share * accumulation, "gradient_accumulation": accumulation, "max_length": 300}
        training = Training(batching="sorted", **named)
        arguments = SimpleNamespace(device=torch.device("cpu"), per_device_train_batch_size=share)
        batches = InMemoryBatches(rows, training)
        build = fitting_collator(collate, batches, model, training, arguments)
        loader = batches.loader(build, processes=1, process=0, padding="it is")
        steps = set()
        for epoch in range(2):
            loader.set_epoch(epoch)
            steps |= {batch["input_ids"].shape for whole in loader for batch in split_batch(whole, share)}
        scored = set()
        for _ in range(3):
            others = texts_of(random, int(random.integers(1, 400)), 300, tagger)
            of_split, lengths = few_shapes(model, others, collate)
            for numbers in sorted_batches(lengths, TOKENS_AT_ONCE):
                scored.add(of_split([others[number] for number in numbers])["input_ids"].shape)
        of_optimizer, of_numbers = 2, 3  # the first step and others; what begins a run, a log line, and a checkpoint
        adds_up = tagger or accumulation > 1
        most = max(most, len(steps) * (2 if adds_up else 1) + len(scored) + of_optimizer + of_numbers)
    assert most == 12

"""Losses of batches of few shapes: those of any other batch, for each task family and objective."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from bertkit.evaluation.baselines import ScoredBaselines
from bertkit.evaluation.forward import limit_shapes, sorted_batches
from bertkit.hardware.device import Device
from bertkit.modeling.heads.mixins import find_windows
from bertkit.modeling.static_shapes import get_texts_per_row
from bertkit.recipe import TrainingConfig, load_pretrain_recipe, load_recipe
from bertkit.tokens.features import ROW_MASK, TOKENS_AT_ONCE, pad_features
from bertkit.tokens.multi_text import multi_text_collator
from bertkit.tokens.static_shapes import static_collator, training_rows
from bertkit.training.arguments import choose_collator
from bertkit.training.batching import InMemoryBatches
from bertkit.training.micro_batches import split_batch
from tests.kills import slow_unless
from tests.test_pretend import FAMILIES, FEW, OBJECTIVES, OWN, QUICK, small_model  # noqa: F401

ROWS = 8
WAYS = {
    "multi_label": ("classify", {"options.multi_label": True, "data.columns.label": "label"}),
    "weights": ("cola", {"training.class_weights": "balanced", "training.label_smoothing": 0.1}),
    "windows": ("classify", {"options.long_text": "windows_mean", "training.max_length": 16}),
    "windows_labels": (
        "classify",
        {
            "options.long_text": "windows_max",
            "training.max_length": 16,
            "options.multi_label": True,
            "data.columns.label": "label",
        },
    ),
    "windows_smoothing": (
        "classify",
        {"options.long_text": "windows_mean", "training.max_length": 16, "training.label_smoothing": 0.1},
    ),
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

    def fit(job, *arguments, **named):
        raise Captured(job)

    def captured(name, changes):
        from bertkit.workflows.finetune import finetune
        from bertkit.workflows.pretrain import pretrain

        monkeypatch.setattr("bertkit.training.fit.fit", fit)
        none = ScoredBaselines({}, {}, {})
        monkeypatch.setattr("bertkit.workflows.finetune.score_baselines", lambda *_: none)
        changes = {"model": str(small_model), **FEW, **OWN.get(name, {}), **changes}
        if name in OBJECTIVES:
            changes = {"data.limit": 100, "training.max_length": 64, **changes}
            train, recipe = pretrain, load_pretrain_recipe(name, changes)
        else:
            train, recipe = finetune, load_recipe(name, {"data.limit": 40, **changes})
        with pytest.raises(Captured) as ended:
            train(recipe, output=tmp_path / "run")
        (job,) = ended.value.args
        for module in job.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
            if isinstance(module, nn.LSTM):
                module.dropout = 0.0
        return job

    return captured


def sums_and_gradients(job, *micro_batches):
    job.model.zero_grad()
    total = Counter()
    for batch in micro_batches:
        sums = job.loss_terms.sums(job.model, batch)
        torch.stack(list(sums.values())).sum().backward()
        total.update({name: value.item() for name, value in sums.items()})
    gradients = {name: weights.grad for name, weights in job.model.named_parameters() if weights.grad is not None}
    return dict(total), gradients


def same(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-5)


def check(job, name, monkeypatch):
    features = some(job)
    features = features[:: len(features) // 6][:5]  # rows with different labels
    texts = get_texts_per_row(job.model, some(job))
    fill = static_collator(job.data_collator, training_rows(ROWS, texts), (16, 32, 80), texts)
    plain, filled = job.data_collator(features), fill(features)
    assert len(filled["input_ids"]) % ROWS == 0 < len(filled["input_ids"]) - len(plain["input_ids"])
    assert filled["input_ids"].dim() == 2 or filled["input_ids"].shape[1] == texts.max_count
    if name in OBJECTIVES:
        del filled[ROW_MASK]
    assert job.loss_terms.count(filled) == job.loss_terms.count(plain)
    job.model.train()
    expected, gradients = sums_and_gradients(job, plain)
    assert all(value > 0 for value in expected.values())
    monkeypatch.setattr(Device, "shapes_may_change", False)
    found, others = sums_and_gradients(job, *split_batch(filled, ROWS))
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-4)
    same(others, gradients)


def some(job):
    if hasattr(job.train_batches, "features"):
        return list(job.train_batches.features)
    return [row for _ in range(2) for row in job.train_batches.get_longest_rows()]


@pytest.mark.parametrize("name", slow_unless(QUICK, [*FAMILIES, *OBJECTIVES]))
def test_losses_are_those_of_other_batches(name, capture, monkeypatch):
    check(capture(name, {}), name, monkeypatch)


@pytest.mark.parametrize("way", slow_unless(["weights", "windows", "hierarchical", "pairs_simcse", "documents"], WAYS))
def test_losses_of_other_ways(way, capture, monkeypatch):
    name, changes = WAYS[way]
    check(capture(name, changes), name, monkeypatch)


def texts_of(random, count, longest, way):
    lengths = random.integers(1, longest + 1, count) if random.random() < 0.5 else random.geometric(0.1, count)
    lengths = [int(min(length, longest)) for length in lengths]
    if way == "tagger":
        return [{"input_ids": [1] * length, "labels": [1] * length} for length in lengths]
    if way == "windows":  # all but the last of a row are full
        full = [[[1] * (1 + longest)] * int(random.geometric(0.4) - 1) for _ in lengths]
        return [{"input_ids": [*of_row, [1] * (1 + length)]} for of_row, length in zip(full, lengths, strict=True)]
    if way == "choices":
        return [{"input_ids": [[1] * (1 + length)] * int(random.integers(1, 6))} for length in lengths]
    return [{"input_ids": [1] * length} for length in lengths]


@pytest.mark.parametrize("accumulation", slow_unless([2], [1, 2]))
@pytest.mark.parametrize("way", ["texts", "tagger", "windows", "choices"])
def test_a_run_of_rows_of_any_lengths_compiles_at_most_twelve_graphs(monkeypatch, way, accumulation):
    """Each shape of a batch is one graph, or two where gradients add up; the others are counted in a test of XLA."""
    monkeypatch.setattr(Device, "shapes_may_change", False)
    random = np.random.default_rng(0)
    collate = multi_text_collator(
        SimpleNamespace(
            recipe=SimpleNamespace(training=SimpleNamespace(max_length=301)),
            tokenizer=SimpleNamespace(model_max_length=301, pad_token_id=0, pad_token_type_id=0),
            arrays=False,
        )
    )
    if way in ("texts", "tagger"):

        def collate(features):
            arrays = pad_features(features, {"input_ids": 0}, 301)
            return {name: torch.from_numpy(values) for name, values in arrays.items()}

    def shape_of(batch):
        shape = batch["input_ids"].shape
        if way == "windows":  # others have no other shape than that of their batch
            is_window = find_windows(batch["attention_mask"]) & batch[ROW_MASK][:, None]
            assert is_window.sum() <= max(is_window.shape)
        return shape

    most = 0
    for _ in range(4):
        model, share = nn.Linear(1, 1), int(random.integers(2, 17))
        model.reads = "choices" if way == "choices" else "text"
        rows = texts_of(random, int(random.integers(50, 400)), int(random.integers(2, 301)), way)
        named = {"batch_size": share * accumulation, "gradient_accumulation": accumulation, "max_length": 301}
        training = TrainingConfig(batching="sorted", **named)
        arguments = SimpleNamespace(device=torch.device("cpu"), per_device_train_batch_size=share)
        batches = InMemoryBatches(rows, training)
        build = choose_collator(collate, batches, model, training, arguments, graphs=False)
        loader = batches.loader(build, processes=1, process=0, padding_reason="it is")
        steps, adds_up = set(), way == "tagger" or accumulation > 1
        for epoch in range(2):
            loader.set_epoch(epoch)
            for whole in loader:
                micro_batches = split_batch(whole, share)
                steps |= {shape_of(batch) for batch in micro_batches}
                adds_up = adds_up or len(micro_batches) > 1
        scored = set()
        others = [texts_of(random, int(random.integers(1, 400)), 300, way) for _ in range(3)]
        limit_shapes(model, max(others, key=most_texts), collate)  # texts of one task have as many texts at most
        for features in others:
            of_split, lengths = limit_shapes(model, features, collate)
            for numbers in sorted_batches(lengths, TOKENS_AT_ONCE):
                scored.add(shape_of(of_split([features[number] for number in numbers])))
        of_optimizer, of_numbers = (
            2,
            3,
        )  # the first step and others; the first gradients, a log line, and the best weights
        most = max(most, len(steps) * (2 if adds_up else 1) + len(scored) + of_optimizer + of_numbers)
    assert most <= 12


def most_texts(features):
    return max(len(row["input_ids"]) for row in features)

"""Micro-batches: what fits into memory is found by trial, which leaves no trace, and nothing else changes."""

from __future__ import annotations

import json
import math
import random
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bertkit.errors import RecipeError, ResourceError
from bertkit.hardware.device import Device
from bertkit.recipe import TrainingConfig
from bertkit.training import micro_batches
from bertkit.training.micro_batches import choose_cpu_rows, find_max_tokens, probe_memory, split_batch
from tests.conftest import finetune
from tests.kills import read_lines

OUT_OF_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        ((32, 384), [4] * 8),
        ((9, 256), [5, 4]),
        ((3, 4000), [1] * 3),
        ((5, 4, 200), [3, 2]),
        ((32, 64), [32]),
        ((32, 66), [16] * 2),
    ],
)
def test_a_batch_is_split_where_it_has_many_tokens_or_its_attention_is_large(shape, sizes):
    batch = {"input_ids": torch.arange(math.prod(shape)).view(shape), "labels": torch.arange(shape[0])}
    batch["attention_mask"] = torch.ones(shape, dtype=torch.int64)
    parts = split_batch(batch, choose_cpu_rows(batch, heads=12))
    assert [len(part["input_ids"]) for part in parts] == sizes
    for name, values in batch.items():
        assert torch.equal(torch.cat([part[name] for part in parts]), values)


def test_a_batch_of_packed_documents_is_split_by_its_tokens():
    batch = {"input_ids": torch.ones(16, 128), "attention_mask": torch.ones(16, 1, 128, 128, dtype=torch.bool)}
    assert len(split_batch(batch, choose_cpu_rows(batch, heads=12))) == 1


@pytest.mark.parametrize(
    ("limit", "tried"),
    [(32, [32]), (31, [32, 16]), (1, [32, 16, 8, 4, 2, 1]), (0, [32, 16, 8, 4, 2, 1])],
)
def test_rows_are_halved_until_they_fit(limit, tried):
    seen = []

    def step(micro_batch):
        seen.append(len(micro_batch["input_ids"]))
        if seen[-1] > limit:
            raise OUT_OF_MEMORY

    with nullcontext() if limit else pytest.raises(ResourceError):
        assert find_max_tokens({"input_ids": torch.zeros(32, 10)}, step) == 10 * tried[-1]
    assert seen == tried


def test_another_error_of_a_step_is_no_lack_of_memory():
    def step(micro_batch):
        raise RuntimeError("index out of range")

    with pytest.raises(RuntimeError, match="index out of range"):
        find_max_tokens({"input_ids": torch.zeros(32, 10)}, step)


def test_one_line_says_what_fits(caplog):
    caplog.set_level("INFO", logger="bertkit")
    batch = {"input_ids": torch.zeros(5, 4, 100)}

    def step(micro_batch, limit):
        if len(micro_batch["input_ids"]) > limit:
            raise OUT_OF_MEMORY

    assert find_max_tokens(batch, lambda tried: step(tried, 9)) == 2000
    assert find_max_tokens(batch, lambda tried: step(tried, 4)) == 1200
    with pytest.raises(ResourceError, match=r"^a single row of 400 tokens does not fit .* try a smaller --max-length"):
        find_max_tokens(batch, lambda tried: step(tried, 0))
    assert [record.getMessage() for record in caplog.records] == [
        "memory: the longest batch (5 rows of 400 tokens) fits into this GPU",
        "memory: 5 rows of 400 tokens do not fit into this GPU, so micro-batches have at most 3 rows; "
        "the optimizer sees the same batch, with other dropout masks",
    ]


@pytest.mark.parametrize("fits", [True, False])
def test_a_trial_leaves_no_trace(fits):
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.5)).eval()
    optimizer = torch.optim.AdamW(model.parameters())

    def loss():
        random.random(), np.random.rand()
        outputs = model(torch.rand(4, 3)).sum()
        if fits or not model[0].weight.grad is not None:
            return outputs
        raise OUT_OF_MEMORY

    def state():
        streams = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
        return [streams, {name: values.tolist() for name, values in model.state_dict().items()}, model.training]

    before = state()
    if fits:
        probe_memory(model, optimizer, loss)
    else:
        with pytest.raises(torch.OutOfMemoryError):
            probe_memory(model, optimizer, loss)
    assert state() == before
    assert not optimizer.state and all(weights.grad is None for weights in model.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("limit", [pytest.param(16, marks=pytest.mark.slow), 5])
def test_a_run_finds_what_fits_and_sees_the_same_batches(run, still_model, tiny_model, toy_data, monkeypatch, limit):
    from bertkit.training.trainer import BertkitTrainer

    honest, sizes = BertkitTrainer._sum_terms, []

    def limited(trainer, batch):
        total = honest(trainer, batch)
        if len(batch["input_ids"]) > limit:
            raise OUT_OF_MEMORY
        return total

    def computed(trainer, model, batch, **keywords):
        sizes.append(batch["input_ids"].numel())
        return step(trainer, model, batch, **keywords)

    # what fits at once has the same dropout, too
    model, settings = tiny_model if limit == 16 else still_model, ("--epochs", 1, "--set", "training.log_every=1")
    assert finetune(run, model, toy_data, *settings, "--output", "plain").code == 0
    step = BertkitTrainer.compute_loss
    monkeypatch.setattr(BertkitTrainer, "_sum_terms", limited)
    monkeypatch.setattr(BertkitTrainer, "compute_loss", computed)
    monkeypatch.setattr(Device, "memory", 1)
    ended = finetune(run, model, toy_data, *settings, "--output", "tried")
    assert ended.code == 0
    assert ("fits into" if limit == 16 else "micro-batches have at most 4 rows") in ended.err
    losses = [[entry.get("loss") for entry in read_lines(Path(name, "metrics.jsonl"))] for name in ("plain", "tried")]
    assert losses[1] == (losses[0] if limit == 16 else pytest.approx(losses[0], abs=1e-5))
    manifest = json.loads(Path("tried/checkpoint-6/bertkit-manifest.json").read_text())
    assert max(sizes) <= manifest["micro_batch_tokens"]
    assert len(sizes) == 6 if limit == 16 else len(sizes) > 6


def test_a_resume_tries_nothing():
    from bertkit.training.trainer import BertkitTrainer

    trainer = SimpleNamespace(args=SimpleNamespace(device=torch.device("cuda")))
    BertkitTrainer.limit_micro_batches(trainer, 640)
    assert trainer.micro_batch_tokens == 640


@pytest.mark.parametrize(("tokens", "device", "rows"), [(640, "cuda", 6), (None, "cuda", 32), (None, "cpu", 16)])
def test_rows_are_those_of_the_limit_or_of_the_device(tokens, device, rows):
    batch = {"input_ids": torch.zeros(32, 100), "attention_mask": torch.ones(32, 100)}
    model = SimpleNamespace(config=SimpleNamespace(), device=torch.device(device))
    assert micro_batches.choose_rows(batch, tokens, model) == rows


def test_a_batch_whose_rows_are_compared_is_not_split():
    batch = {"input_ids": torch.zeros(32, 2, 100), "attention_mask": torch.ones(32, 2, 100)}
    model = SimpleNamespace(config=SimpleNamespace(), device=torch.device("cpu"))
    micro_batches.check_shares(model, TrainingConfig(gradient_accumulation=2), 1)
    model.compares_rows = True
    assert micro_batches.choose_rows(batch, 640, model) == 32
    assert model.tokens_at_once == 640
    with pytest.raises(RecipeError, match="compares all texts of a batch - leave it out"):
        micro_batches.check_shares(model, TrainingConfig(gradient_accumulation=2), 1)

"""What runs in a process of its own, on the CPU or on the pretend device: see tests/test_pretend.py."""

from __future__ import annotations

import contextlib
import gc
import json
from pathlib import Path

import pretend
import torch
from transformers.trainer_callback import CallbackHandler

from bertkit.evaluation.baselines import ScoredBaselines
from bertkit.hardware import speed
from bertkit.hardware.tensors import derive, find_indices, on_host, to_device
from bertkit.recipe import load_pretrain_recipe, load_recipe
from bertkit.workflows import finetune as finetune_workflow
from bertkit.workflows import finetune_results
from bertkit.workflows import pretrain as pretrain_workflow


@contextlib.contextmanager
def waits_are(*expected):
    pretend.waits.clear()
    yield
    assert [wait.partition(":")[0] for wait in pretend.waits] == [*expected], pretend.waits


def refused(error, compute) -> None:
    try:
        compute()
    except error:
        return
    raise AssertionError(f"{error.__name__} was not raised")


def check_strictness() -> None:
    """Check that the device computes what the CPU does, refuses what a GPU does, and notes what one waits for."""
    assert torch.accelerator.current_accelerator().type == "pretend"
    assert (torch.accelerator.is_available(), torch.accelerator.device_count()) == (True, 1)
    on_cpu, factor = torch.randn(8, 4), torch.randn(4, 3)
    with waits_are("to device"):
        values = on_cpu.to("pretend")
    with waits_are():
        moved = factor.to("pretend", non_blocking=True)
        product = values @ moved
        assert product.device.type == "pretend"
        _ = product * torch.tensor(2.0), product[torch.tensor([0, 1])]  # a number, and an index, of the CPU
    refused(RuntimeError, lambda: values @ factor)
    refused(RuntimeError, lambda: torch.cat([values, on_cpu]))
    refused(RuntimeError, lambda: torch.stack([values.sum(), torch.tensor(0.0)]))
    refused(RuntimeError, lambda: torch.nn.functional.cross_entropy(values, torch.zeros(8, dtype=torch.long)))
    refused(RuntimeError, lambda: torch.rand(2, device="pretend", generator=torch.Generator()))
    refused(TypeError, values.numpy)
    with waits_are("to cpu"):
        assert torch.equal(product.cpu(), on_cpu @ factor)
    with waits_are("item", "tolist", "nonzero", "nonzero"):
        _ = float(values.sum()), values.tolist(), values.nonzero(), values[values > 0]
    with waits_are("to device"):
        torch.tensor([1.0], device="pretend")
    torch.accelerator.synchronize()


def check_host_copies() -> None:
    """Check that what the CPU knows of a batch is found without a wait, and is never that of another tensor."""
    labels = torch.tensor([[3, -100], [-100, 5]])
    with waits_are():
        moved = to_device(labels, "pretend")
        assert on_host(moved) is labels
        assert on_host(moved.flatten()).tolist() == [3, -100, -100, 5]
        rows, columns = find_indices(moved, lambda labels: labels != -100)
        doubled = derive(moved, lambda labels: 2 * labels)
        assert on_host(doubled).tolist() == [[6, -200], [-200, 10]]
        picked = moved[rows, columns]
    with waits_are(*["to cpu"] * 4):
        assert on_host(picked).tolist() == [3, 5]
        assert on_host(moved.T).tolist() == labels.T.tolist()
        assert on_host(moved[:1]).tolist() == [[3, -100]]
        assert on_host(moved + 1).tolist() == (labels + 1).tolist()


def train(*cases: str) -> None:
    """Train by each case, a line of JSON, and write its log, scores and waits into a file of its name.

    What computes nothing on a device is left out: baselines, reports, and the files of a run.
    """
    scores, steps = {}, []
    begin_step = CallbackHandler.on_step_begin

    def begin(*arguments):
        steps.append([*pretend.waits])  # since the step before
        pretend.waits.clear()
        return begin_step(*arguments)

    def keep(found):
        scores.update(found)
        return []

    CallbackHandler.on_step_begin = begin
    speed._ROUNDS, speed._MIN_SECONDS = 1, 0.0
    finetune_workflow.score_baselines = lambda data, context: ScoredBaselines({}, {}, {data.validation.name: {}})
    finetune_results.save_results = lambda data, run, fit_result, checkpoint, scored, *others: keep(
        {f"{split}_{name}": score for split, each in scored.items() for name, score in each.scores.items()}
    )
    pretrain_workflow.save_results = lambda *arguments: keep(arguments[-1].scores)
    for case in map(json.loads, cases):
        scores.clear()
        steps.clear()
        pretend.waits.clear()
        gc.freeze()  # the Trainer collects garbage, which takes a fifth of the time where modules are searched too
        folder = Path(case["recipe"])
        if case["command"] == "finetune":
            finetune_workflow.finetune(load_recipe(case["recipe"], case["changes"]), output=folder)
        else:
            pretrain_workflow.pretrain(load_pretrain_recipe(case["recipe"], case["changes"]), output=folder)
        log = folder / "metrics.jsonl"
        entries = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        Path(f"{case['recipe']}.json").write_text(json.dumps({"log": entries, "scores": scores, "steps": steps}))

"""Losses, metrics, collators and callbacks of one's own, named by a recipe."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional

import bertkit
from bertkit.errors import RecipeError
from bertkit.evaluation.checkpoint import open_trained
from bertkit.recipe import TrainingConfig
from bertkit.server.models import find_models
from bertkit.storage import runs
from bertkit.training.losses import make_loss
from bertkit.workflows.export import find_split
from tests.conftest import finetune
from tests.kills import read_lines

MODULE = """
import numpy as np
import torch
from torch.nn import functional
from transformers import TrainerCallback


def plain(logits, gold):
    if gold.is_floating_point():
        return functional.binary_cross_entropy_with_logits(logits, gold, reduction="none").mean(dim=-1)
    return functional.cross_entropy(logits, gold, reduction="none")


def mean(logits, gold):
    return functional.cross_entropy(logits, gold)


def broken(logits, gold):
    return logits / 0 + undefined


def cost(gold, predicted):
    return np.mean(gold != predicted) * 10


cost.lower_is_better = True


def word(gold, predicted):
    return "good"


def without_last(features, collate):
    return collate([{**feature, "input_ids": feature["input_ids"][:-1]} for feature in features])


class Steps(TrainerCallback):
    def on_step_end(self, args, state, control, **keywords):
        with open("steps.txt", "a") as file:
            print(state.global_step, file=file)


class Needy(TrainerCallback):
    def __init__(self, name):
        self.name = name
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of one's own, `ownpackage.code`, on Python's path."""
    (tmp_path / "ownpackage").mkdir()
    (tmp_path / "ownpackage/code.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "ownpackage.code"
    sys.modules.pop("ownpackage.code", None)
    sys.modules.pop("ownpackage", None)


@pytest.mark.parametrize("gold", [torch.tensor([0, 1, -100, 1]), torch.tensor([[1.0, 0.0]] * 4)])
def test_a_loss_of_ones_own_is_summed_over_the_labels_that_count(own, gold):
    logits = torch.randn(4, 2)
    loss = make_loss(TrainingConfig(loss=f"{own}.plain"), ["a", "b"], ["a", "b"])(logits, gold)
    if gold.is_floating_point():
        expected = functional.binary_cross_entropy_with_logits(logits, gold, reduction="none").mean(dim=-1).sum()
    else:
        expected = functional.cross_entropy(logits, gold, ignore_index=-100, reduction="sum")
    assert float(loss) == pytest.approx(float(expected))


def test_a_loss_that_is_a_mean_already_is_refused(own):
    loss = make_loss(TrainingConfig(loss=f"{own}.mean"), ["a", "b"], ["a", "b"])
    with pytest.raises(RecipeError, match=r"returned shape \(\) for logits of shape \(4, 2\)"):
        loss(torch.randn(4, 2), torch.tensor([0, 1, 0, 1]))


@pytest.mark.parametrize("gamma", [0.5, 2.0])
@pytest.mark.parametrize("several", [False, True])
def test_focal_loss_is_that_of_the_paper(gamma, several):
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.5, 0.5]], requires_grad=True)
    gold = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]]) if several else torch.tensor([0, 0, -100])
    names = [["a"], ["b"]] if several else ["a", "b"]
    loss = make_loss(TrainingConfig(loss="focal", focal_gamma=gamma, class_weights={"a": 3.0}), ["a", "b"], names)
    computed = loss(logits, gold)
    by_hand = 0.0
    for row, labels in zip(logits.tolist(), gold.tolist(), strict=True):
        if several:
            chosen = [
                torch.sigmoid(torch.tensor(value if label else -value))
                for value, label in zip(row, labels, strict=True)
            ]
            by_hand -= sum(
                (1 - p) ** gamma * p.log() * weight / 2 for p, weight in zip(chosen, (3.0, 1.0), strict=True)
            )
        elif labels >= 0:
            p = torch.tensor(row).softmax(dim=0)[labels]
            by_hand -= (1 - p) ** gamma * p.log() * (3.0, 1.0)[labels]
    assert float(computed.detach()) == pytest.approx(float(by_hand), rel=1e-5)
    computed.backward()
    assert logits.grad.isfinite().all()


def test_code_of_ones_own_trains_and_scores(run, tiny_model, toy_data, own):
    changes = {
        "metrics": f"[{own}.cost, accuracy]",
        "training.loss": f"{own}.plain",
        "training.collator": f"{own}.without_last",
        "training.callbacks": f"[{own}.Steps]",
    }
    options = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    ended = finetune(run, tiny_model, toy_data, "--epochs", 1, *options, "--json")
    assert ended.code == 0, ended.err
    (result,) = json.loads(ended.out)["results"]
    assert result["scores"][f"{own}.cost"] == pytest.approx(10 * (1 - result["scores"]["accuracy"]))
    assert Path("steps.txt").read_text().split()[0] == "1"
    del sys.modules[own]
    assert run("eval", "runs/classify").code == 2  # its recipe names code
    assert run("eval", "runs/classify", "--trust-remote-code").code == 0
    note = f"`bertkit eval` needs the code of the metric {own}.cost"
    assert note in run("push", "runs/classify", "me/mine", "--dry-run").out
    assert f"`bertkit eval` needs the code of {own}.cost" in Path("runs/classify/README.md").read_text()


def test_a_model_answers_without_the_code_of_its_metric_and_loss(run, tiny_model, toy_data, own, tmp_path):
    options = ["--set", f"metrics=[{own}.cost, accuracy]", "--set", f"training.loss={own}.plain"]
    assert finetune(run, tiny_model, toy_data, "--epochs", 1, *options).code == 0
    (tmp_path / "ownpackage/code.py").unlink()
    del sys.modules[own]
    assert run("predict", "runs/classify", "--text", "good").code == 0
    assert bertkit.load("runs/classify").predict(["good"])
    assert [model.name for model in find_models(["runs/classify"])]
    split, notes = find_split(open_trained("runs/classify"), required=False)
    assert split is None and f"{own}.cost" in notes[0]
    ended = run("eval", "runs/classify", "--trust-remote-code")
    assert ended.code == 2 and f"no module is called '{own}'" in ended.last


def test_the_direction_of_ones_own_metric_holds_everywhere(run, tiny_model, toy_data, own):
    metric = f"{own}.cost"
    options = ["--set", f"metrics=[{metric}, accuracy]", "--output", "a", "--json"]
    (result,) = json.loads(finetune(run, tiny_model, toy_data, "--epochs", 1, *options).out)["results"]
    baselines = {baseline: scores[metric] for baseline, scores in result["baselines"].items()}
    assert len(set(baselines.values())) > 1
    assert result["lead"]["baseline"] == min(baselines, key=baselines.get)
    assert result["lower_is_better"] == [metric]
    shutil.copytree("a", "b")
    record = runs.read_record(Path("b"))
    record["results"][0]["scores"][metric] -= 1
    runs.write_record(Path("b"), record)
    table = json.loads(run("runs", "table", "a", "b", "--rows", "folder", "--json").out)
    assert {cell["row"]: cell["is_best"] for cell in table["cells"]} == {"a": False, "b": True}


def test_a_loss_of_ones_own_that_is_the_heads_trains_the_same_weights(run, tiny_model, toy_data, own):
    for name, options in {"own": ("--set", f"training.loss={own}.plain"), "head": ()}.items():
        assert finetune(run, tiny_model, toy_data, "--epochs", 1, "--output", name, *options).code == 0
    first, second = (read_lines(Path(name) / "metrics.jsonl")[0]["loss"] for name in ("own", "head"))
    assert first == pytest.approx(second, abs=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("training.loss=fokal", "must be 'focal' or `package.module.name` - did you mean focal?"),
        ("training.loss=ownpackage.nowhere.plain", "no module is called 'ownpackage.nowhere'"),
        ("training.loss=ownpackage.code.plane", "has no loss 'plane' - did you mean plain"),
        ("training.collator=ownpackage.code.without_first", "has no collator"),
        ("training.callbacks=[ownpackage.code.plain]", "is not a class of callbacks"),
        ("training.callbacks=[transformers.EarlyStoppingCallback]", "duplicates training.patience"),
        ("training.callbacks=[ownpackage.code.Needy]", "the callback ownpackage.code.Needy failed"),
        ("training.focal_gamma=3", "needs training.loss = focal"),
        ("metrics=[ownpackage.code.coast]", "has no metric 'coast'"),
        ("training.loss=ownpackage.code.broken", "the loss ownpackage.code.broken failed: NameError"),
        ("metrics=[ownpackage.code.word]", "returned 'good'"),
        ("data.oversample=colour", "no canonical column 'colour'"),
    ],
)
def test_mistakes_are_one_line(run, tiny_model, toy_data, own, change, message):
    ended = finetune(run, tiny_model, toy_data, "--epochs", 1, "--set", change)
    assert ended.code == 2
    assert message in ended.err.splitlines()[-1]


def test_numbers_have_no_loss_of_labels(run, tiny_model, toy_data):
    ended = run("finetune", "regress", "--model", tiny_model, "--data", toy_data, "--set", "training.loss=focal")
    assert (ended.code, ended.err.splitlines()[-1]) == (
        2,
        "error: training.loss needs labels - leave it out for this task",
    )

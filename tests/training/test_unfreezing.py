"""Rates and stages by depth: beside formulas written out, and runs that must not notice how they were computed."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForSequenceClassification

from bertkit.errors import RecipeError
from bertkit.modeling.depths import configure_layers
from bertkit.modeling.embeddings import train_used_embeddings
from bertkit.modeling.heads.base import build_head_class
from bertkit.modeling.sentence.head import SentenceHead
from bertkit.recipe import TrainingConfig
from bertkit.training.unfreezing import LayerPlan, Stage
from tests.conftest import LEARN, finetune, toy_rows, write_csv
from tests.kills import TRAINING_STEP, everything, read_lines
from tests.modeling.tiny_models import make_tiny, make_tiny_batch


@pytest.fixture
def model():
    return make_tiny("bert", AutoModelForSequenceClassification)


def plan_of(model, rows=64, **settings):
    training = TrainingConfig(**{"batch_size": 16, "epochs": 8, **settings})
    configure_layers(model, training)
    return LayerPlan(model, training, rows)


@pytest.mark.parametrize(
    ("settings", "stages"),
    [
        ({}, []),
        ({"freeze": "embeddings"}, [(0, 1)]),
        ({"freeze": 1}, [(0, 2)]),
        ({"freeze": "encoder"}, [(0, 3)]),
        ({"head_only_epochs": 1.5}, [(0, 3), (6, 0)]),
        ({"head_only_epochs": 2, "freeze": "embeddings"}, [(0, 3), (8, 1)]),
        ({"gradual_unfreezing": "epoch"}, [(0, 3), (4, 2), (8, 1), (12, 0)]),
        ({"gradual_unfreezing": 3, "freeze": 1}, [(0, 3), (3, 2)]),
        ({"gradual_unfreezing": 2, "head_only_epochs": 2}, [(0, 3), (8, 2), (10, 1), (12, 0)]),
    ],
)
def test_stages_are_the_steps_at_which_the_next_depth_is_trained(model, settings, stages):
    assert plan_of(model, **settings).stages == [Stage(*stage) for stage in stages]


def test_an_encoder_without_a_head_begins_with_its_top_layer(model):
    encoder = make_tiny("bert", build_head_class(SentenceHead, type(model.config), "ForSentenceSimilarity"))
    encoder.base_model.pooler.requires_grad_(False)
    assert plan_of(encoder, gradual_unfreezing="epoch").stages == [Stage(0, 2), Stage(4, 1), Stage(8, 0)]
    with pytest.raises(RecipeError, match="this model has no head with weights - leave it out"):
        plan_of(encoder, head_only_epochs=1)


def test_a_run_that_ends_before_the_last_stage_says_so(model, caplog):
    plan_of(model, epochs=2, gradual_unfreezing="epoch")
    assert caplog.messages == [
        "training.gradual_unfreezing: the run ends at step 8, in stage 2 of 4; all layers would be trained from "
        "step 12 on"
    ]


def test_layers_are_planned_only_where_a_recipe_says_so():
    assert not TrainingConfig().sets_layers
    assert TrainingConfig(head_learning_rate=0.1).sets_layers
    assert TrainingConfig(freeze="embeddings").sets_layers


def test_rates_decay_from_the_top_layer_down_and_the_head_has_its_own(model):
    plan = plan_of(model, learning_rate=0.01, layerwise_lr_decay=0.5, head_learning_rate=0.3)
    assert plan.rates == {3: 0.3, 2: 0.01, 1: 0.005, 0: 0.0025}
    assert plan.describe_rates() == "the head 0.3, layer 1 0.01, layer 0 0.005, the embeddings 0.0025"
    decayed = [weights for name, weights in model.named_parameters() if "bias" not in name and "Norm" not in name]
    others = [weights for weights in model.parameters() if all(weights is not one for one in decayed)]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    plan.split_groups(optimizer)
    rates = {id(one): group["lr"] for group in optimizer.param_groups for one in group["params"]}
    decays = {id(one): group["weight_decay"] for group in optimizer.param_groups for one in group["params"]}
    expected = {"classifier": 0.3, "bert.pooler": 0.3, "layer.1": 0.01, "layer.0": 0.005, "embeddings": 0.0025}
    for name, weights in model.named_parameters():
        assert rates[id(weights)] == next(rate for part, rate in expected.items() if part in name), name
        assert decays[id(weights)] == (0.0 if "bias" in name or "Norm" in name else 0.1), name
    assert optimizer.param_groups[0]["lr"] == 0.01  # which the log shows


def test_one_rate_leaves_the_optimizer_as_it_is(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    plan_of(model, freeze="embeddings").split_groups(optimizer)
    assert len(optimizer.param_groups) == 1


def test_nothing_is_computed_or_kept_below_what_is_trained(model):
    plan, kept = plan_of(model, gradual_unfreezing=4), []
    for step in (0, 3, 4, 8, 12):
        plan.start(step)
        saved = [0]
        with torch.autograd.graph.saved_tensors_hooks(lambda t, n=saved: (n.append(t.numel()), t)[1], lambda t: t):
            loss = model(**make_tiny_batch()).logits.square().sum()
        loss.backward()
        model.zero_grad()
        kept.append(sum(saved))
    assert kept[0] == kept[1] < kept[2] < kept[3] < kept[4]


def test_processes_that_share_batches_compute_all_gradients_and_drop_those_of_frozen_weights(model, monkeypatch):
    plan = plan_of(model, head_only_epochs=1)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    for step, trained in ((0, {"bert.pooler", "classifier"}), (4, {"bert.embeddings", "bert.encoder"})):
        plan.start(step)
        assert all(weights.requires_grad for weights in model.parameters())
        model(**make_tiny_batch()).logits.square().sum().backward()
        plan.drop_gradients()
        names = {
            ".".join(name.split(".")[: 1 + name.startswith("bert")])
            for name, weights in model.named_parameters()
            if weights.grad is not None
        }
        assert trained <= names and (step or names == trained)
        model.zero_grad()


@pytest.mark.parametrize("ids", [[1, 2], range(100)])
def test_embeddings_that_do_not_occur_are_not_decayed_while_they_are_frozen(ids):
    torch.manual_seed(0)
    model = nn.Module()
    model.table = nn.Embedding(100, 3)
    model.get_input_embeddings = lambda: model.table
    model.set_input_embeddings = lambda table: setattr(model, "table", table)
    expected = model.table.weight.detach().clone()
    expected[3:] *= (1 - 0.1 * 0.5) ** 2
    with train_used_embeddings(model, ids) as rows:
        assert (rows is None) == (len(ids) > 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
        if rows:
            rows.follow(optimizer)
        for step in range(4):
            model.table.weight.requires_grad_(step >= 2)
            looked_up = model.table(torch.tensor([1, 2])).sum()
            if step >= 2:
                looked_up.backward()
            optimizer.step()
            optimizer.zero_grad()
    torch.testing.assert_close(model.table.weight.detach()[3:], expected[3:])


UNFREEZE = ["--set", "training.gradual_unfreezing=4", "--set", "training.layerwise_lr_decay=0.8"]


def test_a_run_that_unfreezes_says_so(run, still_model, toy_data):
    ended = finetune(run, still_model, toy_data, "--epochs", 2, *UNFREEZE)
    assert ended.code == 0, ended.err
    assert "peak learning rates: the head 0.003, layer 1 0.003, layer 0 0.0024, the embeddings 0.00192" in ended.err
    assert "training the head: 1,122 parameters\n" in ended.err
    assert "step 8: unfreezing layer 0; 18,210 parameters are trained now\n" in ended.err
    counted = [entry for entry in read_lines(Path("runs/classify/metrics.jsonl")) if "trainable_parameters" in entry]
    assert [(entry["step"], entry["trainable_parameters"]) for entry in counted] == [(0, 1122), (4, 9666), (8, 18210)]
    assert "Trained parameters" in Path("runs/classify/report.html").read_text()


OFF = [f"training.{key}=false" for key in ("train_used_embeddings_only", "unpad", "cls_only_last_layer")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        OFF,
        ["training.gradient_checkpointing=true"],
        ["training.gradient_accumulation=4"],
        ["training.unpad=true"],
        ["training.torch_compile=true"],
    ],
    ids=["plain", "checkpointing", "accumulation", "unpadded", "compiled"],
)
@pytest.mark.filterwarnings("ignore")
def test_unfreezing_does_not_depend_on_how_a_step_is_computed(run, still_model, toy_data, settings, monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    for name, options in (("default", []), ("other", [word for key in settings for word in ("--set", key)])):
        ended = finetune(run, still_model, toy_data, "--epochs", 3, *UNFREEZE, "--output", name, *options)
        assert ended.code == 0, ended.err
    ours, theirs = (load_file(f"{name}/model.safetensors") for name in ("default", "other"))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=5e-5)


@pytest.mark.slow
@pytest.mark.parametrize("call", [5, 9, 14])
def test_a_run_killed_around_a_boundary_goes_on_as_if_it_had_not_been(zygote, tiny_model, toy_data, tmp_path, call):
    command = ["finetune", "classify", "--model", tiny_model, "--data", toy_data, *LEARN, "--epochs", "3", *UNFREEZE]
    command += ["--set", "training.evaluate_every=4", "--set", "training.log_every=1", "--output", "run"]
    for name in ("whole", "broken"):
        (tmp_path / name).mkdir()
    assert zygote.run(tmp_path / "whole", command)[0] == 0
    fault = {"function": TRAINING_STEP, "call": call}
    assert zygote.run(tmp_path / "broken", command, fault)[0] == -9
    code, text = zygote.run(tmp_path / "broken", command)
    assert code == 0, text
    ours, theirs = (everything(tmp_path / name / "run") for name in ("broken", "whole"))
    for name in (theirs.keys() | ours.keys()) - {"predictions.jsonl"}:  # the best step may be scored anew
        assert ours[name] == theirs[name], name


@pytest.mark.slow
def test_two_processes_unfreeze_as_one_does(run, zygote, still_model, tmp_path):
    data = tmp_path / "odd"
    data.mkdir()
    write_csv(data / "train.csv", toy_rows(97, seed=1))
    write_csv(data / "validation.csv", toy_rows(41, seed=2))
    settings = ["--epochs", "3", "--set", "training.log_every=1", *UNFREEZE]
    assert finetune(run, still_model, data, *settings, "--output", "one").code == 0
    arguments = ["finetune", "classify", "--model", still_model, "--data", data, *LEARN, *settings, "--output", "two"]
    codes, _, err = zygote.launch(Path.cwd(), arguments)
    assert max(map(abs, codes)) == 0, err
    ours, theirs = read_lines(Path("one/metrics.jsonl")), read_lines(Path("two/metrics.jsonl"))
    assert [entry["step"] for entry in ours] == [entry["step"] for entry in theirs]
    for one, two in zip(ours, theirs, strict=True):
        assert one == pytest.approx(two, abs=1e-4)
    assert json.loads(Path("two/run.json").read_text())["status"] == "finished"

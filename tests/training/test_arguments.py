"""The arguments of the Trainer: what a recipe decides, and what is left to `training.extra`."""

from __future__ import annotations

import torch

from tests.conftest import finetune


def test_extra_arguments_reach_the_trainer_unless_the_recipe_decides_them(run, tiny_model, toy_data):
    assert finetune(run, tiny_model, toy_data, "--epochs", 1, "--set", "training.extra={adam_beta1: 0.5}").code == 0
    optimizer = torch.load("runs/classify/checkpoint-6/optimizer.pt")
    assert optimizer["param_groups"][0]["betas"] == (0.5, 0.999)
    decided = finetune(run, tiny_model, toy_data, "--set", "training.extra={learning_rate: 1}", "--output", "b")
    assert decided.last == ("error: training.extra.learning_rate is decided by training.learning_rate - leave it out")
    wrong = finetune(run, tiny_model, toy_data, "--set", "training.extra={optim: adamm}", "--output", "d")
    assert wrong.code == 2
    assert wrong.last.startswith("error: training.extra is wrong: adamm is not a valid OptimizerNames")
    unknown = finetune(run, tiny_model, toy_data, "--set", "training.extra={adam_beta: 1}", "--output", "c")
    assert unknown.code == 2
    assert "has no field 'adam_beta' - did you mean adam_beta2 or adam_beta1?" in unknown.last

"""The arguments of the Trainer: what a recipe decides, and what is left to `training.extra`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bertkit.errors import RecipeError, UnavailableError
from bertkit.hardware.precision import ComputeConfig
from bertkit.recipe import TrainingConfig
from bertkit.training import arguments
from tests.conftest import finetune


def test_extra_arguments_reach_the_trainer_unless_the_recipe_decides_them(run, tiny_model, toy_data):
    settings = ("--set", "training.extra={adam_beta1: 0.5}", "--set", "training.keep_optimizer=true")
    assert finetune(run, tiny_model, toy_data, "--epochs", 1, *settings).code == 0
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


def test_the_trainer_writes_where_the_run_is(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    machine = ComputeConfig("cpu", "fp32", 1, "")
    for folder in (Path("~", "x"), Path("runs/x"), tmp_path):
        made = arguments.make_arguments(TrainingConfig(), machine, folder, 96)
        assert made.output_dir == str(folder)


@pytest.mark.parametrize("field", ["torch_compile", "torch_compile_mode", "torch_compile_backend"])
def test_what_is_compiled_is_decided_by_a_key_of_its_own(field):
    with pytest.raises(
        RecipeError, match=rf"^training.extra.{field} is decided by training.torch_compile - leave it out$"
    ):
        arguments.check_extra(TrainingConfig(extra={field: "x"}))


@pytest.mark.parametrize("settings", [{}, {"warmup_ratio": 0.5, "decay_ratio": 0.5}, {"decay_ratio": 0.25}])
def test_a_stable_rate_decays_over_its_share_of_the_steps(settings, tmp_path):
    training = TrainingConfig(schedule="warmup_stable_decay", steps=77, extra={"lr_scheduler_kwargs": {}}, **settings)
    machine = ComputeConfig("cpu", "fp32", 1, "")
    made = arguments.make_arguments(training, machine, tmp_path, 96)
    steps = made.lr_scheduler_kwargs["num_decay_steps"]
    assert steps == pytest.approx(77 * training.decay_share, abs=1)
    assert made.get_warmup_steps(77) + steps <= 77


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_trainer_computes_in_the_precision_that_the_trial_chose(tmp_path, monkeypatch, precision):
    """Whether TrainingArguments know that the device has it: they look at a few kinds of GPUs."""
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "meta")
    machine = ComputeConfig("meta", precision, 1, "")
    made = arguments.make_arguments(TrainingConfig(), machine, tmp_path, 96)
    assert made.device.type == "meta"
    assert (made.bf16, made.mixed_precision) == (precision == "bf16", "bf16" if precision == "bf16" else "no")
    assert made.optim == "adamw_torch"  # no kernel of a fused one for it


def test_accelerate_may_not_take_another_device(tmp_path, monkeypatch):
    monkeypatch.setattr(arguments, "set_accelerate_device", lambda device: None)
    with pytest.raises(
        UnavailableError, match="Accelerate computes on cpu, but bertkit on xpu - set BERTKIT_DEVICE=cpu"
    ):
        arguments.make_arguments(TrainingConfig(), ComputeConfig("xpu", "fp32", 1, ""), tmp_path, 96)


@pytest.mark.parametrize(
    ("field", "decided"),
    [
        ("fsdp", "training.fsdp"),
        ("fsdp_config", "training.fsdp"),
        ("deepspeed", "bertkit itself"),
        ("per_device_eval_batch_size", "bertkit itself"),
        ("train_sampling_strategy", "training.batching"),
        ("push_to_hub", "bertkit push"),
    ],
)
def test_what_the_trainer_would_ignore_is_refused(field, decided):
    with pytest.raises(RecipeError, match=rf"^training.extra.{field} is decided by {decided} - leave it out$"):
        arguments.check_extra(TrainingConfig(extra={field: "x"}))

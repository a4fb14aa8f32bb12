from __future__ import annotations

import json
import math

import pytest
import torch
from safetensors.torch import save_model

from bertkit.errors import ModelError
from bertkit.storage import checkpoints
from bertkit.training.run import FitResult, load_best_weights


def test_the_training_loss_is_the_mean_over_all_steps():
    history = [{"step": 10, "loss": 3.0}, {"step": 10, "eval_loss": 9.0}, {"step": 40, "loss": 1.0}]
    result = FitResult(
        history, best_checkpoint=None, last_checkpoint=None, best_step=40, steps=40, planned_steps=40, epochs=1.0
    )
    assert result.train_loss == pytest.approx((10 * 3.0 + 30 * 1.0) / 40)
    assert math.isnan(FitResult.without_training().train_loss)


def save(run, step, weight, best_step):
    """Save a model of one weight as the checkpoint of a step."""
    folder = checkpoints.checkpoint_folder(run, step)
    folder.mkdir()
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, weight)
    save_model(model, str(folder / "model.safetensors"))
    state = {"log_history": [], "best_global_step": best_step, "global_step": step, "epoch": step / 10}
    (folder / "trainer_state.json").write_text(json.dumps(state))
    checkpoints.commit(folder, {"step": step})
    return folder


class OneWeight(torch.nn.Linear):
    device = torch.device("cpu")


def test_the_best_weights_are_loaded_and_a_damaged_best_checkpoint_is_named(tmp_path):
    model = OneWeight(1, 1, bias=False)
    with pytest.raises(ModelError, match="no checkpoint was left by training"):
        load_best_weights(model, tmp_path)
    best, last = save(tmp_path, 10, 0.5, best_step=10), save(tmp_path, 20, 0.25, best_step=10)
    result = load_best_weights(model, tmp_path)
    assert (model.weight.item(), result.best_checkpoint, result.last_checkpoint) == (0.5, best, last)
    assert (result.best_step, result.steps, result.epochs) == (10, 20, 2.0)
    (best / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match=r"the best checkpoint is damaged: model\.safetensors"):
        load_best_weights(model, tmp_path)

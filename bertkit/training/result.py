"""What training leaves: the history of a run, and its best and last checkpoints."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.errors import ModelError
from bertkit.modeling.weights import restore_weights
from bertkit.storage.checkpoints import checkpoint_folder, find_fault, newest_whole

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class FitResult:
    """What training leaves: its history, and its best and last checkpoints, None without training."""

    history: list[dict[str, Any]]
    best: Path | None
    last: Path | None
    best_step: int
    steps: int
    planned: int
    """Steps, of which a run that stops early does fewer."""
    epochs: float

    @property
    def evaluations(self) -> int:
        """The number of evaluations, those before a resume included."""
        return sum("eval_loss" in entry for entry in self.history)

    @property
    def train_loss(self) -> float:
        """The mean loss over all steps, those before a resume included."""
        logged = [(entry["step"], entry["loss"]) for entry in self.history if "loss" in entry]
        # a logged loss is the mean over the steps since the log line before it, and weighs as many as these
        before = [0, *(step for step, _ in logged)]
        weighted = sum(loss * (step - start) for (step, loss), start in zip(logged, before, strict=False))
        return weighted / logged[-1][0] if logged else float("nan")


def untrained() -> FitResult:
    """Return the result where there was nothing to train."""
    return FitResult([], best=None, last=None, best_step=0, steps=0, planned=0, epochs=0.0)


def load_best(model: PreTrainedModel, folder: Path) -> FitResult:
    """Load the weights of a run's best checkpoint, and return what its training has left.

    Raises:
        ModelError: there is no whole checkpoint, or the best one is damaged or does not fit the model.
    """
    last, _ = newest_whole(folder)
    if last is None:
        raise ModelError("no checkpoint was left by training", "check the disk, then run again", file=folder)
    state = json.loads((last / "trainer_state.json").read_text(encoding="utf-8"))
    best_step = state["best_global_step"] or state["global_step"]
    best = checkpoint_folder(folder, best_step)
    fault = find_fault(best)
    if fault:
        raise ModelError(f"the best checkpoint is damaged: {fault}", "--fresh starts over", file=best)
    restore_weights(model, best / "model.safetensors")
    return FitResult(
        history=state["log_history"],
        best=best,
        last=last,
        best_step=best_step,
        steps=state["global_step"],
        planned=state.get("max_steps", state["global_step"]),
        epochs=state["epoch"],
    )

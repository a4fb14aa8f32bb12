"""What the losses of a training say of its learning rate and its length."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from bertkit.checks import Finding
from bertkit.workflows.doctor import judge

_TINY_RATE = 1e-6  # No loss rises because of a lower one.
_LEAST, _PARTS = 15, 5  # log lines, and parts of them that are compared
# of the first loss; what ends above it without a clear lead over baselines has learned next to nothing
_STUCK = 0.8
# of the first loss: how far the last ones are above the lowest, and a line above the first
_RISE, _PEAK = 0.1, 0.05
_GENERALIZATION = 0.1  # relative, of the validation loss above its lowest
_LATE = 2 / 3  # of the steps; a best step before it left the rest without use
# of the first loss: what the last evaluation takes away, and a rise that is none
_STILL, _LITTLE = 0.1, 0.05


def judge_curve(log: Sequence[Mapping[str, Any]], best_step: int, *, has_learned: bool) -> list[Finding]:
    """Judge the log of a training: its learning rate, overfitting, and whether it ended too early.

    Args:
        log: lines of `metrics.jsonl`.
        best_step: that of the best checkpoint.
        has_learned: whether the model is clearly above its baselines; then a flat loss is no fault.
    """
    losses = [entry for entry in log if isinstance(entry.get("loss"), float) and "step" in entry]
    evaluations = [entry for entry in log if isinstance(entry.get("eval_loss"), float) and "step" in entry]
    highest_rate = max((entry.get("learning_rate", 0.0) for entry in losses), default=0.0)
    if len(losses) < (_PARTS if 0 < highest_rate < _TINY_RATE else _LEAST):
        return []
    rate = [*_judge_rate(losses, highest_rate, has_learned=has_learned)]
    return rate or [*_judge_length(losses, evaluations, best_step)]


def _judge_rate(losses: Sequence[Mapping[str, Any]], rate: float, *, has_learned: bool) -> Iterator[Finding]:
    """Say so where the losses look like those of a learning rate that is too high or too low.

    A training loss that rises tells of one that is too high; one that hardly falls, without rising, of one that is too
    low (Goodfellow et al. 2016, "Deep Learning", section 11.4.1). Losses are compared as means of a fifth of the log
    lines, since those of single lines differ by their rows.
    """
    values = [entry["loss"] for entry in losses]
    fifths = [values[part * len(values) // _PARTS : (part + 1) * len(values) // _PARTS] for part in range(_PARTS)]
    means, first, highest = [*map(fmean, fifths)], values[0], max(values)
    last, lowest = means[-1], min(means)
    has_risen, is_stuck = last - lowest > _RISE * first, last > _STUCK * first and not has_learned
    if not 0 < rate < _TINY_RATE and (has_risen or (is_stuck and highest - first > _PEAK * first)):
        start, end = (lowest, last) if has_risen else (first, highest)
        text = f"the training loss rises from {start:.4g} to {end:.4g}: the learning rate of {rate:.2g} may be too high"
        yield judge("training", "high_learning_rate", text, warn=f"--learning-rate {rate / 10:.1g}")
    elif is_stuck:
        text = f"the training loss goes from {first:.4g} to {last:.4g}: the learning rate of {rate:.2g} may be too low"
        remedy = f"--learning-rate {max(10 * rate, 1e-5):.1g}, or more steps"
        yield judge("training", "low_learning_rate", text, warn=remedy)


def _judge_length(
    losses: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]], best_step: int
) -> Iterator[Finding]:
    """Say since when a model overfits, where its best step came early, or that its last evaluation was much the best.

    It overfits where the training loss falls and the validation loss is 10% above its lowest: the generalization loss
    of Prechelt 1998, "Early Stopping - But When?". Where the best metric goes on to rise, as it may, nothing is lost.
    """
    if len(evaluations) < 2:
        return
    lowest, (before, last) = min(evaluations, key=lambda entry: entry["eval_loss"]), evaluations[-2:]
    least, ends, first = lowest["eval_loss"], last["eval_loss"], losses[0]["loss"]
    trained = [entry["loss"] for entry in losses if entry["step"] <= lowest["step"]] or [first]
    has_risen = ends - least > max(_GENERALIZATION * least, _LITTLE * first) and losses[-1]["loss"] < trained[-1]
    if has_risen and best_step <= _LATE * last["step"]:
        text = f"overfitting since epoch {lowest.get('epoch', 0):.3g}: the validation loss rises from {least:.4g} to "
        text += f"{ends:.4g}, the training loss falls from {trained[-1]:.4g} to {losses[-1]['loss']:.4g}, and the best "
        text += f"step is {best_step:,} of {last['step']:,}"
        yield judge("training", "overfitting", text, warn=f"more rows, or --set training.steps={best_step}")
    elif best_step >= last["step"] and before["eval_loss"] - ends > _STILL * first:
        text = "the best checkpoint is the last, and the validation loss still falls: "
        text += f"from {before['eval_loss']:.4g} to {ends:.4g}"
        yield judge("training", "best_is_last", text, warn=f"train longer: --set training.steps={2 * last['step']}")

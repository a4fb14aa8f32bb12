"""Curves of losses that are made up: what each says of the learning rate and the length, and what says nothing."""

from __future__ import annotations

import math

import pytest

from bertkit.workflows.doctor import judge_curve


def log_of(losses, validation=(), rate=5e-5):
    """Return the log of a training with these losses, and validation losses after equal parts of it."""
    steps = [10 * number for number in range(1, len(losses) + 1)]
    entries = [
        {"step": step, "epoch": step / 100, "loss": loss, "learning_rate": rate * (1 - number / len(losses))}
        for number, (step, loss) in enumerate(zip(steps, losses, strict=True))
    ]
    for number, loss in enumerate(validation, 1):
        step = steps[-1] * number // len(validation)
        entries.append({"step": step, "epoch": step / 100, "eval_loss": loss})
    return entries


def names(log, best_step=200, has_learned=True):
    return [finding.name for finding in judge_curve(log, best_step, has_learned=has_learned)]


FALLING = [0.7 * math.exp(-number / 8) + 0.02 * (number % 2) for number in range(30)]
FLAT = [0.693 + 0.004 * (-1) ** number for number in range(30)]


@pytest.mark.parametrize(
    ("log", "best_step", "has_learned", "expected"),
    [
        (log_of(FALLING, [0.4, 0.2, 0.19]), 200, True, []),
        (log_of(FALLING, [0.4, 0.2, 0.19]), 300, True, []),  # the last is the best, by little
        (log_of(FALLING, [0.4, 0.3, 0.2]), 300, True, ["best_is_last"]),
        (log_of(FALLING, [0.4, 0.3, 0.5, 0.7]), 150, True, ["overfitting"]),
        (log_of(FALLING, [0.4, 0.3, 0.5, 0.7]), 300, True, []),  # the metric rises all the same
        (log_of(FALLING, [0.0010, 0.0005, 0.0020]), 100, True, []),  # nothing beside what there was to learn
        (log_of(FALLING[::-1]), 200, True, ["high_learning_rate"]),
        (log_of(FLAT), 200, False, ["low_learning_rate"]),
        (log_of(FLAT), 200, True, []),  # a model that knew it before
        (log_of([*FLAT[:8], 0.9, *FLAT[9:]]), 200, False, ["high_learning_rate"]),
        (log_of(FALLING[:14], [0.4, 0.3, 0.5, 0.7]), 50, True, []),  # too few lines
        ([{"loss": 1.0}, {"step": 1, "loss": None}, {"step": 1}] * 20, 0, False, []),
    ],
)
def test_a_curve_is_judged_by_its_rules(log, best_step, has_learned, expected):
    assert names(log, best_step, has_learned) == expected


@pytest.mark.parametrize("losses", [FLAT[:6], FLAT[:14], [*FLAT[:8], 0.9, *FLAT[9:]], FLAT[::-1]])
def test_a_tiny_learning_rate_is_too_low_whatever_the_noise_and_in_few_lines_too(losses):
    (found,) = judge_curve(log_of(losses, rate=1e-7), 200, has_learned=False)
    assert found.name == "low_learning_rate" and "the learning rate of 1e-07 may be too low" in found.text
    assert judge_curve(log_of(losses[:6], rate=1e-4), 200, has_learned=False) == []


def test_a_finding_has_its_figures_and_a_command():
    (rate,) = judge_curve(log_of(FLAT, rate=1e-7), 200, has_learned=False)
    assert rate.level == "warn"
    assert rate.text.startswith("the training loss goes from 0.697 to 0.693: the learning rate of 1e-07 may be too low")
    assert rate.text.endswith("--learning-rate 1e-05, or more steps")
    (fit,) = judge_curve(log_of(FALLING, [0.4, 0.3, 0.5, 0.7]), 150, has_learned=True)
    assert "overfitting since epoch 1.5: the validation loss rises from 0.3 to 0.7" in fit.text
    assert fit.text.endswith("the best step is 150 of 300 - more rows, or --set training.steps=150")

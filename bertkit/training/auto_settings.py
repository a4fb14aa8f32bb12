"""Values for `auto` in a recipe: number of epochs, learning rate, and batch size.

In fine-tuning, they depend on the number of rows and the size of the encoder; in pretraining with a time budget, on the
speed. The rules are in docs/training.md and docs/pretraining.md, and the experiment behind them in docs/benchmarks.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from bertkit.hardware.precision import product_widths
from bertkit.modeling.layers import count_layers
from bertkit.recipe.records import Recipe
from bertkit.recipe.sections import Auto

# A run should have this number of steps, or this number per label if that is larger.
STEPS, STEPS_PER_LABEL = 600, 20
MIN_EPOCHS, MAX_EPOCHS, MAX_EPOCHS_FOR_LABELS = 3, 20, 30
EVALUATIONS = 10  # per run with short epochs
PATIENCE = 4  # evaluations without improvement
# With fewer validation rows, the best of ten scores is mostly luck, so the last step is used.
MIN_VALIDATION_ROWS = 300
_BASE_RATE, _BASE_WIDTH, _BASE_LAYERS = 3e-5, 768, 12
_LOWEST_RATE, _HIGHEST_RATE = 1e-5, 5e-4
MIN_PRETRAINING_BATCH = 8
_STEPS_PER_BLOCK = 64
_MAX_PRETRAINING_RATE = 2e-3


def choose_epochs(steps_per_epoch: int, labels: int = 0) -> int:
    """Return the number of epochs for enough steps: 3 to 20, or up to 30 with many labels.

    Fine-tuning on few rows fails if it has few steps (Mosbach et al. 2021, section 6, who advise 20 epochs).

    >>> [choose_epochs(steps) for steps in (7, 32, 157, 2105)], choose_epochs(57, labels=77)
    ([20, 19, 4, 3], 28)
    """
    row_epochs = min(math.ceil(STEPS / steps_per_epoch), MAX_EPOCHS)
    label_epochs = min(math.ceil(STEPS_PER_LABEL * labels / steps_per_epoch), MAX_EPOCHS_FOR_LABELS)
    return max(row_epochs, label_epochs if STEPS_PER_LABEL * labels > STEPS else 0, MIN_EPOCHS)


def choose_rate(width: int, layers: int) -> float:
    """Return the learning rate for an encoder of this hidden size and number of layers, to two digits.

    BERT base gets 3e-5, the middle of the three rates of Devlin et al. (2019, appendix A.3). A narrower or shallower
    encoder gets a higher rate, in proportion to 1 / width and to the fourth root of 1 / layers.

    >>> [choose_rate(*size) for size in ((384, 6), (768, 12), (1024, 24), (128, 2))]
    [7.1e-05, 3e-05, 1.9e-05, 0.00028]
    """
    rate = _BASE_RATE * _BASE_WIDTH / width * (_BASE_LAYERS / layers) ** 0.25
    return float(f"{min(max(rate, _LOWEST_RATE), _HIGHEST_RATE):.1e}")


def choose_training(
    recipe: Recipe, rows: Mapping[str, int], labels: int, config: Mapping[str, Any]
) -> tuple[Recipe, str]:
    """Replace each `auto` in a recipe by a number; return the recipe and one line of reasons, empty without `auto`.

    If `epochs` is `auto`, the steps between evaluations and the patience are chosen too, unless the recipe sets them.

    Args:
        recipe: Recipe as it was loaded.
        rows: Number of rows per split.
        labels: Number of labels, or 0 if the answers are not labels.
        config: Config of the encoder; BERT base's sizes replace missing ones.
    """
    training, settings, reasons = recipe.training, dict[str, Any](), list[str]()
    if isinstance(training.epochs, Auto):
        settings, reasons = _choose_length(recipe, rows, labels)
    if isinstance(training.learning_rate, Auto):
        width, _ = product_widths(config) or (_BASE_WIDTH, 0)
        student = recipe.distillation.student_layers if recipe.distillation else None
        layers = (len(student) if isinstance(student, list) else student) or count_layers(config) or _BASE_LAYERS
        settings["learning_rate"] = rate = choose_rate(width, layers)
        reasons.append(f"learning rate {rate:g} (an encoder of {layers} layers of {width})")
    if not settings:
        return recipe, ""
    return recipe.replace("training", **settings), f"auto: {'; '.join(reasons)}" if reasons else ""


def _choose_length(recipe: Recipe, rows: Mapping[str, int], labels: int) -> tuple[dict[str, Any], list[str]]:
    """Choose the epochs, the steps between evaluations and the patience; return these settings and the reasons."""
    training, count = recipe.training, rows["train"]
    if training.steps is not None:
        return {"epochs": MIN_EPOCHS}, []  # The recipe counts steps, so this number has no effect.
    per_epoch = training.steps_per_epoch(count)
    epochs = choose_epochs(per_epoch, labels)
    settings: dict[str, Any] = {"epochs": epochs}
    label_reason = f", {labels} labels" if STEPS_PER_LABEL * labels > STEPS else ""
    reasons = [f"{epochs} epochs of {per_epoch:,} steps ({count:,} training rows{label_reason})"]
    can_choose_step = rows["validation"] >= MIN_VALIDATION_ROWS
    if training.evaluate_every == "epoch" and (epochs > EVALUATIONS or not can_choose_step):
        settings["evaluate_every"] = math.ceil(epochs * per_epoch / (EVALUATIONS if can_choose_step else 1))
    if not can_choose_step:
        reasons.append(f"scored at the end ({rows['validation']} validation rows are too few to choose a step by)")
    elif training.patience is None:
        settings["patience"] = PATIENCE
        reasons.append(f"fewer if {recipe.best_metric} is no better in {PATIENCE} evaluations")
    return settings, reasons


# --- Pretraining with a time budget ---


def choose_batch(seconds: float, max_size: int, step_seconds: Callable[[int], float], processes: int = 1) -> int:
    """Return the batch size for a new model: the largest size with 64 steps per block of a batch, up to `max_size`.

    So the batch grows with the square root of the number of blocks that the model can read in the time. The largest
    efficient batch grows with about the square root of the data, too (Zhang et al. 2024, "How does critical batch size
    scale in pre-training?").

    Args:
        seconds: Budget of the run.
        max_size: Batch size of the recipe.
        step_seconds: Function that measures the seconds of a step with a batch size.
        processes: Number of processes that a batch is divided among.
    """
    batch = math.ceil(MIN_PRETRAINING_BATCH / processes) * processes
    while batch < max_size:
        larger = min(2 * batch, max_size)
        if step_seconds(larger) * _STEPS_PER_BLOCK * larger > seconds:
            return batch
        batch = larger
    return max_size


def choose_pretraining_rate(layers: int, width: int) -> float:
    """Return the peak learning rate of a short training from random weights: lower for wide and for deep models.

    >>> choose_pretraining_rate(4, 512), choose_pretraining_rate(12, 768)
    (0.001, 0.00038)
    """
    return float(f"{min(_MAX_PRETRAINING_RATE, 1e-3 * (512 / width) * math.sqrt(4 / layers)):.2g}")

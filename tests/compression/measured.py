"""A run whose importance is measured, with a few of its rows."""

from __future__ import annotations

from pathlib import Path

from bertkit.compression.choose_units import load_to_measure
from bertkit.evaluation.checkpoint import open_checkpoint
from bertkit.evaluation.splits import splits_to_score
from bertkit.hardware.precision import ComputeConfig
from bertkit.recipe import load_recipe
from bertkit.tasks import load_task


def load_measured(folder: Path, rows: int = 12):
    """Return the checkpoint of a run, as if to train it, and its first validation rows with their features."""
    recipe = load_recipe(str(folder / "recipe.yaml"), {"model": str(folder)})
    saved = open_checkpoint(recipe, load_task(recipe), folder)
    checkpoint = load_to_measure(saved, saved.load(ComputeConfig("cpu", "fp32", 1, "")))
    split = splits_to_score(saved, "validation")["validation"].head(rows)
    return checkpoint, split, saved.task.encode(split.rows, checkpoint.context)

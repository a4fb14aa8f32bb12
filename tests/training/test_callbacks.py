"""What happens between two steps: evaluations, patience, checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

from tests.conftest import finetune


def test_patience_ends_training_early(run, tiny_model, toy_data):
    options = ("--epochs", 30, "--learning-rate", "1e-8", "--set", "training.patience=2")
    assert finetune(run, tiny_model, toy_data, *options).code == 0
    record = json.loads(Path("runs/classify/run.json").read_text())
    assert (record["best_step"], record["steps"]) == (6, 18)

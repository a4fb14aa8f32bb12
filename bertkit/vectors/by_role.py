"""Texts read by a trained checkpoint as queries or as documents, for models of other than one dense vector per text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bertkit.evaluation.checkpoint import Checkpoint
from bertkit.evaluation.scoring import run_model
from bertkit.modeling.sentence.texts import encode_rows

ROLES = ("query", "document")
"""Names of the prompts that a text may begin with."""


def read_texts(checkpoint: Checkpoint, texts: Sequence[str], role: str, model_format: str) -> Sequence[dict[str, Any]]:
    """Return a model's outputs for each text alone: name -> array whose first axis has one entry.

    Args:
        checkpoint: of a format of `bertkit.modeling.sentence.formats`.
        texts: read as they are, each as often as it is given.
        role: one of `ROLES`.
        model_format: the format of the checkpoint.
    """
    if not texts:
        return []
    features = encode_rows([[text] for text in texts], checkpoint.setup, (role, role), model_format=model_format)
    outputs, _ = run_model(checkpoint, features, f"reading {role} texts")
    return outputs

"""Comparison of a pretrained student with its teacher: parameters, size on disk, and speed of the encoders."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from bertkit.hardware.precision import ComputeConfig
from bertkit.hardware.speed import measure_speed
from bertkit.modeling.info import Model
from bertkit.tokens.features import Collator, Features

_NUM_SINGLES = 8  # blocks that are timed one at a time
_NUM_BATCHED = 64  # blocks that are timed in batches
# Heads are not timed, so batches are reduced to the inputs of the encoder.
_ENCODER_INPUTS = ("input_ids", "attention_mask", "position_ids")


def compare_with_teacher(
    model: Model,
    names: tuple[str, str],
    features: Features,
    collate: Collator,
    machine: ComputeConfig,
) -> list[dict[str, Any]]:
    """Compare a distilled model with its teacher; return an empty list for any other model.

    Args:
        model: Student with its `PretrainingTeacher` as ``teacher``, or any other model.
        names: Names of the teacher and of the model.
        features: Blocks of held-out text, which both encoders compute alternately, without a head.
        collate: Function that makes batches.
        machine: Device and precision.

    Returns:
        Rows with ``role``, ``model``, ``parameters``, ``disk_bytes`` (of the weights), ``row_seconds`` (mean over
        single blocks) and ``rows_per_second`` (in batches).
    """
    if not hasattr(model, "teacher"):
        return []
    from bertkit.evaluation.forward import sorted_batches
    from bertkit.tokens.feature_cache import get_lengths

    models = {"teacher": model.teacher.model, "student": model}
    batch_indices = sorted_batches(get_lengths(features[:_NUM_BATCHED]).tolist())
    # Single blocks are like requests to a server, batches like a job over files. A student can be faster in only one of
    # the two cases.
    singles = [collate([feature]) for feature in features[:_NUM_SINGLES]]
    batches = [collate([features[index] for index in indices]) for indices in batch_indices]
    for encoder in models.values():
        encoder.to(machine.device).eval()
    functions = [partial(_run_encoder, encoder, machine) for encoder in models.values()]
    speeds = measure_speed(functions, singles, batches, sum(map(len, batch_indices)))
    return [
        {
            "role": role,
            "model": name,
            "parameters": encoder.num_parameters(),
            "disk_bytes": sum(weights.nbytes for weights in encoder.parameters()),
            "row_seconds": speed.row_seconds,
            "rows_per_second": speed.rows_per_second,
        }
        for (role, encoder), name, speed in zip(models.items(), names, speeds, strict=True)
    ]


def _run_encoder(model: Model, machine: ComputeConfig, batch: Mapping[str, Any]) -> None:
    import torch

    inputs = {name: batch[name].to(machine.device) for name in _ENCODER_INPUTS if name in batch}
    with torch.inference_mode(), torch.autocast(machine.device, torch.bfloat16, enabled=machine.precision == "bf16"):
        model.base_model(**inputs)

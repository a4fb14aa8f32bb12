"""A student beside its teacher: parameters, bytes, and how fast their encoders read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import mean
from typing import Any

from bertkit.hardware.precision import Machine
from bertkit.modeling.info import info_of
from bertkit.tokens.features import Collator, Feature

_ALONE = 8  # blocks that are timed one at a time
_TOGETHER = 64  # blocks that are timed in batches
_READ = ("input_ids", "attention_mask", "position_ids")


def beside_teacher(
    model: Any, teacher_name: str, name: str, features: Sequence[Feature], collate: Collator, machine: Machine
) -> list[dict[str, Any]]:
    """Put a model that was distilled beside its teacher; nothing where it has none.

    Args:
        model: `info_of` it names its teacher, where it has one.
        teacher_name: of the teacher.
        name: of the model.
        features: blocks of held-out text, which both encoders read by turns, without a head.
        collate: makes batches of them.
        machine: what they are read on.

    Returns:
        rows of ``role``, ``model``, ``parameters``, ``disk_bytes`` (of the weights), ``row_seconds`` (mean over blocks
        that are read one at a time) and ``rows_per_second`` (in batches).
    """
    if (teacher := info_of(model).teacher) is None:
        return []
    from bertkit.evaluation.forward import sorted_batches
    from bertkit.hardware.speed import time_by_turns
    from bertkit.tokens.feature_cache import lengths_of

    both = [("teacher", teacher_name, teacher), ("student", name, model)]
    alone = [[number] for number in range(min(_ALONE, len(features)))]
    together = sorted_batches(lengths_of(features[:_TOGETHER]).tolist())
    work = [collate([features[number] for number in numbers]) for numbers in [*alone, *together]]
    seconds = time_by_turns([partial(_read, each, machine) for _, _, each in both], work)
    return [
        {
            "role": role,
            "model": name,
            "parameters": sum(weights.numel() for weights in each.parameters()),
            "disk_bytes": sum(weights.numel() * weights.element_size() for weights in each.parameters()),
            "row_seconds": mean(taken[: len(alone)]),
            "rows_per_second": sum(map(len, together)) / sum(taken[len(alone) :]),
        }
        for (role, name, each), taken in zip(both, seconds, strict=True)
    ]


def _read(model: Any, machine: Machine, batch: Mapping[str, Any]) -> None:
    import torch

    model.to(machine.device).eval()
    given = {name: batch[name].to(machine.device) for name in _READ if name in batch}
    with torch.inference_mode(), torch.autocast(machine.device, torch.bfloat16, enabled=machine.precision == "bf16"):
        model.base_model(**given)

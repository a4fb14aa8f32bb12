"""A student beside its teacher: parameters, bytes, and how fast their encoders run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import mean
from typing import TYPE_CHECKING, Any

from bertkit.hardware.precision import Machine
from bertkit.modeling.info import info_of
from bertkit.tokens.features import Collator, Feature

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_SINGLE = 8  # blocks that are timed one at a time
_BATCHED = 64  # blocks that are timed in batches
_ENCODER_INPUTS = ("input_ids", "attention_mask", "position_ids")


def beside_teacher(
    model: PreTrainedModel,
    names: tuple[str, str],
    features: Sequence[Feature],
    collate: Collator,
    machine: Machine,
) -> list[dict[str, Any]]:
    """Compare a distilled model with its teacher; return nothing where it has none.

    Args:
        model: `info_of` it names its teacher, where it has one.
        names: of the teacher and of the model.
        features: blocks of held-out text, which both encoders run on in turns, without a head.
        collate: makes batches of them.
        machine: the device and precision to run in.

    Returns:
        rows of ``role``, ``model``, ``parameters``, ``disk_bytes`` (of the weights), ``row_seconds`` (mean over single
        blocks) and ``rows_per_second`` (in batches).
    """
    if (teacher := info_of(model).teacher) is None:
        return []
    from bertkit.evaluation.forward import sorted_batches
    from bertkit.hardware.speed import time_by_turns
    from bertkit.tokens.feature_cache import lengths_of

    models = {"teacher": teacher, "student": model}
    singles = [[number] for number in range(min(_SINGLE, len(features)))]
    batched = sorted_batches(lengths_of(features[:_BATCHED]).tolist())
    work = [collate([features[number] for number in numbers]) for numbers in [*singles, *batched]]
    for encoder in models.values():
        encoder.to(machine.device).eval()
    timings = time_by_turns([partial(_run_encoder, encoder, machine) for encoder in models.values()], work)
    return [
        {
            "role": role,
            "model": name,
            "parameters": sum(weights.numel() for weights in encoder.parameters()),
            "disk_bytes": sum(weights.numel() * weights.element_size() for weights in encoder.parameters()),
            "row_seconds": mean(timing.seconds[: len(singles)]),
            "rows_per_second": sum(map(len, batched)) / sum(timing.seconds[len(singles) :]),
        }
        for (role, encoder), name, timing in zip(models.items(), names, timings, strict=True)
    ]


def _run_encoder(model: PreTrainedModel, machine: Machine, batch: Mapping[str, Any]) -> None:
    import torch

    inputs = {name: batch[name].to(machine.device) for name in _ENCODER_INPUTS if name in batch}
    with torch.inference_mode(), torch.autocast(machine.device, torch.bfloat16, enabled=machine.precision == "bf16"):
        model.base_model(**inputs)

"""The loss of a student: gold labels, and what fine-tuned teachers say of the same rows (Hinton et al. 2015).

What they say comes with the features, under the names of the model's outputs with `TEACHER_PREFIX` before them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bertkit.recipe import Distillation
from bertkit.tokens.features import IGNORED, Collator, Feature, count_items
from bertkit.training.losses import Terms

if TYPE_CHECKING:
    import torch

    from bertkit.distillation.matching import Matching

TEACHER_PREFIX = "teacher_"


def teacher_collator(collate: Collator) -> Collator:
    """Make a collator that takes along what the teachers say; tokens and choices that are not there are -inf."""
    import numpy as np
    import torch

    def pad(arrays: Sequence[Any]) -> torch.Tensor:
        longest = max(map(len, arrays))
        padded = np.full((len(arrays), longest, *arrays[0].shape[1:]), -np.inf, dtype=np.float32)
        for line, values in zip(padded, arrays, strict=True):
            line[: len(values)] = values
        return torch.from_numpy(padded)

    def collate_both(features: Sequence[Feature]) -> dict[str, torch.Tensor]:
        teacher_outputs = [name for name in features[0] if name.startswith(TEACHER_PREFIX)]
        return {**collate(features), **{name: pad([feature[name] for feature in features]) for name in teacher_outputs}}

    return collate_both


def distillation_terms(gold: Terms, wanted: Distillation, problem_type: str | None, matching: Matching | None) -> Terms:
    """Give the terms ``gold`` and ``soft``, and with a `matching` its terms too.

    Args:
        gold: the terms of the task without teachers.
        wanted: weights and temperature.
        problem_type: that of the model: what its logits are.
        matching: compares the inside of the student with that of a teacher.
    """
    soft_loss = choose_loss(problem_type)

    def count(batch: Mapping[str, Any]) -> Mapping[str, int]:
        own = _own(batch)
        more = dict.fromkeys(matching.weights, int(batch["attention_mask"].sum())) if matching else {}
        return {**gold.count(own), "soft": count_items(own), **more}

    def sums(model: Any, batch: Mapping[str, Any]) -> Mapping[str, torch.Tensor]:
        own = _own(batch)
        outputs = model(**own)
        more = matching.sums(own) if matching else {}
        soft = soft_sum(soft_loss, outputs, batch, wanted.temperature)
        return {**gold.sums(lambda **_: outputs, own), "soft": soft, **more}

    weights = {name: weight * (1 - wanted.soft_weight) for name, weight in gold.weights.items()}
    return Terms({**weights, "soft": wanted.soft_weight, **(matching.weights if matching else {})}, count, sums)


SoftLoss = Callable[["torch.Tensor", "torch.Tensor", float], "torch.Tensor"]
"""Gives the loss of each item from the student's logits, the teachers' and the temperature."""


def choose_loss(problem_type: str | None) -> SoftLoss:
    """Give the loss that fits what logits are: those of one label of several, of many yes or no, or a number."""
    losses: dict[str | None, SoftLoss] = {"regression": _squared, "multi_label_classification": _yes_or_no}
    return losses.get(problem_type, _one_of_several)


def soft_sum(loss: SoftLoss, outputs: Any, batch: Mapping[str, torch.Tensor], temperature: float) -> torch.Tensor:
    """Sum a loss over rows, or labelled tokens where there is a distribution a token; the mean of several outputs."""
    teacher_outputs = {
        name.removeprefix(TEACHER_PREFIX): values for name, values in batch.items() if name.startswith(TEACHER_PREFIX)
    }
    total: Any = 0
    for name, wanted in teacher_outputs.items():
        given = outputs[name].float()
        if wanted.dim() == 3:
            is_labelled = batch["labels"] != IGNORED
            given, wanted = given[is_labelled], wanted[is_labelled]
        total = total + loss(given, wanted, temperature).sum() / len(teacher_outputs)
    return total  # type: ignore[no-any-return]


def _one_of_several(given: torch.Tensor, wanted: torch.Tensor, temperature: float) -> torch.Tensor:
    """Give T² KL(teacher || student) at a temperature, so that gradients are as large at any one (section 2)."""
    is_there = wanted > -float("inf")
    student = (given / temperature).masked_fill(~is_there, -float("inf")).log_softmax(dim=-1)
    teacher = (wanted / temperature).log_softmax(dim=-1)
    gaps = (teacher - student).masked_fill(~is_there, 0.0)
    return temperature**2 * (teacher.exp() * gaps).sum(dim=-1)


def _yes_or_no(given: torch.Tensor, wanted: torch.Tensor, temperature: float) -> torch.Tensor:
    """Give the same for labels that are each there or not, as the mean over labels."""
    from torch.nn.functional import logsigmoid

    student, teacher = given / temperature, wanted / temperature
    yes = teacher.sigmoid() * (logsigmoid(teacher) - logsigmoid(student))
    no = (-teacher).sigmoid() * (logsigmoid(-teacher) - logsigmoid(-student))
    return temperature**2 * (yes + no).mean(dim=-1)


def _squared(given: torch.Tensor, wanted: torch.Tensor, temperature: float) -> torch.Tensor:
    """Give the squared distance to the teachers' number."""
    return (given - wanted).square().mean(dim=-1)


def _own(batch: Mapping[str, Any]) -> dict[str, Any]:
    return {name: values for name, values in batch.items() if not name.startswith(TEACHER_PREFIX)}
